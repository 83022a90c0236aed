"""Every head of a model on one text: a mosaic of all heads, one head close up, and a table.

A picture is made of whole pixels, all heads in one: with axes for each, 144 heads take 17 s instead of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from headcount.errors import InputError
from headcount.heads import HeadId
from headcount.views.attention import KINDS, LONGEST, MOST_LABELS, Panel, draw_panels
from headcount.views.style import SEQUENTIAL, plain, width_of, wrapped

if TYPE_CHECKING:
    from headcount.analysis.attention_summary import AttentionSummary, HeadSummary, SiteSummary

DPI = 150
"""Of `style.png`. All lengths here are in its pixels, so that all cells are of one size."""
WIDTH, HEIGHT, CELL, GAP = 1200, 1500, 36, 4
"""A mosaic's sides and a cell's, at most; what is between heads."""
CLOSE, MOST_CLOSE, CLOSE_CELL, LEAST = 1050, 512, 45, 170
"""A closeup's sides, its rows and columns, and a cell, at most; its sides at least, as names of axes need them."""
LEFT, RIGHT, BELOW, NARROWEST, LOWEST, LINE = 60, 175, 20, 1000, 260, 30
"""What goes around a picture; less of it would cut the lines above and the colour bar beside it short."""
SHADES = 64
"""As many as can be told apart; more would only make files larger."""
TICKS = (0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1)
WEIGHTS = {"first": "first token", "previous": "previous token", "itself": "itself", "next": "next token"}
WEIGHTS |= {"special": "special tokens"}
"""Measures that are shares of attention, and what they are called."""
TOLD = 3
"""Heads that a note names."""

Picture = NDArray[np.floating]
Edges = Sequence[int]


def draw_mosaics(result: AttentionSummary) -> dict[str, Figure]:
    """One page per kind of site, by name."""
    kinds = dict.fromkeys((site.stack, site.kind) for site in result.sites)
    return {"-".join(kind): draw_mosaic(result, *kind) for kind in kinds}


def draw_mosaic(result: AttentionSummary, stack: str, kind: str) -> Figure:
    """All heads of a kind: layers down, heads across."""
    sites = [site for site in result.sites if (site.stack, site.kind) == (stack, kind)]
    if not sites:
        raise InputError(f"{result.name} has no {stack} {kind}-attention", f"it has {_listed(result)}")
    rows, columns = (axis.edges for axis in result.axes_of(sites[0]))
    n_columns = 1 + max(HeadId.parse(head.head).index for site in sites for head in site.heads)
    picture = _tiled(sites, n_columns, len(rows) - 1, len(columns) - 1)
    size = f"{_count(len(sites), 'layer')} × {_count(n_columns, 'head')}"
    cut = "; grey: no head" if any(len(site.heads) < n_columns for site in sites) else ""
    lines = (
        f"{_tail(result.name)}: {KINDS[stack, kind]}, {size}",
        f"each square is a head: query ↓ looks at key →; its rows sum to 1{cut}",
        _scope(rows, columns, kind),
        result.title,
    )
    figure, axes = _page(picture, lines, LEFT, BELOW)
    _name_tiles(axes, picture, [site.heads[0].short.partition("H")[0] for site in sites], n_columns)
    return figure


