"""Heat maps of attention weights: one picture per head, and one page of all heads per kind of site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from headcount.heads import HeadId
from headcount.views.style import LINE, SEQUENTIAL, Page, plain, width_of, wrapped

if TYPE_CHECKING:
    from headcount.analysis.patterns import AttentionPatterns, HeadPattern, SitePattern

KINDS = {
    ("encoder", "self"): "encoder self-attention",
    ("decoder", "self"): "decoder self-attention",
    ("decoder", "cross"): "decoder cross-attention",
    ("layer", "self"): "self-attention",
}
"""What a kind of site is called."""
ACROSS = 3
"""Examples in a row."""
MOST_LABELS, MOST_NUMBERS = 40, 24
"""Tokens on an axis that are all named, and that all have their weight written beside them; more would overlap."""
LONGEST = 16
"""Letters of a token that are shown."""


def draw_pages(patterns: AttentionPatterns) -> dict[str, Figure]:
    """One page per kind of site, by name."""
    return {"-".join(kind): draw_page(patterns, *kind) for kind in _kinds(patterns)}


def draw_heads(patterns: AttentionPatterns) -> dict[str, Figure]:
    """One heat map per head, by name."""
    return {head.head: draw_head(patterns, site, head) for site in patterns.sites for head in site.heads}


def draw_page(patterns: AttentionPatterns, stack: str, kind: str) -> Figure:
    """All heads of one kind: layers down, heads across; where a head was cut out, its place is empty."""
    sites = [site for site in patterns.sites if (site.stack, site.kind) == (stack, kind)]
    columns = sorted({_index(head) for site in sites for head in site.heads})
    size = max(2.4, min(0.15 * len(sites[0].keys), 5.0))
    words = max(width_of(plain(word, LONGEST), 8) for site in sites for word in site.queries)
    figure = Page(size * len(columns) + 1.2 + words, (size + 0.1) * len(sites) + 0.8)
    grid = figure.subplots(len(sites), len(columns), squeeze=False)
    lowest = {_index(head): site for site in sites for head in site.heads}
    for row, site in zip(grid, sites, strict=True):
        heads = {_index(head): head for head in site.heads}
        for axes, index in zip(row, columns, strict=True):
            if index not in heads:
                axes.set_axis_off()
                continue
            image = _heat_map(axes, site, heads[index], 8, (size - 0.3, size - 0.5))
            axes.set_title(f"{heads[index].head}  ({heads[index].short})", fontsize=9)
            _label(axes, site, first=index == min(heads), last=lowest[index] is site)
    figure.colorbar(image, ax=grid, label=f"{patterns.weighting}\n(each row sums to 1)", shrink=0.8)
    figure.headline(f"{KINDS[stack, kind].capitalize()}: {patterns.title}")
    return figure


def draw_head(patterns: AttentionPatterns, site: SitePattern, head: HeadPattern) -> Figure:
    """One head, with its numbers."""
    height, width = len(site.queries), len(site.keys)
    size = min(0.62 * width, 15), min(0.55 * height, 13)
    figure = Page(size[0] + 2.6, size[1] + 1.4)
    axes = figure.subplots()
    image = _heat_map(axes, site, head, 10, size)
    few = max(height, width) <= MOST_NUMBERS
    for (query, key), weight in np.ndenumerate(np.array(head.weights) if few else np.empty((0, 0))):
        colour = "white" if weight > 0.6 else "black"
        axes.text(key, query, f"{weight:.2f}", ha="center", va="center", fontsize=8, color=colour)
    axes.set_xlabel("key (looked at)")
    axes.set_ylabel(_query_label(site))
    figure.colorbar(image, label=patterns.weighting)
    figure.headline(f"{head.head} ({head.short})", patterns.title, size=10)
    return figure


@dataclass(frozen=True)
class Panel:
    """One head on one example."""

    title: str
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    weights: Sequence[Sequence[float]]


def draw_over_examples(patterns: Sequence[AttentionPatterns], head: str) -> Figure:
    """One head on several examples; one alone is drawn large, with its numbers."""
    found = [_find(each, head) for each in patterns]
    if len(patterns) == 1:
        return draw_head(patterns[0], *found[0])
    panels = [
        Panel(each.title, site.queries, site.keys, one.weights)
        for each, (site, one) in zip(patterns, found, strict=True)
    ]
    title = f"{patterns[0].name}: {head} ({HeadId.parse(head).short}) on {len(panels)} examples"
    return draw_panels(panels, title, _query_label(found[0][0]), Normalize(0, 1), patterns[0].weighting)


def draw_panels(
    panels: Sequence[Panel], title: str, query_label: str, norm: Normalize, weighting: str = "attention weight"
) -> Figure:
    """Side by side, up to three in a row, all on one colour scale."""
    across = min(ACROSS, len(panels))
    down = -(-len(panels) // across)
    width = min(max(3.6, 0.42 * max(len(panel.keys) for panel in panels) + 1.0), 6.5)
    height = min(max(2.6, 0.36 * max(len(panel.queries) for panel in panels) + 1.2), 6.5)
    figure = Page(width * across + 1.2, height * down)
    grid = figure.subplots(down, across, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    for axes, panel in zip(grid.flat, panels, strict=False):
        image = axes.imshow(panel.weights, norm=norm, cmap=SEQUENTIAL, aspect="auto", interpolation="nearest")
        _name_tokens(axes, panel.queries, panel.keys, 8, (width - 0.8, height - 1.0))
        axes.set_title(wrapped(panel.title, width - 0.8, 9), fontsize=9)
        axes.set_xlabel("key (looked at)", fontsize=8)
    for row in grid:
        row[0].set_ylabel(query_label, fontsize=8)
    bar = figure.colorbar(image, ax=list(grid.flat[: len(panels)]), shrink=0.8)
    bar.set_label(f"{weighting}\n(each row sums to 1)", fontsize=8)
    figure.headline(title)
    return figure


def _find(patterns: AttentionPatterns, name: str) -> tuple[SitePattern, HeadPattern]:
    return next((site, head) for site in patterns.sites for head in site.heads if head.head == name)


def _kinds(patterns: AttentionPatterns) -> list[tuple[str, str]]:
    return list(dict.fromkeys((site.stack, site.kind) for site in patterns.sites))


def _index(head: HeadPattern) -> int:
    return HeadId.parse(head.head).index


def _label(axes: Axes, site: SitePattern, *, first: bool, last: bool) -> None:
    """Words only at the first head of a row and at the last of a column."""
    axes.tick_params(labelleft=first, labelbottom=last)
    if first:
        axes.set_ylabel(_query_label(site))
    if last:
        axes.set_xlabel("key (looked at)")


def _query_label(site: SitePattern) -> str:
    return "query (fed → says)" if site.stack == "decoder" else "query (looks)"


def _heat_map(
    axes: Axes, site: SitePattern, head: HeadPattern, fontsize: int, inches: tuple[float, float]
) -> AxesImage:
    """Across and down so many inches, about: as many tokens are named as there is room for."""
    image = axes.imshow(head.weights, vmin=0, vmax=1, cmap=SEQUENTIAL, aspect="auto")
    _name_tokens(axes, site.queries, site.keys, fontsize, inches)
    return image


def _name_tokens(
    axes: Axes, queries: Sequence[str], keys: Sequence[str], fontsize: int, inches: tuple[float, float]
) -> None:
    for set_ticks, names, room, turns in (
        (axes.set_xticks, keys, inches[0], True),
        (axes.set_yticks, queries, inches[1], False),
    ):
        most = min(MOST_LABELS, max(1, int(room / (LINE * fontsize))))
        places = range(0, len(names), 1 + (len(names) - 1) // most)
        labels = [plain(names[i], LONGEST) for i in places]
        turned = turns and max(width_of(label, fontsize) for label in labels) > 0.8 * room / len(places)
        set_ticks(places, labels, fontsize=fontsize, rotation=60 if turned else 0)
