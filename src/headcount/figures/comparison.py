"""How do variants of a model compare over seeds? Draw every single value, or small curves of many variants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from headcount.figures.strips import EXPLANATION, MARKERS, Panel, Strip, strip_figure
from headcount.figures.style import PALETTE, Page, plain

if TYPE_CHECKING:
    from headcount.studies.summary import SeedSummary, VariantSummary

MOST = 12
"""Largest number of subjects (heads, lengths, ...) that one figure shows, each in a panel of its own."""
MOST_ROWS = 66
"""Largest number of strips (rows with the values of one variant) in one figure."""
FEW = 8
"""Largest number of variants that are drawn in their own order, in a colour each; more are sorted by median."""
SCALED = {"share": (100, "%"), "points": (100, "points")}
CELL = (1.22, 0.92)
"""Width and height of one small panel of curves, in inches."""


def draw_comparison(summary: SeedSummary, measure: str) -> Figure:
    """Draw every value of a measure by variant, with medians and intervals.

    Many variants at several lengths are drawn as small curves; otherwise, each variant is a row of marks.
    """
    shown = [each for each in summary.variants if each.measure == measure]
    lengths = {each.about.get("length") for each in shown} - {None}
    if len(summary.names) > FEW and len(lengths) > 1:
        return _draw_small_curves(summary, measure)
    return _draw_strips(summary, measure)


def _draw_strips(summary: SeedSummary, measure: str) -> Figure:
    """Draw the values of each variant as a row of marks, with one panel per subject, such as a head or a length."""
    subjects = list(dict.fromkeys(each.subject for each in summary.variants if each.measure == measure))
    n_variants = len(summary.names)
    n_shown = max(1, min(MOST, MOST_ROWS // n_variants))
    is_many, unit, panels = n_variants > FEW, "", []
    n_left_out = 0
    for subject in subjects[:n_shown]:
        rows = summary.of(measure, subject)
        unit = rows[0].unit
        if is_many:
            rows = sorted(rows, key=lambda each: -each.median)
        n_left_out = max(n_left_out, len(rows) - MOST_ROWS)
        panels.append(Panel(subject, tuple(_strip(summary, each, is_many=is_many) for each in rows[:MOST_ROWS])))
    figure = strip_figure(panels, _label(measure, unit), row=0.2 if is_many else 0.34)
    figure.headline(f"{measure}{_by(summary)}")
    notes = [EXPLANATION]
    notes += ["variants are sorted by their median"] if is_many else []
    more = len(subjects) - n_shown
    kinds = ", ".join(_kinds(summary, measure)) or "these"
    notes += [f"not shown here, but in the table: {more} more values of {kinds}"] if more > 0 else []
    notes += [f"not shown here, but in the table: {n_left_out} more variants"] if n_left_out > 0 else []
    figure.caption(f"{'; '.join(notes)}.")
    return figure


def _kinds(summary: SeedSummary, measure: str) -> list[str]:
    return list(dict.fromkeys(name for each in summary.variants if each.measure == measure for name in each.about))


def _by(summary: SeedSummary) -> str:
    names = [name.removeprefix("setting.") for name in summary.by]
    return f": by {', '.join(names)}" if names else " over seeds"


def _label(measure: str, unit: str) -> str:
    return f"{measure} ({SCALED.get(unit, (1, unit))[1]})" if unit else measure


def _strip(summary: SeedSummary, each: VariantSummary, *, is_many: bool) -> Strip:
    scale = SCALED.get(each.unit, (1, ""))[0]
    low, high = (None if end is None else scale * end for end in (each.low, each.high))
    name = " · ".join(_labels(summary, each.variant).values()) if is_many else each.variant
    look = 0 if is_many else summary.names.index(each.variant)
    return Strip(name or each.variant, tuple(scale * value for value in each.values), low, high, f"n = {each.n}", look)


def _labels(summary: SeedSummary, variant: str) -> dict[str, str]:
    """Return the labels of a variant by name, such as encoding and pooling; without stored labels, only its name."""
    place = summary.names.index(variant)
    labels = dict(summary.labels[place]) if place < len(summary.labels) else {}
    return {name: labels[name] for name in summary.by if name in labels} or {"": variant}


# --- small curves -----------------------------------------------------------------------------------------------------


def _draw_small_curves(summary: SeedSummary, measure: str) -> Figure:
    """Draw a measure against length, with one small panel per variant, arranged in a grid by the labels of variants."""
    shown = [each for each in summary.variants if each.measure == measure]
    lengths = sorted({int(each.about["length"]) for each in shown if "length" in each.about})
    kinds = list(dict.fromkeys(_kind(each) for each in shown))
    rows, columns, cells = _grid(summary)
    figure = Page(max(7.0, 1.5 + CELL[0] * len(columns)), CELL[1] * len(rows) + 0.5)
    grid = figure.subplots(len(rows), len(columns), sharex=True, sharey=True, squeeze=False)
    unit = shown[0].unit
    scale = SCALED.get(unit, (1, ""))[0]
    for (i, j), variant in cells.items():
        of_variant = [each for each in shown if each.variant == variant]
        for k, kind in enumerate(kinds):
            curve = {int(each.about["length"]): each for each in of_variant if _kind(each) == kind}
            _draw_curve(grid[i, j], curve, lengths, scale, k)
    for i, j in np.ndindex(grid.shape):
        axes = cast(Axes, grid[i, j])
        axes.grid(color="#dddddd", linewidth=0.5)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=7)
        if (i, j) not in cells:
            axes.set_visible(False)
        if i == 0:
            axes.set_title(
                plain("\n".join(columns[j])) if not columns[j] else "\n".join(map(plain, columns[j])), fontsize=8
            )
        if j == 0:
            axes.set_ylabel(plain(rows[i], 20), fontsize=8, rotation=0, ha="right", va="center")
    grid[0, 0].set_xticks(range(len(lengths)), [str(length) for length in lengths])
    for below in grid[-1]:
        below.tick_params(axis="x", labelrotation=90 if len(lengths) > 3 else 0)
    ns = sorted({each.n for each in shown})
    figure.headline(f"{measure}{_by(summary)}")
    runs = f"{ns[0]} to {ns[-1]}" if len(ns) > 1 else str(ns[0])
    words = (
        f"Horizontal axis: length; vertical axis: {_label(measure, unit)}. Each dot is one run, each line the median "
    )
    words += f"of n = {runs} runs; the table has the intervals."
    if len(kinds) > 1:
        looks = [(PALETTE[k % len(PALETTE)], MARKERS[k % len(MARKERS)]) for k in range(len(kinds))]
        handles = [Line2D([], [], color=colour, marker=marker, markersize=4) for colour, marker in looks]
        figure.explained_key(handles, kinds, words)
    else:
        figure.caption(words)
    return figure


def _kind(each: VariantSummary) -> str:
    """Return what a value is about, apart from its length: such as the kind of negatives (unsorted sequences)."""
    return ", ".join(str(value) for name, value in each.about.items() if name not in ("length", "metric"))


def _grid(summary: SeedSummary) -> tuple[list[str], list[tuple[str, ...]], dict[tuple[int, int], str]]:
    """Return the grid of variants: names of rows, names of columns, and the variant of each cell (row, column).

    Rows are the values of the label that has most values; columns are combinations of the other labels.
    """
    labels = {variant: _labels(summary, variant) for variant in summary.names}
    names = list(next(iter(labels.values())))
    by_name = {name: list(dict.fromkeys(each.get(name, "") for each in labels.values())) for name in names}
    main = max(names, key=lambda name: len(by_name[name]))
    rows = by_name[main]
    others = [name for name in names if name != main]
    columns = list(dict.fromkeys(tuple(each.get(name, "") for name in others) for each in labels.values()))
    cells = {
        (rows.index(each.get(main, "")), columns.index(tuple(each.get(name, "") for name in others))): variant
        for variant, each in labels.items()
    }
    return rows, columns, cells


def _draw_curve(axes: Axes, curve: dict[int, VariantSummary], lengths: Sequence[int], scale: float, look: int) -> None:
    colour, marker = PALETTE[look % len(PALETTE)], MARKERS[look % len(MARKERS)]
    measured = [i for i, length in enumerate(lengths) if length in curve]
    for i in measured:
        values = [scale * value for value in curve[lengths[i]].values]
        axes.scatter([i] * len(values), values, marker=marker, s=8, color=colour, alpha=0.6, linewidths=0, zorder=3)
    medians = [scale * curve[lengths[i]].median for i in measured]
    axes.plot(measured, medians, color=colour, linewidth=1.3, zorder=2)
