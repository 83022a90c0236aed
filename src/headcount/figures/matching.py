"""Draw which heads of two models match: heat maps of their overlap, with frames around the matched pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from headcount.figures.attention import KINDS, write_cells
from headcount.figures.style import BLUE, GREY, ORANGE, PALETTE, SEQUENTIAL, Page
from headcount.heads import HeadId

if TYPE_CHECKING:
    from headcount.analysis.matching import Matching
    from headcount.analysis.matching_verdicts import KindMatch

CELL = 0.52
"""Width of a cell of the heat map, in inches."""
COLOURS = {"o": BLUE, "s": ORANGE, "^": PALETTE[2]}
"""Maps a marker to its colour: for the similarity of attention, the similarity of outputs, and the share restored."""


def draw_matching(result: Matching) -> Figure:
    """Draw heat maps of the overlap of two models' heads, with the best pairs framed, and compare pairs with chance."""
    widths = max(max(CELL * len(kind.others) for kind in result.kinds), 2.9), 3.4
    heights = [max(CELL * len(kind.heads), 1.6) for kind in result.kinds]
    figure = Page(sum(widths) + 2.2, sum(heights) + 0.9 * len(heights) + 0.4)
    panels = figure.subplots(len(heights), 2, squeeze=False, width_ratios=widths, height_ratios=heights)
    for (overlaps, measures), kind in zip(panels, result.kinds, strict=True):
        _draw_overlaps(overlaps, kind)
        _draw_measures(measures, kind, result.error_rate)
    panels[-1][0].set_xlabel("head of the other run")
    panels[-1][1].set_xlabel("overlap, CKA, share restored")
    figure.headline(
        "Which heads attend alike? Frames: the best pairing; dotted where it is not beyond chance",
        f"down: {result.name}; across: {result.other} (n = {result.n:,}: {result.data})",
        result.words,
        size=10,
    )
    key = {
        "attention: overlap": Line2D([], [], marker="o", color=COLOURS["o"], linestyle=""),
        "outputs: CKA": Line2D([], [], marker="s", color=COLOURS["s"], linestyle=""),
        "effect restored by the partner, 95 % CI": Line2D([], [], marker="^", color=COLOURS["^"]),
        "up to here by chance": Line2D([], [], color=GREY, linewidth=4, alpha=0.3),
        "hollow: not beyond chance": Line2D([], [], marker="o", color=BLUE, markerfacecolor="white", linestyle=""),
    }
    figure.key([*key.values()], [*key], columns=3)
    return figure


def _draw_overlaps(axes: Axes, kind: KindMatch) -> None:
    axes.imshow(kind.overlaps, vmin=0, vmax=1, cmap=SEQUENTIAL, aspect="auto")
    write_cells(axes, kind.overlaps)
    for y, pair in enumerate(kind.pairs):
        if pair.partner is not None:
            corner, style = (kind.others.index(pair.partner) - 0.47, y - 0.47), "-" if pair.is_alike else ":"
            axes.add_patch(Rectangle(corner, 0.94, 0.94, fill=False, edgecolor=ORANGE, linewidth=2.5, linestyle=style))
    axes.set_xticks(range(len(kind.others)), map(_short, kind.others), fontsize=8, rotation=60)
    axes.set_yticks(range(len(kind.heads)), map(_short, kind.heads), fontsize=8)
    axes.set_title(f"{KINDS[kind.stack, kind.kind].capitalize()}: attention shared", fontsize=9)


def _draw_measures(axes: Axes, kind: KindMatch, error_rate: float) -> None:
    """Draw three measures of each pair of heads (overlap, CKA, share restored) beside its row of the heat map."""

    def draw(marker: str, y: float, value: float, chance: float, p: float, *interval: float) -> None:
        colour = COLOURS[marker]
        axes.plot([0, max(chance, 0)], [y, y], color=GREY, linewidth=4, alpha=0.3, solid_capstyle="butt")
        if interval:
            axes.plot(interval, [y, y], color=colour)
        axes.plot(value, y, marker, color=colour, markersize=5, markerfacecolor=colour if p <= error_rate else "white")

    for y, pair in enumerate(kind.pairs):
        for marker, lane, likeness in (("o", y - 0.27, pair.attention), ("s", y, pair.outputs)):
            if likeness is not None:
                draw(marker, lane, likeness.value, max(likeness.untrained, likeness.relabelled), likeness.p)
        if pair.transplant and (restored := pair.transplant.restored):
            draw("^", y + 0.27, restored.share, restored.untrained, restored.p, restored.low, restored.high)
    axes.set_xlim(-0.06, 1.06)  # a partner that restores less than nothing is beyond the edge, and in the table
    axes.set_ylim(len(kind.heads) - 0.5, -0.5)
    axes.set_yticks(range(len(kind.pairs)), [_short(pair.partner) for pair in kind.pairs], fontsize=8)
    axes.yaxis.tick_right()
    axes.grid(axis="x", alpha=0.3)
    axes.set_title("each head with its partner", fontsize=9)


def _short(head: str | None) -> str:
    return "none" if head is None else HeadId.parse(head).short
