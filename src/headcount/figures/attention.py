"""Draw where heads attend: all heads of one kind of attention, one head large, or one head on several examples.

In figures of a run, every head has its own axes. Models of other people may have many heads, on long texts: their heads
are drawn as one image of whole pixels, because separate axes for 144 heads take 17 s instead of 1 s.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import ArrayLike, NDArray

from headcount.figures import style
from headcount.figures.style import SEQUENTIAL, Page, plain, width_of, wrapped
from headcount.heads import HeadId

if TYPE_CHECKING:
    from headcount.analysis.attention import Attention, Axis, HeadAttention, SiteAttention
    from headcount.analysis.attention_summary import AttentionSummary
    from headcount.analysis.roles import HeadRole
    from headcount.analysis.specialisation import HeadStats

KINDS = {
    ("encoder", "self"): "encoder self-attention",
    ("decoder", "self"): "decoder self-attention",
    ("decoder", "cross"): "decoder cross-attention",
    ("layer", "self"): "self-attention",
}
"""Maps a stack and a kind of attention to their name in figures."""
ACROSS = 3
"""Largest number of examples that a figure shows side by side."""
MOST_LABELS, MOST_NUMBERS = 40, 24
"""An axis names every token up to the first number of tokens; cells show their weights up to the second number."""
LONGEST = 16
"""Largest number of letters of a token that the label of an axis shows."""
DPI = 150
"""Resolution of PNG files in dots per inch. Lengths in pixels refer to it, so that all cells have the same size."""
WIDTH, HEIGHT, CELL, GAP = 1200, 1500, 36, 4
"""Image of all heads, in pixels: its largest width and height, the largest side of a cell, the gap between heads."""
CLOSE, MOST_CLOSE, CLOSE_CELL, LEAST = 1050, 512, 45, 170
"""Image of one head: largest side (pixels), most rows or columns, largest cell and smallest side (pixels)."""
NAME_SIZE, ROOMY = 6, 7.5
"""In points: font size of the tokens beside an image of all heads, and the smallest cell that has room for them."""
LEFT, RIGHT, BELOW, NARROWEST, LOWEST, LINE = 60, 175, 20, 1000, 260, 30
"""In pixels: left, right and lower margin of an image, its smallest width and height, height of a line of text."""
SHADES = 64
"""Number of shades of the colour map. More shades look the same and make files larger."""
TICKS = (0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1)

OfKind = TypeVar("OfKind", "HeadRole", "HeadStats")
"""Type of a result about one head, which has the fields `stack` and `kind`."""
Picture = NDArray[np.floating[Any]]
Tokens = tuple[Sequence[str], Sequence[str]]
"""The tokens of the queries, and the tokens of the keys."""
Panel = tuple[str, Tokens, ArrayLike]
"""The attention of one head on one example: title, tokens (queries, keys) and weights."""


def draw_pages(result: Attention) -> dict[str, Figure]:
    """Return a mapping from each kind of attention, such as `decoder-cross`, to a figure of all heads of this kind."""
    kinds = dict.fromkeys((site.stack, site.kind) for site in result.sites)
    return {"-".join(kind): draw_kind(result, *kind) for kind in kinds}


def draw_kind(result: Attention, stack: str, kind: str) -> Figure:
    """Draw all heads of one kind of attention: as one image for a long text, otherwise with axes for each head."""
    return draw_mosaic(result, stack, kind) if result.axes else draw_page(result, stack, kind)


def draw_heads(result: Attention) -> dict[str, Figure]:
    """Return a mapping from the name of each head to a figure with the heat map of its attention."""
    return {head.head: draw_head(result, site, head) for site in result.sites for head in site.heads}


# --- axes for each head -----------------------------------------------------------------------------------------------


def draw_page(result: Attention, stack: str, kind: str) -> Figure:
    """Draw heat maps of all heads of one kind, a row per layer and a column per head; removed heads leave a gap."""
    sites = result.sites_of(stack, kind)
    columns = sorted({_index(head) for site in sites for head in site.heads})
    lowest = {_index(head): site for site in sites for head in site.heads}
    size = max(2.4, min(0.15 * len(sites[0].keys), 5.0))
    words = max(width_of(plain(word, LONGEST), 8) for site in sites for word in site.queries)
    figure = Page(size * len(columns) + 1.2 + words, (size + 0.1) * len(sites) + 0.8)
    grid = figure.subplots(len(sites), len(columns), squeeze=False)
    for row, site in zip(grid, sites, strict=True):
        heads = {_index(head): head for head in site.heads}
        for axes, index in zip(row, columns, strict=True):
            if index not in heads:
                axes.set_axis_off()
                continue
            head, inches = heads[index], (size - 0.3, size - 0.5)
            image = _heat_map(axes, head.weights, (site.queries, site.keys), 8, inches, vmin=0, vmax=1)
            axes.set_title(f"{head.head}  ({head.short})", fontsize=9)
            # Words only at the first head of a row and at the last of a column.
            is_first, is_last = index == min(heads), lowest[index] is site
            axes.tick_params(labelleft=is_first, labelbottom=is_last)
            axes.set_ylabel(_query_label(site) if is_first else "")
            axes.set_xlabel("key (attended to)" if is_last else "")
    figure.colorbar(image, ax=grid, label=f"{result.weighting}\n(each row sums to 1)", shrink=0.8)
    figure.headline(f"{KINDS[stack, kind].capitalize()}: {result.title}")
    return figure


def draw_head(result: Attention, site: SiteAttention, head: HeadAttention) -> Figure:
    """Draw a heat map of the attention of one head, with the weights written into the cells if there is room."""
    height, width = len(site.queries), len(site.keys)
    size = min(0.62 * width, 15), min(0.55 * height, 13)
    figure = Page(size[0] + 2.6, size[1] + 1.4)
    axes = figure.subplots()
    image = _heat_map(axes, head.weights, (site.queries, site.keys), 10, size, vmin=0, vmax=1)
    if max(height, width) <= MOST_NUMBERS:
        write_cells(axes, head.weights)
    axes.set_xlabel("key (attended to)")
    axes.set_ylabel(_query_label(site))
    figure.colorbar(image, label=result.weighting)
    figure.headline(f"{head.head} ({head.short})", result.title, size=10)
    return figure


def write_cells(
    axes: Axes, shades: ArrayLike, texts: Sequence[Sequence[str]] | None = None, *, size: float = 8
) -> None:
    """Write a text into each cell of a heat map, by default the number in `shades`; on dark cells it is white."""
    for (y, x), shade in np.ndenumerate(np.asarray(shades)):
        text, colour = f"{shade:.2f}" if texts is None else texts[y][x], "white" if shade > 0.6 else "black"
        if text:
            axes.text(x, y, text, ha="center", va="center", fontsize=size, color=colour)


def draw_over_examples(results: Sequence[Attention], head: str) -> Figure:
    """Draw the attention of one head on several examples side by side; a single example is drawn large."""
    heads = [result.find(head) for result in results]
    if len(results) == 1:
        return draw_head(results[0], *heads[0])
    panels: list[Panel] = [
        (result.title, (site.queries, site.keys), one.weights)
        for result, (site, one) in zip(results, heads, strict=True)
    ]
    title = f"{results[0].name}: {head} ({HeadId.parse(head).short}) on {len(panels)} examples"
    return draw_panels(panels, title, _query_label(heads[0][0]), Normalize(0, 1), results[0].weighting)


def draw_over_texts(
    results: Sequence[AttentionSummary], notes: Sequence[str], head: HeadId, weights: Sequence[Picture]
) -> Figure:
    """Draw the attention of one head on several texts, side by side and with the same colour scale.

    In a long text, a cell stands for several neighbouring tokens.
    """
    panels = list[Panel]()
    for result, note, each in zip(results, notes, weights, strict=True):
        axes, pooled = result.pattern(head, each, MOST_CLOSE)
        queries, keys = ([axis.tokens[i] for i in axis.edges[:-1]] for axis in axes)
        panels.append((note or result.title, (queries, keys), pooled))
    title = f"{_tail(results[0].name)}: {head} ({head.short}) on {len(panels)} texts (square-root scale)"
    return draw_panels(panels, title, "query (attends)", PowerNorm(0.5, vmin=0, vmax=1))


def draw_panels(
    panels: Sequence[Panel], title: str, query_label: str, norm: Normalize, weighting: str = "attention weight"
) -> Figure:
    """Draw panels with the same colour scale, up to three in a row; each shows one head on one example."""
    across = min(ACROSS, len(panels))
    down = -(-len(panels) // across)
    width = min(max(3.6, 0.42 * max(len(keys) for _, (_, keys), _ in panels) + 1.0), 6.5)
    height = min(max(2.6, 0.36 * max(len(queries) for _, (queries, _), _ in panels) + 1.2), 6.5)
    figure = Page(width * across + 1.2, height * down)
    grid = figure.subplots(down, across, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    for axes, (name, tokens, weights) in zip(grid.flat, panels, strict=False):
        inches = width - 0.8, height - 1.0
        image = _heat_map(axes, weights, tokens, 8, inches, norm=norm, interpolation="nearest")
        axes.set_title(wrapped(name, width - 0.8, 9), fontsize=9)
        axes.set_xlabel("key (attended to)", fontsize=8)
    for row in grid:
        row[0].set_ylabel(query_label, fontsize=8)
    bar = figure.colorbar(image, ax=list(grid.flat[: len(panels)]), shrink=0.8)
    bar.set_label(f"{weighting}\n(each row sums to 1)", fontsize=8)
    figure.headline(title)
    return figure


def _heat_map(
    axes: Axes, weights: ArrayLike, tokens: Tokens, fontsize: int, inches: tuple[float, float], **colours: Any
) -> AxesImage:
    """Draw attention weights as a heat map with labels for as many tokens as fit; `inches` is the size of the axes."""
    image = axes.imshow(weights, cmap=SEQUENTIAL, aspect="auto", **colours)
    for set_ticks, names, room, turns in (
        (axes.set_xticks, tokens[1], inches[0], True),
        (axes.set_yticks, tokens[0], inches[1], False),
    ):
        most = min(MOST_LABELS, max(1, int(room / (style.LINE * fontsize))))
        places = range(0, len(names), 1 + (len(names) - 1) // most)
        labels = [plain(names[i], LONGEST) for i in places]
        turned = turns and max(width_of(label, fontsize) for label in labels) > 0.8 * room / len(places)
        set_ticks(places, labels, fontsize=fontsize, rotation=60 if turned else 0)
    return image


def _query_label(site: SiteAttention) -> str:
    return "query (input → output)" if site.stack == "decoder" else "query (attends)"


def heads_by_kind(heads: Iterable[OfKind]) -> dict[tuple[str, str], list[OfKind]]:
    """Return the heads grouped by stack and kind of attention, in the order of the model."""
    kinds: dict[tuple[str, str], list[OfKind]] = {}
    for head in heads:
        kinds.setdefault((head.stack, head.kind), []).append(head)
    return kinds


def _index(head: HeadAttention) -> int:
    return HeadId.parse(head.head).index


# --- whole pixels -----------------------------------------------------------------------------------------------------


def draw_mosaic(result: Attention, stack: str, kind: str) -> Figure:
    """Draw the attention of all heads of one kind as one image, with a row per layer and a column per head."""
    sites = result.sites_of(stack, kind)
    queries, keys = result.axes_of(sites[0])
    n_queries, n_keys = len(queries.edges) - 1, len(keys.edges) - 1
    n_columns = 1 + max(_index(head) for site in sites for head in site.heads)
    cell = max(1, min(CELL, (WIDTH // n_columns - GAP) // n_keys, (HEIGHT // len(sites) - GAP) // n_queries))
    height, width = cell * n_queries + GAP, cell * n_keys + GAP
    picture = np.full((len(sites) * height + GAP, n_columns * width + GAP), np.nan)
    for row, site in enumerate(sites):
        for head in site.heads:
            top, left = row * height + GAP, _index(head) * width + GAP
            picture[top : top + height - GAP, left : left + width - GAP] = np.kron(head.array, np.ones((cell, cell)))
    cut = "; grey: no head" if any(len(site.heads) < n_columns for site in sites) else ""
    lines = (
        f"{_tail(result.name)}: {KINDS[stack, kind]}, {_count(len(sites), 'layer')} × {_count(n_columns, 'head')}",
        f"each square is a head: query ↓ attends to key →; its rows sum to 1{cut}",
        _scope(queries, keys, kind),
        result.title,
    )
    is_named = all(len(axis.tokens) == len(axis.edges) - 1 for axis in (queries, keys)) and cell * 72 / DPI >= ROOMY
    rows, columns = ([plain(each, LONGEST) for each in axis.tokens] if is_named else [] for axis in (queries, keys))
    beside, across = (
        int(DPI * max([width_of(name, NAME_SIZE) for name in each], default=0)) for each in (rows, columns)
    )
    is_turned = across > 0.8 * cell  # short names are easier to read upright
    under = across if is_turned else 2 * NAME_SIZE * is_named
    figure, axes = _page(picture, lines, LEFT + beside, BELOW + under)
    # Layers at the left and heads on top: together the short name of a head.
    layers = [site.heads[0].short.partition("H")[0] for site in sites]
    for set_ticks, names, side, room in (
        (axes.set_xticks, [f"H{i}" for i in range(n_columns)], width, 35),
        (axes.set_yticks, layers, height, 20),
    ):
        shown = range(0, len(names), 1 + int(room / side))
        set_ticks([GAP / 2 + side * (i + 0.5) for i in shown], [names[i] for i in shown], fontsize=8)
    axes.xaxis.tick_top()
    if is_named:
        for axis, names, side, n in ((axes.yaxis, rows, height, len(sites)), (axes.xaxis, columns, width, n_columns)):
            places = [GAP + i * side + cell * (j + 0.5) - 0.5 for i in range(n) for j in range(len(names))]
            axis.set_ticks(places, names * n, minor=True, fontsize=NAME_SIZE, parse_math=False)
        axes.tick_params(
            axis="x", which="minor", top=False, labeltop=False, labelbottom=True, labelrotation=90 * is_turned
        )
        axes.tick_params(axis="y", which="major", length=0, pad=5 + 72 * beside / DPI)
        axes.tick_params(which="minor", length=0, pad=2)
    axes.spines[:].set_visible(False)
    return figure


def draw_head_on_text(result: AttentionSummary, head: str | HeadId, weights: Picture) -> Figure:
    """Draw the attention weights [query, key] of one head on a text, with tokens on the axes."""
    head = HeadId.parse(str(head))
    (queries, keys), pooled = result.pattern(head, weights, MOST_CLOSE)
    picture = np.kron(pooled, np.ones([max(min(CLOSE_CELL, CLOSE // n), -(-LEAST // n)) for n in pooled.shape]))
    lines = f"{_tail(result.name)}: {head} ({head.short})", _scope(queries, keys, head.site.kind), result.title
    ticks, labels, room = [], [], []
    for n, tokens in zip(picture.shape, (queries.tokens, keys.tokens), strict=True):
        # Every token is named; of many tokens, every n-th with its position.
        places = range(0, len(tokens), 1 + (len(tokens) - 1) // MOST_LABELS)
        names = [plain(tokens[i], LONGEST) for i in places]
        labels.append(
            names if len(places) == len(tokens) else [f"{i}: {name}" for i, name in zip(places, names, strict=True)]
        )
        ticks.append((np.array(places) + 0.5) * n / len(tokens) - 0.5)
        room.append(70 + int(DPI * max(width_of(name, 7) for name in labels[-1])))
    figure, axes = _page(picture, lines, *room)
    axes.set_yticks(ticks[0], labels[0], fontsize=7, parse_math=False)
    axes.set_xticks(ticks[1], labels[1], fontsize=7, parse_math=False, rotation=90)
    axes.set_ylabel("query ↓ (attends)", fontsize=8)
    axes.set_xlabel("key → (attended to)", fontsize=8)
    return figure


def _page(picture: Picture, lines: Sequence[str], left: int, below: int) -> tuple[Figure, Axes]:
    """Return a figure that shows an image pixel by pixel, with lines of text above it and a colour bar beside it.

    `left` and `below` are the margins for labels, in pixels.
    """
    height, width = picture.shape
    whole_width = max(left + width + RIGHT, NARROWEST)
    rows = [
        (row, size)
        for line, size in zip(lines, [10, *(8 for _ in lines[1:])], strict=True)
        for row in wrapped(line, (whole_width - 40) / DPI, size).splitlines()
    ]
    above = LINE * (len(rows) + 2)
    whole_height = above + max(height, LOWEST) + below
    figure = Figure(figsize=(whole_width / DPI, whole_height / DPI), dpi=DPI)

    def at(x: int, y: int, width: int, height: int) -> Axes:
        box = (x / whole_width, 1 - (y + height) / whole_height, width / whole_width, height / whole_height)
        return figure.add_axes(box)

    axes, beside = at(left, above, width, height), at(left + width + 25, above, 22, max(height, LOWEST))
    colours = mpl.colormaps[SEQUENTIAL].resampled(SHADES).with_extremes(bad="#aaaaaa")
    norm = PowerNorm(0.5, vmin=0, vmax=1)
    axes.imshow(picture, cmap=colours, norm=norm, interpolation="nearest", aspect="auto")
    axes.tick_params(length=0, pad=3)
    bar = figure.colorbar(ScalarMappable(norm, colours), cax=beside, ticks=TICKS, format="%g")
    bar.ax.tick_params(labelsize=7)
    bar.set_label("attention weight\n(square-root scale)", fontsize=8)
    for i, (row, size) in enumerate(rows):
        y = 1 - LINE * (i + 0.5) / whole_height
        figure.text(20 / whole_width, y, row, fontsize=size, va="top", parse_math=False)
    return figure, axes


def _scope(queries: Axis, keys: Axis, kind: str) -> str:
    """Return in words how many tokens a text has, and how many tokens one cell of the heat map stands for."""
    if kind == "self":
        return f"{_count(queries.edges[-1], 'token')}; each cell: {_bin(queries, 'token')}"
    sizes = f"{_count(queries.edges[-1], 'query', 'queries')} and {_count(keys.edges[-1], 'key')}"
    return f"{sizes}; each cell: {_bin(queries, 'query', 'queries')} and {_bin(keys, 'key')}"


def _bin(axis: Axis, one: str, many: str = "") -> str:
    """Return in words how many tokens one cell of a heat map stands for: `one token`, or `a bin of 3 or 4 tokens`."""
    *_, low, high = sorted({0, *np.diff(axis.edges).tolist()})
    return f"one {one}" if high == 1 else f"a bin of {f'{low} or ' if low else ''}{_count(high, one, many)}"


def _count(n: int, one: str, many: str = "") -> str:
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def _tail(name: str, most: int = 36) -> str:
    """Return a name, if it is too long as `…` and its last letters, because the end of a path is more informative."""
    return name if len(name) <= most else f"…{name[1 - most :]}"
