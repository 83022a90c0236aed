"""Draw the route of an event such as the carry through a model: which residual streams hold it, which heads move it.

A way of the event, such as `1s to 10s`, leads from the place where it arises to a place of the answer that needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from headcount.figures.style import DARK, GREY, LIGHT, ORANGE, SEQUENTIAL, Page, plain

if TYPE_CHECKING:
    from matplotlib.colors import Colormap

    from headcount.analysis.routes import PatchShare, Routes, Way

SHOWN = 0.05
"""Smallest share of the logit gap that is written into a cell of the figure."""
HELD = 0.2
"""Smallest share of the logit gap in two cells that an arrow connects."""
NAMED = 0.3
"""Smallest share of the logit gap from which the label of an arrow names the head; below it, it counts the heads."""
WIDTH, HEIGHT, GAP = 0.92, 0.5, 1.0
"""Width and height of a cell, and distance between two rows of cells."""
TOP = -1.9
"""Vertical place of the upper edge of a panel, whose rows of cells begin at 0; its titles are between the two."""
TITLES = 1.9
"""Width of the titles of the rows, in units of one cell."""
STACKS = {"E": "encoder", "D": "decoder", "L": ""}


class Row(NamedTuple):
    """One row of cells of the figure: a residual stream, with the share of the logit gap that it moves by position."""

    stream: str
    title: str
    shares: dict[str, float]


def draw_routes(results: Sequence[Routes], titles: Sequence[str] = (), ways: Sequence[str] = ()) -> Figure:
    """Draw the routes of an event, with a column for each model and a row of panels for each way, such as `1s to 10s`.

    By default, these are a shortest way of the event, and the longest way that was measured for all models.
    """
    titles = titles or [result.name for result in results]
    ways = ways or _typical_ways(results)
    n_places = max(len(_places(result, ways)) for result in results)
    n_rows = max(len(_rows(result, way)) for result in results for way in ways)
    figure = Page(1.9 + len(results) * (0.62 * n_places + 0.5), len(ways) * (0.56 * n_rows + 1.3))
    widths = [len(_places(result, ways)) + (TITLES if j == 0 else 0) for j, result in enumerate(results)]
    panels = figure.subplots(len(ways), len(results), squeeze=False, width_ratios=widths)
    for i, way in enumerate(ways):
        for j, result in enumerate(results):
            title = plain(titles[j], 40) if i == 0 else ""
            _draw_way(panels[i][j], result, way, title, _places(result, ways), is_first=j == 0)
    event = results[0].event
    figure.headline(f"Where the {event} travels", size=13)
    n = sorted({way.n for result in results for way in result.ways if way.name in ways})
    counts = f"{n[0]:,}" if n[0] == n[-1] else f"{n[0]:,} to {n[-1]:,}"
    figure.caption(
        f"Read from top to bottom: blue cells show where the {event} is. An orange arrow names the attention head that "
        f"moves the largest share of it (E0H2: encoder, layer 0, head 2; D: decoder self-attention; X: "
        f"cross-attention); an orange arrow straight down means that the head writes it again at the same position, a "
        f"grey arrow that the {event} stays there. A number in a cell is the share of the logit gap between the two "
        "answers that moves if the residual stream at this position alone is patched in from the other example of the "
        "pair (empty: under 5 %); a number at an arrow is the share if the output of this head alone is patched. "
        "Shares of several heads need not add up to that of a cell. In the decoder, a column is the place of the "
        f"answer predicted there; its input is the token just written, which may show the {event} already. The answer "
        f"is read at the framed cell. n = {counts} pairs of examples with and without the {event}. Each model is one "
        "training run: another run may use another route."
    )
    return figure


def _typical_ways(results: Sequence[Routes]) -> list[str]:
    """Return the names of a shortest way of the event, such as `1s to 10s`, and of the longest that all models have."""
    ways = [way for way in results[0].ways if way.n and all(way.name in _measured(each) for each in results)]
    if not ways:
        return [way.name for way in results[0].ways[:1]]
    shortest, longest = min(ways, key=lambda way: way.chain), max(ways, key=lambda way: way.chain)
    return list(dict.fromkeys([shortest.name, longest.name]))


def _measured(result: Routes) -> set[str]:
    return {each.way for each in result.heads}


def _places(result: Routes, ways: Sequence[str]) -> list[str]:
    """Return the columns of the figure: other positions with a visible share, then the places of the answer."""
    extra = [
        each.position
        for each in result.streams
        if each.way in ways and each.position and each.position not in result.places and each.moved.share >= SHOWN
    ]
    return [*dict.fromkeys(extra), *result.places]


def _rows(result: Routes, way: str) -> list[Row]:
    """Return the rows of the figure for one way, such as `1s to 10s`: residual streams from input to last layer."""
    rows: dict[str, Row] = {}
    for each in result.streams:
        if each.way == way and each.position:
            row = rows.setdefault(each.what, Row(each.what, _row_title(each.what), {}))
            row.shares[each.position] = each.moved.share
    return list(rows.values())


def _row_title(stream: str) -> str:
    r"""Return the name of a residual stream in words, as the title of its row in the figure.

    >>> _row_title("E0.input"), _row_title("D1.stream"), _row_title("L0.stream")
    ('encoder input', 'after decoder\nlayer 1', 'after layer 0')
    """
    place, kind = stream.split(".")
    stack = STACKS[place[0]]
    if kind == "input":
        return f"{stack} input".strip()
    return f"after {stack}\nlayer {place[1:]}" if stack else f"after layer {place[1:]}"


def _draw_way(axes: Axes, result: Routes, name: str, title: str, places: list[str], *, is_first: bool) -> None:
    axes.axis("off")
    rows = _rows(result, name)
    way = next((each for each in result.ways if each.name == name), None)
    if way is None or not rows:
        axes.text(0.5, 0.5, "not measured", ha="center", va="center", color=GREY, transform=axes.transAxes)
        return
    axes.set_xlim(-0.6 - (TITLES if is_first else 0), len(places) - 0.3)
    axes.set_ylim(len(rows) - 0.4, TOP)
    colours = colormaps[SEQUENTIAL]
    for y, row in enumerate(rows):
        for x, place in enumerate(places):
            share = row.shares.get(place)
            if share is not None:
                _draw_cell(axes, x, y, share, colours, is_framed=place == way.read and y == len(rows) - 1)
        if is_first:
            axes.text(-0.62, y * GAP, row.title, ha="right", va="center", fontsize=8.5)
        if y and rows[y - 1].stream[0] != row.stream[0]:
            axes.axhline(y - 0.5, xmin=0.02, color=GREY, linewidth=0.8, linestyle="--")
    for x, place in enumerate(places):
        axes.text(x, -0.45, place, ha="center", va="bottom", fontsize=8.5)
    _draw_arrows(axes, result, way, rows, places)
    middle = (len(places) - 1) / 2
    if title:
        axes.text(middle, TOP, title, ha="center", va="top", fontsize=10, fontweight="bold")
    words = f"{result.event} from the {way.source} into the {way.read}", f"{way.examples[0]} and {way.examples[1]}"
    axes.text(middle, TOP + 0.45, plain(words[0], 50), ha="center", va="top", fontsize=9, color=ORANGE)
    axes.text(middle, TOP + 0.8, plain(words[1], 60), ha="center", va="top", fontsize=8, color=GREY)


def _draw_cell(axes: Axes, x: int, y: int, share: float, colours: Colormap, *, is_framed: bool) -> None:
    is_shown = share >= SHOWN
    face = colours(min(1.0, share)) if is_shown else "#f5f5f5"
    edge, line = (ORANGE, 2.0) if is_framed else ("#cccccc", 0.8)
    corner = x - WIDTH / 2, y * GAP - HEIGHT / 2
    axes.add_patch(Rectangle(corner, WIDTH, HEIGHT, facecolor=face, edgecolor=edge, linewidth=line))
    if is_shown:
        colour = LIGHT if share > 0.55 else DARK
        axes.text(x, y * GAP, f"{100 * share:.0f} %", ha="center", va="center", fontsize=8.5, color=colour)


def _draw_arrows(axes: Axes, result: Routes, way: Way, rows: Sequence[Row], places: Sequence[str]) -> None:
    """Draw an arrow from the cell with the largest share in each row to that of the next row.

    Its label names the heads between the two rows that move the event. The arrow is thin and grey, without a label, if
    the event stays at its position and no head moves much of it.
    """
    held: tuple[int, int] | None = None
    for y, row in enumerate(rows):
        place, share = max(row.shares.items(), key=lambda item: item[1])
        if share < HELD or place not in places:
            continue
        x = places.index(place)
        if held is not None:
            movers = _movers(result, way, row.stream)
            is_moved = x != held[0] or rows[held[1]].stream[0] != row.stream[0]
            is_named = bool(movers) and (is_moved or movers[0].moved.share >= NAMED)
            colour, width = (ORANGE, 1.6) if is_named or is_moved else (GREY, 0.8)
            start, end = (held[0], held[1] * GAP + HEIGHT / 2), (x, y * GAP - HEIGHT / 2)
            axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=10, color=colour, lw=width))
            if is_named:
                _label_arrow(axes, _label(movers), start, end, len(places))
        held = x, y


def _label_arrow(axes: Axes, label: str, start: tuple[float, float], end: tuple[float, float], n_places: int) -> None:
    """Write the label of an arrow beside it, in the gap above the row that the arrow leads to, where there is room."""
    is_left = end[0] > n_places - 1.6 and start[0] > n_places - 1.6
    y = end[1] - (GAP - HEIGHT) / 2
    slope = (end[0] - start[0]) / (end[1] - start[1])
    x = end[0] + slope * (y - end[1]) + (-0.12 if is_left else 0.12 + 0.09 * abs(slope))
    look: dict[str, Any] = {"ha": "right" if is_left else "left", "va": "center", "fontsize": 7.5, "color": ORANGE}
    look["bbox"] = {"facecolor": LIGHT, "edgecolor": "none", "pad": 0.8, "alpha": 0.85}
    axes.text(x, y, label, fontweight="bold", **look)


def _movers(result: Routes, way: Way, stream: str) -> list[PatchShare]:
    """Return the heads that move a part of the event (a carry) in the layer before a residual stream."""
    layer = stream.partition(".")[0]
    blocks = [layer, f"X{layer[1:]}"] if layer[0] == "D" else [layer]
    heads = [each for each in result.heads if each.way == way.name and each.what.partition("H")[0] in blocks]
    movers = [each for each in heads if each.moved.share >= NAMED / 3 and each.moved.low > 0]
    return [] if stream.endswith(".input") else sorted(movers, key=lambda each: -each.moved.share)


def _label(movers: Sequence[PatchShare]) -> str:
    """Return the label of an arrow: the head with the largest share or, if all are small, the number of heads."""
    if len(movers) == 1 or movers[0].moved.share >= NAMED:
        return _named(movers[0])
    return f"{len(movers)} heads of {_blocks(movers)},\neach {100 * movers[0].moved.share:.0f} % or less"


def _named(each: PatchShare) -> str:
    return f"{each.what} {100 * each.moved.share:.0f} %"


def _blocks(movers: Sequence[PatchShare]) -> str:
    return ", ".join(dict.fromkeys(each.what.partition("H")[0] for each in movers))