def draw_head_on_text(result: AttentionSummary, head: str | HeadId, weights: Picture) -> Figure:
    """One head's own weights [query, key], with tokens on the axes."""
    found = HeadId.parse(str(head))
    site = next((site for site in result.sites if site.site == str(found.site)), None)
    if site is None or all(each.head != str(found) for each in site.heads):
        raise InputError(f"no head {str(found)!r} in {result.name}", f"it has {_listed(result)}")
    tokens = [axis.tokens for axis in result.axes_of(site)]
    if weights.shape != tuple(map(len, tokens)):
        raise InputError(f"weights of {weights.shape} for {len(tokens[0])} queries and {len(tokens[1])} keys")
    rows, columns = (_edges(len(each)) for each in tokens)
    pooled = _pooled(weights, rows, columns)
    cells = [max(min(CLOSE_CELL, CLOSE // n), -(-LEAST // n)) for n in pooled.shape]
    picture = np.kron(pooled, np.ones(cells))
    lines = (f"{_tail(result.name)}: {found} ({found.short})", _scope(rows, columns, site.kind), result.title)
    places, labels = zip(*map(_named, tokens), strict=True)
    figure, axes = _page(picture, lines, *(70 + int(DPI * max(width_of(name, 7) for name in each)) for each in labels))
    ticks = [
        (np.array(at) + 0.5) * n / len(each) - 0.5 for at, n, each in zip(places, picture.shape, tokens, strict=True)
    ]
    axes.set_yticks(ticks[0], labels[0], fontsize=7, parse_math=False)
    axes.set_xticks(ticks[1], labels[1], fontsize=7, parse_math=False, rotation=90)
    axes.set_ylabel("query ↓ (looks)", fontsize=8)
    axes.set_xlabel("key → (looked at)", fontsize=8)
    return figure


def draw_over_texts(
    results: Sequence[AttentionSummary], notes: Sequence[str], head: HeadId, weights: Sequence[Picture]
) -> Figure:
    """One head's own weights on several texts, on one scale; of many tokens, neighbours share a cell."""
    panels = list[Panel]()
    for result, note, each in zip(results, notes, weights, strict=True):
        site = next(site for site in result.sites if site.site == str(head.site))
        tokens = [axis.tokens for axis in result.axes_of(site)]
        edges = [_edges(len(some)) for some in tokens]
        queries, keys = (tuple(some[i] for i in at[:-1]) for some, at in zip(tokens, edges, strict=True))
        panels.append(Panel(note or result.title, queries, keys, _pooled(each, *edges).tolist()))
    title = f"{_tail(results[0].name)}: {head} ({head.short}) on {len(panels)} texts (square-root scale)"
    return draw_panels(panels, title, "query (looks)", PowerNorm(0.5, vmin=0, vmax=1))


def summary_table(result: AttentionSummary) -> Table:
    """One row per head; of the tokens that it looks at, the one it looks at most is bold."""
    title = f"{result.name}: attention in % ({_count(result.n_tokens, 'token')}: {result.title})"
    table = Table(title=_spelt(title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("head")
    for name in (*WEIGHTS.values(), "entropy share", "distance (tokens)"):
        table.add_column(name, justify="right", max_width=10)
    for head in (head for site in result.sites for head in site.heads):
        shares = [getattr(head, name) for name in WEIGHTS]
        most = max((share for share in shares if share), default=None)
        cells = [Text(_percent(share), style="bold" if share and share == most else "") for share in shares]
        distance = "–" if head.distance is None else f"{head.distance:.1f}"
        table.add_row(head.short, *cells, _percent(head.entropy_share), distance)
    return table


def summary_notes(result: AttentionSummary) -> list[str]:
    """Who looks most at what, and how the table is read."""
    heads = [head for site in result.sites for head in site.heads]
    notes = [f"most on {words}: {told}" for name, words in WEIGHTS.items() if (told := _leaders(heads, name))]
    if told := _leaders(heads, "entropy_share", largest=False):
        notes.append(f"most concentrated (entropy share): {told}")
    notes.append("entropy share: 0 % is all on one key, 100 % is even over the keys that a query sees")
    notes.append(
        "means over queries that see what is meant and something else; –: none does, or two texts are compared"
    )
    return notes


def _leaders(heads: Sequence[HeadSummary], name: str, *, largest: bool = True) -> str:
    found = [(getattr(head, name), head.short) for head in heads if getattr(head, name) is not None]
    found.sort(key=lambda each: each[0], reverse=largest)
    return ", ".join(f"{short} {_percent(value)} %" for value, short in found[:TOLD])


def _tiled(sites: Sequence[SiteSummary], n_columns: int, n_queries: int, n_keys: int) -> Picture:
    """All heads in one picture; what is no head is no number."""
    cell = max(1, min(CELL, (WIDTH // n_columns - GAP) // n_keys, (HEIGHT // len(sites) - GAP) // n_queries))
    height, width = cell * n_queries + GAP, cell * n_keys + GAP
    picture = np.full((len(sites) * height + GAP, n_columns * width + GAP), np.nan)
    for row, site in enumerate(sites):
        for head in site.heads:
            top, left = row * height + GAP, HeadId.parse(head.head).index * width + GAP
            picture[top : top + height - GAP, left : left + width - GAP] = np.kron(head.weights, np.ones((cell, cell)))
    return picture


def _page(picture: Picture, lines: Sequence[str], left: int, below: int) -> tuple[Figure, Axes]:
    """A picture in its own pixels, with lines above it and a colour bar beside it."""
    height, width = picture.shape
    whole_width = max(left + width + RIGHT, NARROWEST)
    sizes = [10, *(8 for _ in lines[1:])]
    rows = [
        (row, size)
        for line, size in zip(lines, sizes, strict=True)
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
        figure.text(
            20 / whole_width, 1 - LINE * (i + 0.5) / whole_height, row, fontsize=size, va="top", parse_math=False
        )
    return figure, axes


def _name_tiles(axes: Axes, picture: Picture, rows: Sequence[str], n_columns: int) -> None:
    """Layers at the left and heads on top: together the short name of a head."""
    height, width = ((n - GAP) / parts for n, parts in zip(picture.shape, (len(rows), n_columns), strict=True))
    shown = range(0, n_columns, 1 + int(35 / width))
    axes.set_xticks([GAP / 2 + width * (i + 0.5) for i in shown], [f"H{i}" for i in shown], fontsize=8)
    shown = range(0, len(rows), 1 + int(20 / height))
    axes.set_yticks([GAP / 2 + height * (i + 0.5) for i in shown], [rows[i] for i in shown], fontsize=8)
    axes.xaxis.tick_top()
    axes.spines[:].set_visible(False)


def _named(tokens: Sequence[str]) -> tuple[list[int], list[str]]:
    """Where which names of tokens stand: every one's, or of many every n-th's with its place."""
    places = list(range(0, len(tokens), 1 + (len(tokens) - 1) // MOST_LABELS))
    few, short = len(places) == len(tokens), {i: plain(tokens[i], LONGEST) for i in places}
    return places, [short[i] if few else f"{i}: {short[i]}" for i in places]


def _spelt(text: str) -> str:
    """On one line, whatever it holds."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _edges(n: int) -> list[int]:
    """Where bins begin in a closeup of many tokens; as a rule, a bin is a token."""
    return np.linspace(0, n, min(n, MOST_CLOSE) + 1).round().astype(int).tolist()


def _pooled(weights: Picture, rows: Edges, columns: Edges) -> Picture:
    by_key = np.add.reduceat(weights, columns[:-1], axis=1)
    pooled: Picture = np.add.reduceat(by_key, rows[:-1], axis=0) / np.diff(rows)[:, None]
    return pooled


def _scope(rows: Edges, columns: Edges, kind: str) -> str:
    """How many tokens there are, and how many make up a cell."""
    if kind == "self":
        return f"{_count(rows[-1], 'token')}; each cell: {_bin(rows, 'token')}"
    sizes = f"{_count(rows[-1], 'query', 'queries')} and {_count(columns[-1], 'key')}"
    return f"{sizes}; each cell: {_bin(rows, 'query', 'queries')} and {_bin(columns, 'key')}"


def _bin(edges: Edges, one: str, many: str = "") -> str:
    *_, low, high = sorted({0, *np.diff(edges).tolist()})
    return f"one {one}" if high == 1 else f"a bin of {f'{low} or ' if low else ''}{_count(high, one, many)}"


def _count(n: int, one: str, many: str = "") -> str:
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"


def _listed(result: AttentionSummary) -> str:
    return ", ".join(f"{site.site} ({_count(len(site.heads), 'head')})" for site in result.sites)


def _tail(name: str, most: int = 36) -> str:
    return name if len(name) <= most else f"…{name[1 - most :]}"
