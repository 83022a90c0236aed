"""What heads stand out for: maps of all heads by role, a table of those that are named, and what none is named for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from headcount.figures.attention import KINDS, ROLE_WORDS, rank, share
from headcount.figures.head_stats import FittedTable
from headcount.figures.style import ORANGE, SEQUENTIAL, Page, wrapped
from headcount.heads import HeadId

if TYPE_CHECKING:
    from headcount.analysis.roles import HeadRole, HeadRoles, RoleScore

MEANINGS = {
    "duplicate": "another copy of the same token",
    "induction": "the token after an earlier copy",
    "matching": "a copy across a separator",
}
"""Those whose name says too little."""
ACROSS = 4
"""Maps in a row."""


def draw_roles(result: HeadRoles) -> dict[str, Figure]:
    """One page per kind of site: a map of all heads for each role, layers down and heads across."""
    kinds = [heads for heads in _by_kind(result) if _cells(heads)]
    return {f"{heads[0].stack}-{heads[0].kind}": _draw_kind(result, heads) for heads in kinds}


def _draw_kind(result: HeadRoles, heads: Sequence[HeadRole]) -> Figure:
    shown = _cells(heads)
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
        lines = f"{ROLE_WORDS[role]}, {on}", f"middle head: {100 * middle:.1f} %"
        axes.set_title("\n".join(wrapped(line, size[0], 8.5) for line in lines), fontsize=8.5)
    bar = figure.colorbar(grid[0][0].images[0], ax=list(grid.flat[: len(shown)]), shrink=0.8)
    bar.set_label("mean weight (square-root scale)", fontsize=8)
    figure.headline(
        f"{result.name}: {KINDS[heads[0].stack, heads[0].kind]}, what heads attend to; layers down, heads across",
        f"framed: stands out against the other heads ({_inputs(result)})",
    )
    figure.caption(result.words)
    return figure


def _draw_map(axes: Axes, heads: Sequence[HeadRole], role: str, on: str, layers: Sequence[int], n_columns: int) -> None:
    """One role: the weights as shades, and frames around heads that are named for it."""
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
        every = range(0, len(names), 1 + len(names) // 9)
        set_ticks(list(every), [names[i] for i in every], fontsize=7)
    axes.tick_params(length=0)


def _inputs(result: HeadRoles) -> str:
    return " and ".join(
        f"{each.n_texts:,} {'texts' if each.on == 'texts' else f'sequences of {each.on}'}, {each.n_tokens:,} tokens"
        for each in result.inputs
    )


# --- in words ---------------------------------------------------------------------------------------------------------


def roles_table(result: HeadRoles) -> FittedTable:
    """Tabulate each head and each role that it is named for, by role; the most attention first."""
    rows = list[tuple[str, ...]]()
    for heads in _by_kind(result):
        for role, on in _cells(heads):
            standings = [(head, each) for head in heads if (each := head.find(role, on))]
            middle = median(each.mean for _, each in standings)
            named = [(head, each) for head, each in standings if each.is_named]
            for head, each in sorted(named, key=lambda one: -one[1].mean):
                numbers = share(each), f"{100 * each.even:.1f}", f"{100 * middle:.1f}", _top(each)
                rows.append((head.short, f"{ROLE_WORDS[role]} on {on}", rank(each, len(heads)), *numbers))
    names = ("head", "stands out for", "rank", "weight [95 %]", "if even", "middle head", "largest weight there")
    names_of_heads, roles, ranks, *columns = ((name, [row[i] for row in rows]) for i, name in enumerate(names))
    # Every part names head and role: a head may stand out for several.
    return FittedTable(f"{result.name}: what stands out ({_inputs(result)})", [names_of_heads, roles], ranks, columns)


def roles_notes(result: HeadRoles) -> list[str]:
    """How many heads have a name, what none is named for, and how to read it."""
    named = sum(bool(head.named) for head in result.heads)
    meanings = "; ".join(f"{ROLE_WORDS[role]}: {words}" for role, words in MEANINGS.items())
    return [
        f"{named} of {len(result.heads)} heads stand out for something",
        *_unnamed(result),
        meanings,
        result.words,
        *(f"{each.on}: {each.note}" for each in result.inputs if each.note),
    ]


def _unnamed(result: HeadRoles) -> Iterator[str]:
    """Roles that no head is named for, with the head that has the most of it."""
    for heads in _by_kind(result):
        told = []
        for role, on in _cells(heads):
            standings = [(head, each) for head in heads if (each := head.find(role, on))]
            if not any(each.is_named for _, each in standings):
                head, most = max(standings, key=lambda one: one[1].mean)
                told.append(
                    f"{ROLE_WORDS[role]} on {on} (most: {head.short} {100 * most.mean:.1f} %, {most.z:.1f} deviations)"
                )
        if told:
            yield f"{KINDS[heads[0].stack, heads[0].kind]}: no head stands out for " + ", ".join(told)


def _by_kind(result: HeadRoles) -> list[list[HeadRole]]:
    found: dict[tuple[str, str], list[HeadRole]] = {}
    for head in result.heads:
        found.setdefault((head.stack, head.kind), []).append(head)
    return list(found.values())


def _cells(heads: Sequence[HeadRole]) -> list[tuple[str, str]]:
    """Roles, and what they were measured on, of heads of one kind."""
    known = [(each.role, each.on) for each in heads[0].standings if each.role in ROLE_WORDS]
    return sorted(known, key=lambda cell: list(ROLE_WORDS).index(cell[0]))


def _top(each: RoleScore) -> str:
    """`97.9 % of 675`: queries whose largest weight is on what is meant."""
    return "" if each.n_top is None else f"{100 * each.n_top / each.n:.1f} % of {each.n:,}"
