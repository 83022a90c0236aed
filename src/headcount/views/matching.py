"""Which heads of two runs attend alike, write alike and do the same job: heat maps with pairs marked, and a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from rich.box import SIMPLE_HEAD
from rich.table import Table

from headcount.heads import HeadId
from headcount.views.attention import KINDS
from headcount.views.style import BLUE, GREY, ORANGE, PALETTE, SEQUENTIAL, Page

if TYPE_CHECKING:
    from headcount.analysis.matching import KindMatch, Matching, Pair

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
    figure.key(*_key(), columns=3)
    return figure


def _draw_overlaps(axes: Axes, kind: KindMatch) -> None:
    axes.imshow(kind.overlaps, vmin=0, vmax=1, cmap=SEQUENTIAL, aspect="auto")
    for y, row in enumerate(kind.overlaps):
        for x, overlap in enumerate(row):
            colour = "white" if overlap > 0.6 else "black"
            axes.text(x, y, f"{overlap:.2f}", ha="center", va="center", fontsize=8, color=colour)
    for y, pair in enumerate(kind.pairs):
        if pair.partner is not None:
            corner, style = (kind.others.index(pair.partner) - 0.47, y - 0.47), "-" if pair.is_alike else ":"
            axes.add_patch(Rectangle(corner, 0.94, 0.94, fill=False, edgecolor=ORANGE, linewidth=2.5, linestyle=style))
    axes.set_xticks(range(len(kind.others)), map(_short, kind.others), fontsize=8, rotation=60)
    axes.set_yticks(range(len(kind.heads)), map(_short, kind.heads), fontsize=8)
    axes.set_title(f"{KINDS[kind.stack, kind.kind].capitalize()}: attention shared", fontsize=9)


def _draw_measures(axes: Axes, kind: KindMatch, error_rate: float) -> None:
    """Beside the rows of the heat map, in three lanes."""
    for y, pair in enumerate(kind.pairs):
        if pair.attention is None or pair.outputs is None:
            continue
        for marker, lane, found in (("o", y - 0.27, pair.attention), ("s", y, pair.outputs)):
            _draw_chance(axes, lane, max(found.untrained, found.relabelled))
            _mark(axes, marker, found.value, lane, is_filled=found.p <= error_rate)
        restored = pair.transplant.restored if pair.transplant else None
        if restored is not None:
            _draw_chance(axes, y + 0.27, restored.untrained)
            axes.plot([restored.low, restored.high], [y + 0.27] * 2, color=COLOURS["^"])
            _mark(axes, "^", restored.share, y + 0.27, is_filled=restored.p <= error_rate)
    axes.set_xlim(-0.06, 1.06)  # a partner that restores less than nothing is beyond the edge, and in the table
    axes.set_ylim(len(kind.heads) - 0.5, -0.5)
    axes.set_yticks(range(len(kind.pairs)), [_partner(pair) for pair in kind.pairs], fontsize=8)
    axes.yaxis.tick_right()
    axes.grid(axis="x", alpha=0.3)
    axes.set_title("each head with its partner", fontsize=9)


def _draw_chance(axes: Axes, y: float, value: float) -> None:
    axes.plot([0, max(value, 0)], [y, y], color=GREY, linewidth=4, alpha=0.3, solid_capstyle="butt")


def _mark(axes: Axes, marker: str, x: float, y: float, *, is_filled: bool) -> None:
    colour = COLOURS[marker]
    axes.plot(x, y, marker, color=colour, markersize=5, markerfacecolor=colour if is_filled else "white")


def _key() -> tuple[list[Artist], list[str]]:
    """What the marks beside the heat maps are."""
    handles: list[Artist] = [Line2D([], [], marker=each, color=COLOURS[each], linestyle="") for each in COLOURS]
    handles[-1] = Line2D([], [], marker="^", color=COLOURS["^"])
    handles.append(Line2D([], [], color=GREY, linewidth=4, alpha=0.3))
    handles.append(Line2D([], [], marker="o", color=BLUE, markerfacecolor="white", linestyle=""))
    names = ["attention: overlap", "outputs: CKA", "effect restored by the partner, 95 % interval"]
    return handles, [*names, "up to here by chance", "hollow: not beyond chance"]


def match_table(result: Matching) -> Table:
    """Each head with its partner: attention, outputs, transplant, each with its p, and what they come to."""
    what = f"overlap ± standard error over {result.n:,} examples; p corrected over heads"
    title = f"{result.name} beside {result.other}: {what}"
    caption = f"{result.words}\n{NOTE}{_tried_on(result)}"
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left", box=SIMPLE_HEAD)
    for name in ("head", "partner"):
        table.add_column(name)
    for name in ("overlap", "by chance", "p", "CKA", "by chance", "p", "restored", "by chance", "by others"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for pair in (pair for kind in result.kinds for pair in kind.pairs):
        table.add_row(_short(pair.head), _partner(pair), *_likeness(pair), *_restored(pair), pair.verdict)
    return table


def _tried_on(result: Matching) -> str:
    """What transplants rest on."""
    found = next((pair.transplant for kind in result.kinds for pair in kind.pairs if pair.transplant), None)
    return f". Restored: on {found.n:,} examples, about means over {found.n_mean:,} inputs" if found else ""


def _likeness(pair: Pair) -> tuple[str, ...]:
    if pair.attention is None or pair.outputs is None:
        return ("",) * 6
    shared, written = pair.attention, pair.outputs
    return (
        f"{shared.value:.3f} ± {shared.se:.3f}",
        f"≤ {max(shared.untrained, shared.relabelled):.3f}",
        f"{shared.p:.2g}",
        f"{written.value:.3f}",
        f"≤ {max(written.untrained, written.relabelled):.3f}",
        f"{written.p:.2g}",
    )


def _restored(pair: Pair) -> tuple[str, str, str]:
    """By the partner, by the best of the untrained stand-ins, and by the best other head of the other run."""
    if pair.transplant is None:
        return "", "", ""
    if (found := pair.transplant.restored) is None:
        return "nothing to restore", "", ""
    others = "" if found.others is None else f"≤ {found.others:.2f}"
    return f"{found.share:.2f} [{found.low:.2f}, {found.high:.2f}]", f"≤ {found.untrained:.2f}", others


def _partner(pair: Pair) -> str:
    return "none" if pair.partner is None else _short(pair.partner)


def _short(head: str) -> str:
    return HeadId.parse(head).short
