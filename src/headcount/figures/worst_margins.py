"""Draw the smallest margin of each class over all sequences of a length, against the length."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from headcount.figures.style import BLUE, GREY, ORANGE, Page

if TYPE_CHECKING:
    from headcount.analysis.worst_margins import WorstMargins


def draw_worst_margins(result: WorstMargins) -> Figure:
    """Draw the smallest margin by length with a line per class; crosses mark sequences that are answered wrong."""
    figure = Page(7, 4)
    axes = figure.subplots()
    axes.axvspan(*result.trained, color=GREY, alpha=0.15, linewidth=0)
    axes.axhline(0, color=GREY, linewidth=1)
    first, last = result.classes
    for label, part, colour, marker in ((last, "last", BLUE, "o"), (first, "first", ORANGE, "s")):
        points = [(row.length, case) for row in result.rows if (case := getattr(row, part))]
        axes.plot([n for n, _ in points], [case.margin for _, case in points], color=colour, linewidth=1.3)
        for is_right, shape, name in ((True, marker, "answered right"), (False, "x", "answered wrong")):
            shown = [(n, case.margin) for n, case in points if case.is_right == is_right]
            if shown:
                axes.plot(*zip(*shown, strict=True), shape, color=colour, markersize=5, label=f"{label}, {name}")
    axes.set_xscale("log", base=2)
    largest = max((abs(case.margin) for row in result.rows for case in row.cases), default=0.0)
    axes.set_yscale("symlog", linthresh=min(1.0, largest / 10) or 1.0)  # margins shrink with the length
    axes.margins(y=0.1)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    axes.set(xlabel=f"length of the {result.example}", ylabel="smallest margin (logits)")
    axes.grid(alpha=0.25)
    figure.key(*axes.get_legend_handles_labels(), columns=2)
    title = f"{result.name}: smallest margin over all {result.example}s of each length"
    figure.headline(f"{title} (below 0: wrong; shaded: training lengths)")
    return figure
