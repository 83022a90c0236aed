"""Which heads of two runs do the same job: overlaps as a heat map, the pairs marked, and a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from rich.box import SIMPLE_HEAD
from rich.table import Table

from headcount.heads import HeadId
from headcount.views.attention import KINDS
from headcount.views.style import ORANGE, SEQUENTIAL, Page, wrapped

if TYPE_CHECKING:
    from headcount.analysis.matching import KindMatch, Matching, Pair


def draw_matching(result: Matching) -> Figure:
    """One matrix of overlaps per kind of site; frames mark the pairs, broken ones those that are no match."""
    widths = [max(0.52 * len(kind.others), 2.9) for kind in result.kinds]
    height = max(0.52 * max(len(kind.heads) for kind in result.kinds), 2.0)
    figure = Page(max(sum(widths) + 0.7 * len(widths) + 1.6, 6.5), height + 1.5)
    panels = figure.subplots(1, len(widths), squeeze=False, width_ratios=widths)[0]
    for axes, kind, width in zip(panels, result.kinds, widths, strict=True):
        _draw_overlaps(axes, kind, width)
        axes.set_xlabel("head of the other run")
    panels[0].set_ylabel("head")
    figure.colorbar(panels[0].images[0], ax=panels, label="overlap (attention shared)", shrink=0.7)
    title = "Which heads look alike? Frames: the best pairing, broken where a pair shares no more than any two heads do"
    figure.headline(title, f"down: {result.run}; across: {result.other} (n = {result.n:,}: {result.data})")
    return figure


def _draw_overlaps(axes: Axes, kind: KindMatch, width: float) -> None:
    axes.imshow(kind.overlaps, vmin=0, vmax=1, cmap=SEQUENTIAL)
    for y, row in enumerate(kind.overlaps):
        for x, overlap in enumerate(row):
            colour = "white" if overlap > 0.6 else "black"
            axes.text(x, y, f"{overlap:.2f}", ha="center", va="center", fontsize=8, color=colour)
    for y, pair in enumerate(kind.pairs):
        if pair.partner is not None:
            corner, style = (kind.others.index(pair.partner) - 0.47, y - 0.47), "-" if _is_match(kind, pair) else ":"
            axes.add_patch(Rectangle(corner, 0.94, 0.94, fill=False, edgecolor=ORANGE, linewidth=2.5, linestyle=style))
    axes.set_xticks(range(len(kind.others)), map(_short, kind.others), fontsize=8, rotation=60)
    axes.set_yticks(range(len(kind.heads)), map(_short, kind.heads), fontsize=8)
    means = f"mean of the pairs {kind.matched:.2f}, of any two {kind.arbitrary:.2f}"
    axes.set_title(f"{KINDS[kind.stack, kind.kind].capitalize()}\n{wrapped(means, width, 9)}", fontsize=9)


def match_table(result: Matching) -> Table:
    """Each head with its partner, and what the same index and two arbitrary heads would give."""
    title = f"{result.run} matched with {result.other}: overlap ± standard error over {result.n:,} examples"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for name in ("head", "partner"):
        table.add_column(name)
    for name in ("overlap", "same index", "any two of the kind"):
        table.add_column(name, justify="right")
    for kind in result.kinds:
        for pair in kind.pairs:
            same = "" if pair.same_index is None else f"{pair.same_index:.3f}"
            table.add_row(_short(pair.head), *_partner(kind, pair), same, f"{kind.arbitrary:.3f}")
    return table


def _partner(kind: KindMatch, pair: Pair) -> tuple[str, str]:
    if pair.partner is None or pair.overlap is None:
        return "none", ""
    note = "" if _is_match(kind, pair) else " (left over)"
    return f"{_short(pair.partner)}{note}", f"{pair.overlap:.3f} ± {pair.se:.3f}"


def _is_match(kind: KindMatch, pair: Pair) -> bool:
    return pair.overlap is not None and pair.overlap > kind.arbitrary


def _short(head: str) -> str:
    return HeadId.parse(head).short
