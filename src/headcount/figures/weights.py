"""Draw what the weights of each head match (positions, tokens) and what they copy, one figure per attention block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headcount.figures.attention import KINDS
from headcount.figures.style import DIVERGING, Page, plain
from headcount.heads import HeadId

if TYPE_CHECKING:
    from headcount.analysis.weights import HeadWeights
    from headcount.analysis.weights_circuits import Grid, HeadReading

SIDE = 2.2
"""Side of one heat map in inches."""
MOST_LABELS, LONGEST = 14, 7
"""Largest number of rows or columns that are all named, and largest number of letters of a name in a heat map."""
FEW, MOST_HEADS = 4, 8
"""Up to the first number, the heads of all blocks share one figure; a figure has at most the second number of heads."""
MATCHES, COPIES = "what it matches", "what it copies"
COPIED = {
    True: "what a key's token adds to the logits of each output token on the direct path",
    False: "cosine between what the head writes for two key tokens (1: the same); they have no direct path to logits",
}
"""Maps whether a head has a direct path to the logits to what the last heat map of this head shows."""


def draw_weights(result: HeadWeights) -> dict[str, Figure]:
    """Return the figures of a model's weights by name: one per attention block, such as `E0`, more for many heads."""
    return {name: draw_heads_weights(result, heads) for name, heads in pages_of(result).items()}


def pages_of(result: HeadWeights) -> dict[str, list[HeadReading]]:
    """Return the heads on each figure by its name: one figure for few heads, else one or more per attention block."""
    if len(result.heads) <= FEW:
        return {"heads": list(result.heads)}
    pages: dict[str, list[HeadReading]] = {}
    for block in dict.fromkeys(HeadId.parse(head.head).site.short for head in result.heads):
        heads = [head for head in result.heads if HeadId.parse(head.head).site.short == block]
        parts = [heads[i : i + MOST_HEADS] for i in range(0, len(heads), MOST_HEADS)]
        pages |= {block if len(parts) == 1 else f"{block}-{i + 1}": part for i, part in enumerate(parts)}
    return pages


def draw_heads_weights(result: HeadWeights, heads: Sequence[HeadReading]) -> Figure:
    """Draw a row of heat maps for each head: the positions and the tokens that it matches, and what it copies."""
    figure = Page(3 * (SIDE + 1.15), len(heads) * (SIDE + 0.75))
    panels = figure.subplots(len(heads), 3, squeeze=False)
    for row, head in zip(panels, heads, strict=True):
        last = "logits of tokens" if head.is_direct else "tokens written alike"
        shares = (
            f"{head.short} {MATCHES}: positions ({_percent(head.positions)})",
            f"{MATCHES}: tokens ({_percent(head.tokens)})",
            f"{COPIES}: {last}",
        )
        of_copies = ("key token", "output token") if head.is_direct else ("key token", "key token")
        names = ("query position", "key position"), ("query token", "key token"), of_copies
        grids = head.match_positions, head.match_tokens, head.copies
        limits = None, None, None if head.is_direct else 1.0
        for axes, grid, title, axis_names, limit in zip(row, grids, shares, names, limits, strict=True):
            _heat_map(figure, axes, grid, axis_names, limit)
            axes.set_title(title, fontsize=8)
    sites = dict.fromkeys(HeadId.parse(head.head).site for head in heads)
    kinds = [f"{KINDS[site.stack, site.kind]}, layer {site.layer}" for site in sites]
    figure.headline(f"Why heads attend: {plain(result.name, 60)}, {'; '.join(kinds)}", size=11)
    figure.caption(_caption(heads, result.n))
    return figure


def _caption(heads: Sequence[HeadReading], n: int) -> str:
    explained = ", ".join(f"{head.short} {_percent(head.explained)}" for head in heads)
    text = (
        "What it matches: attention score of a key (row: query) by the head's query and key weights, minus the mean "
        "over keys; +1 multiplies the attention weight by e. In brackets: percentage of the variance of the real "
        f"scores within a query. Tokens and positions together explain (R²): {explained}. "
    )
    for is_direct, words in COPIED.items():
        names = [head.short for head in heads if head.is_direct == is_direct]
        of_heads = f" of {', '.join(names)}" if len(names) < len(heads) else ""
        text += f"What it copies{of_heads}: {words}. " if names else ""
    if any(value is None for head in heads for row in head.match_positions.values for value in row):
        text += "Grey: keys that a query cannot attend to. "
    text += "A token that occurs at one position only, and there always, counts as a position. "
    return f"{text}Inputs are means over {n:,} examples."


def _percent(share: float) -> str:
    return f"{100 * share:z.0f} %"


def _heat_map(figure: Figure, axes: Axes, grid: Grid, names: tuple[str, str], limit: float | None) -> None:
    values = np.array([[np.nan if x is None else x for x in row] for row in grid.values], dtype=float)
    seen = values[np.isfinite(values)]
    largest = limit or max(float(np.abs(seen).max(initial=0.0)), 1e-6)
    colours = colormaps[DIVERGING].with_extremes(bad="#dddddd")
    image = axes.imshow(values, cmap=colours, vmin=-largest, vmax=largest, aspect="auto", interpolation="nearest")
    look: dict[str, Any] = {"fontsize": 6.5}
    axes.set_xticks(*_ticks(grid.columns), rotation=90, **look)
    axes.set_yticks(*_ticks(grid.rows), **look)
    axes.set_ylabel(names[0], fontsize=7.5)
    axes.set_xlabel(names[1], fontsize=7.5)
    bar = figure.colorbar(image, ax=axes, shrink=0.9, pad=0.02)
    bar.ax.tick_params(labelsize=6.5)


def _ticks(names: Sequence[str]) -> tuple[list[int], list[str]]:
    """Return the indices and the names of the ticks of an axis: all names, or some that are evenly spaced."""
    step = -(-len(names) // MOST_LABELS)
    at = list(range(0, len(names), step))
    return at, [plain(names[i], LONGEST) for i in at]
