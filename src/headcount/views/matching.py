"""Which heads of two runs attend alike, write alike and do the same job: heat maps with pairs marked, and a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from rich.box import SIMPLE_HEAD
from rich.table import Table

from headcount.heads import HeadId
from headcount.views.attention import KINDS, write_cells
from headcount.views.style import BLUE, GREY, ORANGE, PALETTE, SEQUENTIAL, Page

if TYPE_CHECKING:
    from headcount.analysis.matching import KindMatch, Likeness, Matching, Pair

CELL = 0.52
"""Inches of a cell."""
NOTE = (
    "by chance: what 95 of 100 best pairings with untrained or relabelled models stay below; of what is restored, the "
    "most with untrained ones. By others: the most with another head of the other run"
)
COLOURS = {"o": BLUE, "s": ORANGE, "^": PALETTE[2]}
"""By marker: attention, outputs, and what was restored."""


def draw_matching(result: Matching) -> Figure:
    """A row for each kind of site: overlaps with the pairs framed; beside it, each pair's measures and chance's."""
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
        "Which heads attend alike? Frames: the best pairing, broken where chance pairs heads as well",
        f"down: {result.name}; across: {result.other} (n = {result.n:,}: {result.data})",
        result.words,
        size=10,
    )
    key = {
        "attention: overlap": Line2D([], [], marker="o", color=COLOURS["o"], linestyle=""),
        "outputs: CKA": Line2D([], [], marker="s", color=COLOURS["s"], linestyle=""),
        "effect restored by the partner, 95 % interval": Line2D([], [], marker="^", color=COLOURS["^"]),
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
    """Beside the rows of the heat map, in three lanes."""

    def draw(marker: str, y: float, value: float, chance: float, p: float, *interval: float) -> None:
        colour = COLOURS[marker]
        axes.plot([0, max(chance, 0)], [y, y], color=GREY, linewidth=4, alpha=0.3, solid_capstyle="butt")
        if interval:
            axes.plot(interval, [y, y], color=colour)
        axes.plot(value, y, marker, color=colour, markersize=5, markerfacecolor=colour if p <= error_rate else "white")

    for y, pair in enumerate(kind.pairs):
        for marker, lane, found in (("o", y - 0.27, pair.attention), ("s", y, pair.outputs)):
            if found is not None:
                draw(marker, lane, found.value, max(found.untrained, found.relabelled), found.p)
        if pair.transplant and (restored := pair.transplant.restored):
            draw("^", y + 0.27, restored.share, restored.untrained, restored.p, restored.low, restored.high)
    axes.set_xlim(-0.06, 1.06)  # a partner that restores less than nothing is beyond the edge, and in the table
    axes.set_ylim(len(kind.heads) - 0.5, -0.5)
    axes.set_yticks(range(len(kind.pairs)), [_short(pair.partner) for pair in kind.pairs], fontsize=8)
    axes.yaxis.tick_right()
    axes.grid(axis="x", alpha=0.3)
    axes.set_title("each head with its partner", fontsize=9)


def match_table(result: Matching) -> Table:
    """Each head with its partner: attention, outputs, transplant, each with its p, and what they come to."""
    what = f"overlap ± standard error over {result.n:,} examples; p corrected over heads"
    title = f"{result.name} beside {result.other}: {what}"
    pairs = [pair for kind in result.kinds for pair in kind.pairs]
    moved = next((pair.transplant for pair in pairs if pair.transplant), None)
    on = f". Restored: on {moved.n:,} examples, about means over {moved.n_mean:,} inputs" if moved else ""
    caption = f"{result.words}\n{NOTE}{on}"
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left", box=SIMPLE_HEAD)
    for name in ("head", "partner"):
        table.add_column(name)
    for name in ("overlap", "by chance", "p", "CKA", "by chance", "p", "restored", "by chance", "by others"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for pair in pairs:
        cells = (*_likeness(pair.attention), *_likeness(pair.outputs), *_restored(pair))
        table.add_row(_short(pair.head), _short(pair.partner), *cells, pair.verdict)
    return table


def _likeness(found: Likeness | None) -> tuple[str, str, str]:
    """With an error, where there is one; by chance; and its p."""
    if found is None:
        return "", "", ""
    error = "" if found.se is None else f" ± {found.se:.3f}"
    return f"{found.value:.3f}{error}", f"≤ {max(found.untrained, found.relabelled):.3f}", f"{found.p:.2g}"


def _restored(pair: Pair) -> tuple[str, str, str]:
    """By the partner, by the best of the untrained models, and by the best other head of the other run."""
    if pair.transplant is None:
        return "", "", ""
    if (found := pair.transplant.restored) is None:
        return "nothing to restore", "", ""
    others = "" if found.others is None else f"≤ {found.others:.2f}"
    return f"{found.share:.2f} [{found.low:.2f}, {found.high:.2f}]", f"≤ {found.untrained:.2f}", others


def _short(head: str | None) -> str:
    return "none" if head is None else HeadId.parse(head).short
