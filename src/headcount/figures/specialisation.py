"""Draw what each head attends to: one page of all heads, and pages that compare examples by a condition (a carry)."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headcount.figures.attention import KINDS, heads_by_kind, write_cells
from headcount.figures.style import BLUE, GREY, HALF_CI, ORANGE, PALETTE, SEQUENTIAL, Page
from headcount.limits import SIGNIFICANT

if TYPE_CHECKING:
    from headcount.analysis.attention_contrasts import ContrastShift
    from headcount.analysis.head_labels import MeasureMean
    from headcount.analysis.specialisation import HeadStats, Specialisation

SPREAD = ("entropy share", "sparsity")
LOOKS = ((ORANGE, "s", ORANGE), (BLUE, "o", "white"))
"""Colour, marker and fill for examples in which the task's condition holds (a carry comes in), then for the others."""


def draw_stats(result: Specialisation) -> Figure:
    """Draw a table of colours: heads in rows, attention measures in columns, and the heads' labels at the right."""
    kinds, contrast = heads_by_kind(result.heads), _contrast(result)
    rows = [len(heads) for heads in kinds.values()]
    widest = max(len(_targets(heads)) for heads in kinds.values()) + len(SPREAD) + 1 + len(contrast)
    labels = {head.head: "\n".join(textwrap.wrap(head.label, 38)) or "–" for head in result.heads}
    words = max(len(line) for label in labels.values() for line in label.splitlines())
    figure = Page(1.02 * widest + 0.075 * words + 2.0, 0.44 * sum(rows) + 1.05 * len(rows) + 0.3)
    grid = figure.subplots(len(rows), 1, squeeze=False, height_ratios=[n + 1 for n in rows])[:, 0]
    for axes, (kind, heads) in zip(grid, kinds.items(), strict=True):
        targets = _targets(heads)
        shown = [*targets, *SPREAD, "entropy", *contrast]
        measures = [{name: find_measure(result, head, name) for name in shown} for head in heads]
        # The darker, the more; nats have no maximum, so their share of it gives the shade.
        shades = [[row["entropy share" if name == "entropy" else name] for name in shown] for row in measures]
        values = [[np.nan if each is None else each.mean for each in row] for row in shades]
        axes.imshow(values, vmin=0, vmax=1, cmap=SEQUENTIAL, aspect="auto")
        write_cells(axes, values, [[_cell(each) for each in row.values()] for row in measures], size=9)
        axes.set_xticks(range(len(shown)), [_heading(name, heads[0].find(name)) for name in shown], fontsize=8.5)
        axes.set_yticks(range(len(heads)), [head.short for head in heads], fontsize=9)
        beside = axes.secondary_yaxis("right")
        beside.set_yticks(range(len(heads)), [labels[head.head] for head in heads], fontsize=9)
        axes.tick_params(length=0)
        beside.tick_params(length=0)
        axes.axvline(len(targets) - 0.5, color=GREY, linewidth=1.5)
        axes.set_title(KINDS[kind].capitalize(), fontsize=11, loc="left")
    figure.colorbar(grid[0].images[0], ax=grid, label="mean", shrink=0.6, pad=0.02)
    what = f"{result.weighting}, mean ± {HALF_CI} over {result.n:,} examples ({result.data})"
    figure.headline(f"{result.name}: {what}", size=12)
    figure.caption(caption(result))
    return figure


def caption(result: Specialisation) -> str:
    """Return a caption that says when a head gets a label, and how its sensitivity to a carry was measured."""
    if not result.contrast:
        return result.words
    n = sorted({shift.n for head in result.heads if (shift := head.sensitivity())})
    over = f" (n = {n[0]:,}{f' to {n[-1]:,}' if len(n) > 1 else ''} contrasts)" if n else ""
    return f"{result.words}; {result.contrast.name}{over}: {result.contrast.words}"


def _cell(measure: MeasureMean | ContrastShift | None) -> str:
    if measure is None:
        return ""
    half = measure.half()
    return f"{measure.mean:z.2f} ± " + (f"{half:.3f}" if half >= 0.0005 else "<.001")


def _heading(name: str, measure: MeasureMean | None) -> str:
    """Return the heading of a measure's column, with the value that uniform attention would give."""
    if name == "entropy":
        return "entropy\n(nats)"
    return f"{name}\n(uniform: {measure.even:.2f})" if measure and measure.even is not None else name.replace(" ", "\n")


def draw_conditions(result: Specialisation) -> dict[str, Figure]:
    """Return one figure per kind of attention, by name: attention with and without the task's condition (a carry)."""
    return {"-".join(kind): draw_condition(result, *kind) for kind in heads_by_kind(result.heads)}


