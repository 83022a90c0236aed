"""Draw maps of all heads by role: how much each head attends to the previous token, to copies, to separators, ..."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from headcount.attention_roles import ROLES
from headcount.figures.attention import KINDS, heads_by_kind
from headcount.figures.style import ORANGE, SEQUENTIAL, Page, wrapped
from headcount.heads import HeadId

if TYPE_CHECKING:
    from headcount.analysis.roles import HeadRole, HeadRoles

ACROSS = 4
"""Largest number of maps of heads that a figure shows side by side."""


def draw_roles(result: HeadRoles) -> dict[str, Figure]:
    """Return a mapping from each kind of attention, such as `encoder-self`, to the figure of its maps by role."""
    kinds = heads_by_kind(result.heads)
    return {"-".join(kind): draw_role_maps(result, heads) for kind, heads in kinds.items() if roles_of(heads)}


def draw_role_maps(result: HeadRoles, heads: Sequence[HeadRole]) -> Figure:
    """Draw one map per role (previous token, ...) of the attention of all heads: a row per layer, a column per head."""
    shown = roles_of(heads)
    layers = sorted({head.layer for head in heads})
    n_columns = 1 + max(HeadId.parse(head.head).index for head in heads)
    across = min(ACROSS, len(shown))
    size = max(2.3, min(0.2 * n_columns, 6.0)), max(0.9, min(0.2 * len(layers), 6.0))
    figure = Page(across * (size[0] + 0.5) + 0.9, -(-len(shown) // across) * (size[1] + 0.95))
    grid = figure.subplots(-(-len(shown) // across), across, squeeze=False)
    for axes in grid.flat[len(shown) :]:
        axes.remove()
    for axes, (role, on) in zip(grid.flat, shown, strict=False):
        _draw_map(axes, heads, role, on, layers, n_columns)
        middle = median(each.mean for head in heads if (each := head.find(role, on)))
        lines = f"{ROLES[role].name}, {on}", f"median head: {100 * middle:.1f} %"
        axes.set_title("\n".join(wrapped(line, size[0], 8.5) for line in lines), fontsize=8.5)
    bar = figure.colorbar(grid[0][0].images[0], ax=list(grid.flat[: len(shown)]), shrink=0.8)
    bar.set_label("mean attention weight (square-root scale)", fontsize=8)
    figure.headline(
        f"{result.name}: {KINDS[heads[0].stack, heads[0].kind]}, what heads attend to; rows: layers, columns: heads",
        f"framed: heads that stand out against the others ({_inputs(result)})",
    )
    figure.caption(result.words)
    return figure


def _draw_map(axes: Axes, heads: Sequence[HeadRole], role: str, on: str, layers: Sequence[int], n_columns: int) -> None:
    """Draw the map of one role: attention weights as shades, and a frame around each head that stands out."""
    picture = np.full((len(layers), n_columns), np.nan)
    for head in heads:
        y, x, standing = layers.index(head.layer), HeadId.parse(head.head).index, head.find(role, on)
        if standing is not None:
            picture[y, x] = standing.mean
            if standing.is_named:
                frame = Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, edgecolor=ORANGE, linewidth=2, clip_on=False)
                axes.add_patch(frame)
    axes.imshow(picture, cmap=SEQUENTIAL, norm=PowerNorm(0.5, vmin=0, vmax=1), aspect="auto")
    letter = heads[0].short[0]
    for set_ticks, names in (
        (axes.set_xticks, [f"H{i}" for i in range(n_columns)]),
        (axes.set_yticks, [f"{letter}{layer}" for layer in layers]),
    ):
        places = range(0, len(names), 1 + len(names) // 9)
        set_ticks(list(places), [names[i] for i in places], fontsize=7)
    axes.tick_params(length=0)


def _inputs(result: HeadRoles) -> str:
    return " and ".join(
        f"{each.n_texts:,} {'texts' if each.on == 'texts' else f'sequences of {each.on}'}, {each.n_tokens:,} tokens"
        for each in result.inputs
    )


def roles_of(heads: Sequence[HeadRole]) -> list[tuple[str, str]]:
    """Return pairs of a role (`previous`, ...) and a kind of inputs (`texts`, ...) measured for these heads."""
    known = [(each.role, each.on) for each in heads[0].standings if each.role in ROLES]
    return sorted(known, key=lambda cell: list(ROLES).index(cell[0]))
