"""How do variants of a model compare over seeds? One strip of single values for each variant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headcount.figures.style import GREY, PALETTE, Page, plain

if TYPE_CHECKING:
    from headcount.studies.summary import SeedSummary, VariantSummary

MOST = 12
"""Largest number of subjects (heads, lengths, ...) that one figure shows, each in its own panel."""
MARKERS = "os^DvP*X"
SCALED = {"share": (100, "%"), "points": (100, "points")}


def draw_comparison(summary: SeedSummary, measure: str) -> Figure:
    """Draw every value of a measure by variant, with the median as a line and the 95 % CI of the mean as a bar."""
    subjects = list(dict.fromkeys(each.subject for each in summary.variants if each.measure == measure))
    shown = subjects[:MOST]
    n_variants = len(summary.names)
    figure = Page(7.0, len(shown) * (0.7 + 0.34 * n_variants))
    panels = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    unit = ""
    for axes, subject in zip(panels, shown, strict=True):
        for each in summary.of(measure, subject):
            place = summary.names.index(each.variant)
            unit = each.unit
            _draw_strip(axes, each, place)
        axes.set_yticks(range(n_variants), [plain(name, 32) for name in summary.names])
        axes.set_ylim(n_variants - 0.5, -0.5)
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        if subject:
            axes.set_title(plain(subject, 60), fontsize=9, loc="left")
    panels[-1].set_xlabel(plain(f"{measure} ({SCALED.get(unit, (1, unit))[1]})" if unit else measure))
    by = f" by {', '.join(summary.by)}" if summary.by else " over seeds"
    figure.headline(f"{measure}{by}")
    left_out = f" {len(subjects) - MOST} more are in the table." if len(subjects) > MOST else ""
    figure.caption(f"Each mark is one run; | is the median, the bar the 95 % CI of the mean.{left_out}")
    return figure


def _draw_strip(axes: Axes, each: VariantSummary, place: int) -> None:
    """Draw the runs of one variant, with equal values beside each other, above the interval of their mean."""
    scale, colour = SCALED.get(each.unit, (1, ""))[0], PALETTE[place % len(PALETTE)]
    n_before: dict[float, int] = {}
    offsets = []
    for value in each.values:
        n = n_before[value] = n_before.get(value, -1) + 1
        offsets.append(place - 0.12 + 0.07 * min(n, 4) * (-1) ** n)
    values = [scale * value for value in each.values]
    marker = MARKERS[place % len(MARKERS)]
    axes.scatter(values, offsets, marker=marker, color=colour, alpha=0.75, s=26, zorder=3)
    middle = scale * each.median
    axes.plot([middle, middle], [place - 0.3, place + 0.1], color="#000000", linewidth=1.6, zorder=4)
    if each.low is not None and each.high is not None:
        ends = [scale * each.low, scale * each.high]
        axes.plot(ends, [place + 0.24] * 2, color=GREY, linewidth=3, solid_capstyle="butt")
        axes.plot([scale * each.mean], [place + 0.24], marker="|", color="#000000", markersize=7)
