"""Figures of length generalisation: accuracy, attention and confidence against length, and causes of failure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.special import stdtrit

from headcount.figures.style import GREY, PALETTE, Page, plot_band

if TYPE_CHECKING:
    from headcount.analysis.length_generalisation import LengthResult, Stretch
    from headcount.analysis.pooling_comparison import PooledModel

MARKERS = "osD^vP*Xhd"
NAMES = ("encoding", "pooling")


NOTHING_BUILT_IN = "no built-in structure of the task"
"""Words for a model without built-in structure of the task."""


def given_structure(model: PooledModel | Stretch) -> str:
    """Return in words which structure of the task is built into a model: `built in: window of ±1`.

    Every comparison of models shows these words, because a model with built-in structure has an easier task.
    """
    if not model.encoding:
        return "encoding not known"
    return f"built in: {', '.join(model.hard_codes)}" if model.hard_codes else NOTHING_BUILT_IN


def size_range(sizes: Iterable[int]) -> str:
    """Return the smallest and the largest sample size as text.

    >>> size_range([1000, 200, 1000]), size_range([200, 200]), size_range([])
    ('200 to 1,000', '200', 'no')
    """
    ordered = sorted(set(sizes))
    return " to ".join(f"{size:,}" for size in dict.fromkeys((ordered[0], ordered[-1]))) if ordered else "no"


def draw_stretch(results: Sequence[Stretch]) -> Figure:
    """Draw accuracy against length: a panel per kind of unsorted sequence, a line per configuration of the model."""
    cells, groups = [cell for result in results for cell in result.cells], _groups(results)
    kinds = list(dict.fromkeys(cell.negative for cell in cells))
    across = len(kinds) if len(kinds) < 4 else 2  # more side by side could not be read on a page
    down = -(-len(kinds) // across)
    figure = Page((4.8 if down > 1 else 3.4) * across + 0.6, 3.6 * down + 0.6)
    panels = list(figure.subplots(down, across, sharey=True, sharex=down > 1, squeeze=False).flat)
    for axes in panels[len(kinds) :]:
        axes.remove()
    for kind, axes in zip(kinds, panels, strict=False):
        for i, (name, group) in enumerate(groups):
            _draw_line(axes, name, group, kind, i, len(groups))
        _frame_accuracy(axes, f"unsorted sequences: {kind}", results)
    figure.key(*panels[0].get_legend_handles_labels(), columns=1 if len(groups) < 5 else 2, size=10)
    n = size_range(cell.n for cell in cells)
    figure.headline(
        f"Accuracy by length (n = {n} per point; shaded: training lengths; ×: one answer for every sequence)", size=12
    )
    return figure


def draw_poolings(models: Sequence[PooledModel | Stretch], kind: str) -> Figure:
    """Draw accuracy against length, with one panel per position encoding and one line per pooling.

    Lines of models with built-in structure of the task are dashed.
    """
    encodings, poolings = (list(dict.fromkeys(getattr(each, name) for each in models)) for name in NAMES)
    figure = Page(3.6 * len(encodings) + 0.6, 4.0)
    panels = dict(zip(encodings, figure.subplots(1, len(encodings), sharey=True, squeeze=False).flat, strict=True))
    for model in models:
        i, line = poolings.index(model.pooling), "--" if model.hard_codes else "-"
        _draw_line(panels[model.encoding], model.pooling, [model], kind, i, len(poolings), line)
    for encoding, axes in panels.items():
        _frame_accuracy(axes, f"encoding: {encoding}", [model for model in models if model.encoding == encoding])
    shown = {
        label: line for axes in panels.values() for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.key(list(shown.values()), list(shown), columns=2, size=10)
    n = size_range(cell.n for model in models for cell in model.cells if cell.negative == kind)
    figure.headline(
        f"Accuracy by pooling and encoding; unsorted sequences: {kind} (n = {n} per point, 95 % CI; shaded: training "
        "lengths; ×: one answer for every sequence)",
        size=12,
    )
    return figure


def _groups(results: Sequence[Stretch]) -> list[tuple[str, list[Stretch]]]:
    """Return labelled groups of runs that differ only in their seeds; equal labels get the name of a run added."""
    groups: dict[tuple[object, ...], list[Stretch]] = {}
    for result in results:
        groups.setdefault((result.label, result.hard_codes, result.recipe), []).append(result)
    labels = [label for label, *_ in groups]
    return [
        (group[0].label if labels.count(group[0].label) == 1 else f"{group[0].name}: {group[0].label}", group)
        for group in groups.values()
    ]


def _draw_line(
    axes: Axes, name: str, group: Sequence[PooledModel | Stretch], kind: str, i: int, n_lines: int, line: str = "-"
) -> None:
    """Draw one line of accuracy against length: the mean over seeds with the range, or one run with its intervals.

    It is line `i` of `n_lines`; lines are shifted sideways a little, so that equal lines stay visible.
    """
    beside = 1.04 ** (i - (n_lines - 1) / 2)  # equal lines side by side, not on top of each other
    cells = [[cell for cell in result.cells if cell.negative == kind] for result in group]
    lengths = [beside * cell.length for cell in cells[0]]
    rates = np.array([[100 * cell.accuracy for cell in row] for row in cells])
    if len(group) > 1:
        low, high = rates.min(axis=0), rates.max(axis=0)
        over = f"{len(group)} seeds: mean and range"
    else:
        low, high = (np.array([100 * getattr(cell, end) for cell in cells[0]]) for end in ("low", "high"))
        over = "95 % CI"
    label = f"{name}  ({given_structure(group[0])}, {over})"
    plot_band(axes, lengths, rates.mean(axis=0), low, high, line, linewidth=1.3, label=label, **_look(i))
    _cross(axes, [(beside * cell.length, cell) for row in cells for cell in row], i)


def _look(i: int) -> dict[str, Any]:
    """Return the colour and the marker of the line with index `i`, as matplotlib's keyword arguments."""
    return {"color": PALETTE[i % len(PALETTE)], "marker": MARKERS[i % len(MARKERS)], "markersize": 4}


