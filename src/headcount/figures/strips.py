"""Draw strips: one row per variant or attention block, with a mark for every value, the median and an interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from headcount.figures.style import GREY, PALETTE, Page, plain

ROW = 0.3
"""Height of one row, in inches."""
MARKERS = "os^DvP*X"
N_BINS = 90
"""Number of bins of the axis; marks of values in the same bin are drawn above each other."""
MOST_LETTERS = 44
"""Largest number of letters of the name of a row."""
EXPLANATION = "Each mark is one run; the black line is the median, the grey bar the 95 % CI of the mean"


@dataclass(frozen=True)
class Strip:
    """One row of a figure: a name, a mark for each value, and a text at its right end."""

    name: str
    values: tuple[float, ...]
    low: float | None = None
    high: float | None = None
    """`low` and `high` are the ends of the 95 % CI of the mean; None without an interval."""
    text: str = ""
    look: int = 0
    """Index of the colour and marker of the row."""

    @property
    def median(self) -> float:
        """The median of the row's values."""
        return float(np.median(self.values))


@dataclass(frozen=True)
class Panel:
    """Rows of a figure that share one title and one axis."""

    title: str
    strips: tuple[Strip, ...]


def strip_figure(panels: Sequence[Panel], label: str, *, width: float = 7.0, row: float = ROW, ends: str = "") -> Page:
    """Draw panels of rows below each other, on one horizontal axis; `ends` is the title of the texts at the right."""
    heights = [max(len(panel.strips), 1) for panel in panels]
    figure = Page(
        width, sum(row * n + (0.35 if panel.title else 0.1) for n, panel in zip(heights, panels, strict=True))
    )
    figure.set_figheight(figure.get_figheight() + 0.35)
    grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    extent = _extent(panels)
    for i, (axes, panel) in enumerate(zip(grid, panels, strict=True)):
        add_panel(axes, panel, extent)
        if ends and i == 0 and any(strip.text for strip in panel.strips):
            axes.annotate(
                plain(ends), (1, 1), (6, 2), "axes fraction", "offset points", fontsize=8, color=GREY, va="bottom"
            )
    grid[-1].set_xlabel(plain(label))
    return figure


def add_panel(axes: Axes, panel: Panel, extent: tuple[float, float], size: float = 8.5) -> None:
    """Draw the rows of one panel; `extent` is the smallest and the largest value of the horizontal axis."""
    n = len(panel.strips)
    for place, strip in enumerate(panel.strips):
        if place % 2:
            axes.axhspan(place - 0.5, place + 0.5, color="#f4f4f4", zorder=0, linewidth=0)
        add_strip(axes, strip, place, extent)
        if strip.text:
            axes.annotate(
                plain(strip.text),
                (1, place),
                (6, 0),
                ("axes fraction", "data"),
                "offset points",
                fontsize=size,
                va="center",
            )
    axes.set_yticks(range(n), [plain(strip.name, MOST_LETTERS) for strip in panel.strips], fontsize=size)
    axes.set_ylim(n - 0.5, -0.5)
    margin = 0.03 * (extent[1] - extent[0]) or 0.5
    axes.set_xlim(extent[0] - margin, extent[1] + margin)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    if panel.title:
        axes.set_title(plain(panel.title, 90), fontsize=9, loc="left")


def add_strip(axes: Axes, strip: Strip, place: float, extent: tuple[float, float]) -> None:
    """Draw one row: every value as a mark, the median as a black line, the interval of the mean as a grey bar."""
    colour = PALETTE[strip.look % len(PALETTE)]
    offsets = [place - 0.06 + step for step in _apart(strip.values, extent)]
    marker = MARKERS[strip.look % len(MARKERS)]
    axes.scatter(strip.values, offsets, marker=marker, color=colour, alpha=0.75, s=18, linewidths=0, zorder=3)
    axes.plot([strip.median] * 2, [place - 0.34, place + 0.22], color="#000000", linewidth=1.6, zorder=4)
    if strip.low is not None and strip.high is not None:
        axes.plot([strip.low, strip.high], [place + 0.32] * 2, color=GREY, linewidth=2.5, solid_capstyle="butt")


def _apart(values: Sequence[float], extent: tuple[float, float]) -> list[float]:
    """Return a vertical offset for each value, so that marks of equal and close values do not hide each other."""
    width = (extent[1] - extent[0]) / N_BINS or 1.0
    n_before: dict[int, int] = {}
    offsets = []
    for value in values:
        key = round((value - extent[0]) / width)
        n = n_before[key] = n_before.get(key, -1) + 1
        offsets.append(0.09 * min((n + 1) // 2, 3) * (-1) ** n)
    return offsets


def _extent(panels: Sequence[Panel]) -> tuple[float, float]:
    ends = [
        end
        for panel in panels
        for strip in panel.strips
        for end in (*strip.values, strip.low, strip.high)
        if end is not None
    ]
    return (min(ends), max(ends)) if ends else (0.0, 1.0)
