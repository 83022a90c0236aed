"""Small figures for the first screen of a report: horizontal bars, each with its value as text beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from headcount.figures.style import BLUE, GREY, ORANGE, Page, plain, width_of

WIDTH, ROW = 3.05, 0.235
"""Width of a card's figure and height of one of its bars, in inches; a page shows figures in this size."""
MOST_ROWS = 7
MOST_LETTERS = 34
"""Largest number of letters of the label below a picture."""
SIZE = 9.0
"""Size of all text in these figures, in points; 9 points are 12 pixels on a page."""


@dataclass(frozen=True)
class Bar:
    """One bar of a card's figure: a name, a value (the length of the bar), a text beside it, and an interval."""

    name: str
    value: float
    text: str
    low: float | None = None
    high: float | None = None
    is_marked: bool = False
    """Whether the bar stands out, in orange instead of blue."""

    @property
    def end(self) -> float:
        """The largest value of the bar and its interval, which is where the text begins."""
        return max(self.value, self.high or 0.0, 0.0)


def draw_bars(bars: Sequence[Bar], label: str, *, is_log: bool = False) -> Figure:
    """Draw at most seven horizontal bars, each with a text at its end; with `is_log`, on a logarithmic axis from 1."""
    bars = bars[:MOST_ROWS]
    figure = Page(WIDTH, ROW * len(bars) + 0.62)
    figure.set_figwidth(WIDTH)
    axes, start = figure.subplots(), 1.0 if is_log else 0.0
    axes.set_xscale("log" if is_log else "linear")
    names = [plain(bar.name, 22) for bar in bars]
    room = WIDTH - max(width_of(name, SIZE) for name in names) - 0.35
    limit = max(_limit(bar, room, is_log=is_log) for bar in bars)
    for i, bar in enumerate(bars):
        axes.barh(i, max(bar.value, start) - start, left=start, height=0.62, color=ORANGE if bar.is_marked else BLUE)
        if bar.low is not None and bar.high is not None:
            axes.plot([max(bar.low, start), bar.high], [i, i], color=GREY, linewidth=1.5)
        axes.annotate(
            plain(bar.text), (max(bar.end, start), i), (4, 0), textcoords="offset points", va="center", fontsize=SIZE
        )
    axes.set_yticks(range(len(bars)), names, fontsize=SIZE)
    axes.set_ylim(len(bars) - 0.45, -0.55)
    axes.set_xlim(start, limit)
    if is_log:
        longest = max(bar.end for bar in bars)
        ticks = [10**i for i in range(0, 8, 2 if longest >= 1000 else 1) if 10**i <= longest]
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.minorticks_off()
    else:
        axes.locator_params(axis="x", nbins=4)
    axes.set_xlabel(plain(label, MOST_LETTERS), fontsize=SIZE, loc="right")
    axes.tick_params(axis="x", labelsize=SIZE)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return figure


def draw_verdicts(verdicts: Sequence[Bar]) -> Figure:
    """Draw one line per model: its name, a circle (or a cross if the model is at fault), and its verdict in words."""
    figure = Page(WIDTH, ROW * len(verdicts[:MOST_ROWS]) + 0.15)
    figure.set_figwidth(WIDTH)
    axes = figure.subplots()
    for i, each in enumerate(verdicts[:MOST_ROWS]):
        axes.plot(0, i, "X" if each.is_marked else "o", color=ORANGE if each.is_marked else BLUE, markersize=7)
        axes.annotate(plain(each.text), (0, i), (9, 0), textcoords="offset points", va="center", fontsize=SIZE)
    axes.set_yticks(range(len(verdicts[:MOST_ROWS])), [plain(each.name, 18) for each in verdicts[:MOST_ROWS]])
    axes.tick_params(axis="y", length=0, labelsize=SIZE)
    axes.set(ylim=(len(verdicts[:MOST_ROWS]) - 0.45, -0.55), xlim=(-0.06, 1), xticks=[])
    axes.spines[:].set_visible(False)
    return figure


def _limit(bar: Bar, room: float, *, is_log: bool) -> float:
    """Return the largest value of the axis for which a bar and the text at its end fit into `room` inches."""
    share = max(0.35, 1 - (width_of(plain(bar.text), SIZE) + 0.15) / room)
    return float(max(bar.end, 10.0) ** (1 / share)) if is_log else bar.end / share or 1.0
