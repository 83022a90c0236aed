"""When in training do heads begin to matter? Draw accuracy, largest drop and number of heads that matter by step.

A head matters at a snapshot (a training step) if ablating it costs more than 1 point, by the whole 95 % CI.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from headcount.bands import IMPORTANT
from headcount.figures.strips import MARKERS
from headcount.figures.style import BLACK, GREY, PALETTE, Page, plain

if TYPE_CHECKING:
    from headcount.studies.emergence import Emergence, SnapshotHeads, TrainingHistory

MOST_NAMED = 8
"""Largest number of runs that are drawn in a colour each; if there are more, all runs are grey."""


def draw_emergence(result: Emergence, variant: str) -> Figure:
    """Draw accuracy, the largest drop of one head, and the number of heads that matter, with one line for each run.

    A filled mark means that some head matters at this snapshot: ablating it costs more than 1 point.
    """
    runs = result.of(variant)
    figure = Page(7.0, 6.0)
    panels = figure.subplots(3, 1, sharex=True)
    texts = (
        "score with all heads (%)",
        f"largest drop of one head\n({result.replacement} ablation, points)",
        "heads that matter",
    )
    values: tuple[Callable[[SnapshotHeads], float], ...] = (
        lambda each: 100 * each.accuracy,
        lambda each: 100 * each.drop,
        lambda each: each.n_counting,
    )
    for axes, text, value in zip(panels, texts, values, strict=True):
        for i, run in enumerate(runs):
            look = i if len(runs) <= MOST_NAMED else None
            _draw_run(axes, run, value, look, is_filled=lambda each: each.n_counting)
        _draw_median(axes, runs, value)
        axes.set_ylabel(text, fontsize=8.5)
        _tidy(axes)
    panels[1].axhline(100 * IMPORTANT, color=GREY, linewidth=0.9, linestyle=":")
    panels[1].annotate(
        "1 point", (1, 100 * IMPORTANT), (3, 0), ("axes fraction", "data"), "offset points", fontsize=7.5, va="center"
    )
    panels[-1].set_xlabel("training step")
    seeds = f"{len(runs)} seed{'s' if len(runs) > 1 else ''}"
    figure.headline(f"When in training do heads begin to matter? n = {seeds}")
    ns = sorted({each.n for run in runs for each in run.snapshots})
    examples = f"{ns[0]:,}" if len(ns) == 1 else f"{ns[0]:,} to {ns[-1]:,}"
    _key(
        figure,
        runs,
        "A head matters if the whole 95 % CI of its drop lies above 1 point. A mark is filled if at least one head "
        f"matters. Each model was measured on {examples} examples.",
    )
    return figure


def draw_sites(result: Emergence, variant: str) -> Figure:
    """Draw the number of heads that matter in each attention block, one panel per block and one line for each run."""
    runs, sites = result.of(variant), result.sites
    n_columns = min(3, len(sites))
    n_rows = -(-len(sites) // n_columns)
    figure = Page(7.0, 1.7 * n_rows + 0.3)
    grid = figure.subplots(n_rows, n_columns, sharex=True, sharey=True, squeeze=False)
    for axes, site in zip(grid.flat, sites, strict=False):
        count: Callable[[SnapshotHeads], float] = lambda each, site=site: each.by_site.get(site, 0)  # type: ignore[misc]  # noqa: E731
        for i, run in enumerate(runs):
            _draw_run(axes, run, count, i if len(runs) <= MOST_NAMED else None, is_filled=count)
        _draw_median(axes, runs, count)
        n_begun = sum(run.first_of(site) is not None for run in runs)
        axes.set_title(plain(f"{site}: {n_begun} of {len(runs)} seeds"), fontsize=9, loc="left")
        _tidy(axes)
    for axes in grid.flat[len(sites) :]:
        axes.set_visible(False)
    for axes in grid[:, 0]:
        axes.set_ylabel("heads that matter", fontsize=8.5)
    for axes in grid[-1]:
        axes.set_xlabel("training step", fontsize=8.5)
    figure.headline("Heads that matter (ablation costs more than 1 point), by attention block")
    _key(
        figure,
        runs,
        "The title of a panel says in how many seeds a head of the block matters at any snapshot. Filled marks are "
        "snapshots at which at least one head of the block matters.",
    )
    return figure


def _key(figure: Page, runs: Sequence[TrainingHistory], words: str) -> None:
    """Write an explanation below the figure, and below that a legend of the runs and their median."""
    handles, labels = [], []
    if len(runs) <= MOST_NAMED:
        handles, labels = [_handle(i) for i in range(len(runs))], [f"seed {run.seed}" for run in runs]
    else:
        handles, labels = [Line2D([], [], color=GREY, marker="o", markersize=5)], ["one run"]
    if len(runs) > 1:
        handles.append(Line2D([], [], color=BLACK, linewidth=2.4))
        labels.append("median")
    figure.explained_key(handles, labels, words)


def _tidy(axes: Axes) -> None:
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.axhline(0, color="#dddddd", linewidth=0.6, zorder=0)  # the axis begins at 0 or below


def _handle(i: int) -> Line2D:
    return Line2D([], [], color=PALETTE[i % len(PALETTE)], marker=MARKERS[i % len(MARKERS)], markersize=5)


def _draw_run(
    axes: Axes,
    run: TrainingHistory,
    value: Callable[[SnapshotHeads], float],
    look: int | None,
    is_filled: Callable[[SnapshotHeads], float],
) -> None:
    """Draw one run as a line with a mark per snapshot; a mark is filled if `is_filled` gives more than 0 for it."""
    colour = GREY if look is None else PALETTE[look % len(PALETTE)]
    marker = "o" if look is None else MARKERS[look % len(MARKERS)]
    steps = [each.step for each in run.snapshots]
    axes.plot(steps, list(map(value, run.snapshots)), color=colour, linewidth=1.0, alpha=0.8)
    for each in run.snapshots:
        face = colour if is_filled(each) else "#ffffff"
        axes.plot(each.step, value(each), marker=marker, color=colour, markerfacecolor=face, markersize=4.5)


def _draw_median(axes: Axes, runs: Sequence[TrainingHistory], value: Callable[[SnapshotHeads], float]) -> None:
    """Draw the median over runs as a line, at the training steps that all runs have."""
    if len(runs) < 2:
        return
    by_step = [{each.step: value(each) for each in run.snapshots} for run in runs]
    common = sorted(set.intersection(*map(set, by_step)))
    axes.plot(
        common, [np.median([each[step] for each in by_step]) for step in common], color=BLACK, linewidth=2.4, zorder=1.5
    )