def _cross(axes: Axes, points: Sequence[tuple[float, LengthResult]], i: int) -> None:
    """Draw a cross at each point where the model gives every sequence the same answer."""
    constant = [(x, 100 * cell.accuracy) for x, cell in points if cell.constant]
    colour = PALETTE[i % len(PALETTE)]
    axes.plot(*np.array(constant).reshape(-1, 2).T, "x", color=colour, markersize=9, markeredgewidth=1.6)


def _frame_accuracy(axes: Axes, title: str, models: Sequence[PooledModel | Stretch]) -> None:
    """Add to a panel of accuracy against length: title, axes, shaded training lengths, and a line at 50 %."""
    for trained in {model.trained for model in models}:
        _frame(axes, trained)
    axes.set(title=title, ylim=(-3, 103), ylabel="accuracy (%)")
    axes.axhline(50, color=GREY, linewidth=0.8, linestyle=":")
    axes.label_outer(remove_inner_ticks=False)


def _frame(axes: Axes, trained: tuple[int, int] | None) -> None:
    """Give a panel a logarithmic axis of sequence lengths, and shade the training lengths."""
    if trained:
        axes.axvspan(*trained, color=GREY, alpha=0.15, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("length (numbers)")
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.grid(alpha=0.25)


def draw_dispersion(result: Stretch) -> Figure:
    """Draw panels against sequence length: attention, margin of the right class, and causes of failure.

    For a model that headcount did not build, there is only the panel of the margin.
    """
    if not result.attention_shares:
        figure = Page(7, 4.2)
        _draw_leads(figure.subplots(), result)
        figure.headline(f"{result.label} ({given_structure(result)})", size=12)
        return figure
    figure = Page(11.5, 8) if result.ids else Page(15, 4.2)
    neighbours, alike, leads, *apart = figure.subplots(*((2, 2) if result.ids else (1, 3))).flat
    for i, head in enumerate(dict.fromkeys(each.head for each in result.attention_shares)):
        shares = [each for each in result.attention_shares if each.head == head]
        for axes, what in ((neighbours, "neighbours"), (alike, "alike")):
            # A t-interval: there may be eight sequences.
            doubt = np.array([100 * stdtrit(s.n - 1, 0.975) * getattr(s, f"{what}_se") for s in shares])
            x, y = [each.length for each in shares], np.array([100 * getattr(each, what) for each in shares])
            line = "-" if i < len(PALETTE) else "--"
            plot_band(axes, x, y, y - doubt, y + doubt, line, alpha=0.2, label=head, **_look(i))
    neighbours.set(ylabel="attention (%)", title="on the two neighbours")
    alike.set(ylabel="attention (%)", title="on equal numbers (the query's own included)")
    _draw_leads(leads, result)
    for axes in apart:
        _draw_apart(axes, result)
    for axes in (neighbours, alike, *apart):
        _frame(axes, result.trained)
    figure.key(*neighbours.get_legend_handles_labels(), columns=12)
    for axes in (neighbours, alike):
        axes.set_ylim(-3, 103)
    n = size_range(each.n for each in result.attention_shares)
    over = f"Attention: mean over the positions of {n} sorted sequences per length, 95 % CI"
    figure.headline(f"{result.name}: {result.label} ({given_structure(result)}). {over}", size=12)
    return figure


def _draw_leads(axes: Axes, result: Stretch) -> None:
    """Draw the mean margin of the right class against length, for sorted sequences and each kind of unsorted ones."""
    kinds = list(dict.fromkeys(cell.negative for cell in result.cells))
    classes = [(f"unsorted: {kind}", kind, 0, i) for i, kind in enumerate(kinds, start=1)]
    for label, kind, which, i in [*classes, ("sorted", kinds[0], 1, 0)]:
        points = [(cell.length, cell.margin[which]) for cell in result.cells if cell.negative == kind]
        axes.plot(*zip(*points, strict=True), label=label, **_look(i))
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.set(ylabel="mean margin of the right class (logits)", title="Confidence (below 0: mostly wrong)")
    _frame(axes, result.trained)
    axes.legend(framealpha=0.85, edgecolor="none", fontsize=8)


def _draw_apart(axes: Axes, result: Stretch) -> None:
    """Draw the accuracy on adjacent swaps at each length, and the accuracy with only one possible cause of failure.

    For the latter, sequences of the longest training length get only the gaps between numbers, or only the position
    ids, of a longer sequence.
    """
    longest = result.trained[1] if result.trained else 0
    whole = [(cell.length, cell) for cell in result.cells if cell.negative == result.ids[0].cell.negative]
    parts = {
        "sequences of this length": whole,
        f"{longest} numbers, gaps of this length": [(cell.length, cell) for cell in result.cropped_results],
        f"{longest} numbers, last ids of this length": [(each.first + longest, each.cell) for each in result.ids],
    }
    for i, (label, points) in enumerate(parts.items()):
        ends = ("accuracy", "low", "high")
        y, low, high = (100 * np.array([getattr(cell, end) for _, cell in points]) for end in ends)
        plot_band(axes, [x for x, _ in points], y, low, high, ("-", "--", ":")[i], label=label, **_look(i))
        _cross(axes, points, i)
    axes.axhline(50, color=GREY, linewidth=0.8, linestyle=":")
    axes.set(ylabel="accuracy (%)", ylim=(-3, 103), title="Causes of failure (adjacent swaps; ×: one answer)")
    axes.legend(framealpha=0.85, edgecolor="none", fontsize=8, loc="lower left")