def draw_condition(result: Specialisation, stack: str, kind: str) -> Figure:
    """Draw the attention measures of heads of one kind, with and without the task's condition, by column of digits."""
    heads = heads_by_kind(result.heads)[stack, kind]
    shown = [*_targets(heads), "entropy share"]
    # The columns in which something shown was measured, as they are written; without columns, `all`.
    written = dict.fromkeys(m.column for m in heads[0].measures if m.measure == "entropy" and m.column != "all")
    measured = {m.column for head in heads for m in head.measures if m.measure in shown}
    columns = [column for column in written if column in measured] or ["all"]
    figure = Page(max(1.9 * len(shown) + 1.0, 8.5), 1.25 * len(heads) + 0.9)
    grid = figure.subplots(len(heads), len(shown), sharex=True, sharey=True, squeeze=False)
    for row, head in zip(grid, heads, strict=True):
        for axes, name in zip(row, shown, strict=True):
            _draw_panel(axes, head, name, columns)
        row[0].set_ylabel(f"{head.short}\nshare", fontsize=9)
    what = "output column" if heads[0].stack == "decoder" else "column of the query"
    for top, bottom, name in zip(grid[0], grid[-1], shown, strict=True):
        top.set_title(name, fontsize=10)
        bottom.set(xlim=(-0.5, len(columns) - 0.5), ylim=(-0.06, 1.06), yticks=(0, 0.5, 1))
        bottom.set_xticks(range(len(columns)), columns if len(columns) > 1 else ["all queries"], fontsize=8)
        bottom.set_xlabel(what if len(columns) > 1 else "", fontsize=8)
    figure.key(*grid[0][0].get_legend_handles_labels(), size=10)
    figure.headline(f"{result.name}: {KINDS[stack, kind]}, {result.weighting}, mean with 95 % CI (n = {result.n:,})")
    return figure


def _draw_panel(axes: Axes, head: HeadStats, name: str, columns: Sequence[str]) -> None:
    """Draw one measure of one head by column of digits; a dash marks the value that uniform attention would give."""
    conditions = dict.fromkeys(m.condition for m in head.measures if m.condition not in ("all", "difference"))
    for i, (condition, (colour, marker, filling)) in enumerate(zip(conditions, LOOKS, strict=False)):
        points = [(x, m) for x, column in enumerate(columns) if (m := head.find(name, column, condition))]
        axes.errorbar(
            [x + 0.24 * i - 0.12 for x, _ in points],
            [m.mean for _, m in points],
            [m.half() for _, m in points],
            fmt=marker,
            color=colour,
            markerfacecolor=filling,
            markersize=5,
            capsize=2,
            label=condition,
        )
    even = [(x, m.even) for x, column in enumerate(columns) if (m := head.find(name, column)) and m.even is not None]
    axes.plot(*np.array(even).reshape(-1, 2).T, "_", color=GREY, markersize=16, label="if attention were uniform")
    axes.grid(axis="y", alpha=0.25)


def measures_of(result: Specialisation) -> list[str]:
    """Return the names of all measures: attention to each target, measures of spread, and sensitivity to a carry."""
    targets = dict.fromkeys(name for heads in heads_by_kind(result.heads).values() for name in _targets(heads))
    return [*targets, *SPREAD, *_contrast(result)]


def _contrast(result: Specialisation) -> list[str]:
    """Return a list with the name of the task's contrast (such as `carry sensitivity`), empty without a contrast."""
    return [result.contrast.name] if result.contrast else []


def find_measure(result: Specialisation, head: HeadStats, name: str) -> MeasureMean | ContrastShift | None:
    """Return one attention measure of a head over all queries; None if it was not measured.

    For the name of the task's contrast, such as `carry sensitivity`, return the head's sensitivity.
    """
    return head.sensitivity() if name in _contrast(result) else head.find(name)


def _targets(heads: Sequence[HeadStats]) -> list[str]:
    """Return the names of those measures that are attention to a target (a kind of key)."""
    return list(dict.fromkeys(m.measure for head in heads for m in head.measures if m.even is not None))


# --- what the contrast of a task does ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sensitivity:
    """How much more a head's attention changes when a changed token causes the task's event (a carry) than when not."""

    short: str
    shift: ContrastShift
    low: float
    high: float
    """Upper end of the 95 % CI; `low` and `high` are Bonferroni-corrected for the number of heads."""


def sensitivities(result: Specialisation) -> list[Sensitivity]:
    """Return the sensitivity of every head to the task's event (a carry), if it was measured; the largest first."""
    shifts = [(head.short, shift) for head in result.heads if (shift := head.sensitivity())]
    rows = list[Sensitivity]()
    for short, shift in shifts:
        half = shift.half(1 - SIGNIFICANT / len(shifts))
        rows.append(Sensitivity(short, shift, shift.mean - half, shift.mean + half))
    return sorted(rows, key=lambda row: -row.shift.mean)


def draw_sensitivity(result: Specialisation) -> Figure:
    """Draw how much attention each head moves when a token changes, with and without causing a carry."""
    rows = sensitivities(result)
    figure = Page(8, 0.2 * len(rows) + 1.0)
    axes, y = figure.subplots(), np.arange(len(rows))
    contrast = result.contrast
    name, words = ("sensitivity", "") if contrast is None else (contrast.name, contrast.words)
    changed, more = "one token changed", name.removesuffix("sensitivity").strip()
    both = f"{changed}, which makes a {more}"
    axes.plot([each.shift.beside for each in rows], y, "|", color=GREY, markersize=8, label=changed)
    axes.plot([each.shift.across for each in rows], y, "d", color=PALETTE[2], markersize=4, label=both)
    means, lows, highs = np.array([(each.shift.mean, each.low, each.high) for each in rows]).T
    doubt = [means - lows, highs - means]
    look: dict[str, Any] = {"color": BLUE, "markersize": 5, "capsize": 2, "linewidth": 1}
    axes.errorbar(means, y, xerr=doubt, fmt="o", label="difference, 95 % CI corrected for the number of heads", **look)
    axes.axvline(0, color="black", linewidth=0.6)
    axes.set_yticks(y, [each.short for each in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("share of attention that moves to other keys")
    axes.grid(axis="x", alpha=0.25)
    figure.headline(f"{result.name}: {name} of each head", words, size=10)
    figure.key(*axes.get_legend_handles_labels(), columns=3)
    return figure
