"""Heat maps of attention weights: one picture per head, and one page of all heads per kind of site."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from headcount.views.style import SEQUENTIAL

if TYPE_CHECKING:
    from headcount.analysis.patterns import AttentionPatterns, HeadPattern, SitePattern

_KINDS = {
    ("encoder", "self"): "encoder self-attention",
    ("decoder", "self"): "decoder self-attention",
    ("decoder", "cross"): "decoder cross-attention",
}


def draw_pages(patterns: AttentionPatterns) -> dict[str, Figure]:
    """One page per kind of site, by name."""
    return {"-".join(kind): draw_page(patterns, *kind) for kind in _kinds(patterns)}


def draw_heads(patterns: AttentionPatterns) -> dict[str, Figure]:
    """One heat map per head, by name."""
    return {head.head: draw_head(patterns, site, head) for site in patterns.sites for head in site.heads}


def draw_page(patterns: AttentionPatterns, stack: str, kind: str) -> Figure:
    """All heads of one kind: layers down, heads across."""
    sites = [site for site in patterns.sites if (site.stack, site.kind) == (stack, kind)]
    n_heads = len(sites[0].heads)
    figure = Figure(figsize=(2.4 * n_heads + 1.4, 2.5 * len(sites) + 1.1), layout="constrained")
    grid = figure.subplots(len(sites), n_heads, squeeze=False)
    for row, site in zip(grid, sites, strict=True):
        for axes, head in zip(row, site.heads, strict=True):
            image = _heat_map(axes, site, head, fontsize=8)
            axes.set_title(f"{head.head}  ({head.short})", fontsize=9)
        row[0].set_ylabel(_query_label(site))
        for axes in row:
            axes.label_outer()
    for axes in grid[-1]:
        axes.set_xlabel("key (looked at)")
    figure.colorbar(image, ax=grid, label="attention weight (each row sums to 1)", shrink=0.8)
    figure.suptitle(f"{_KINDS[stack, kind].capitalize()}: {patterns.title}", fontsize=11)
    return figure


def draw_head(patterns: AttentionPatterns, site: SitePattern, head: HeadPattern) -> Figure:
    """One head, with its numbers."""
    height, width = len(site.queries), len(site.keys)
    figure = Figure(figsize=(0.62 * width + 2.6, 0.55 * height + 1.9), layout="constrained")
    axes = figure.subplots()
    image = _heat_map(axes, site, head, fontsize=10)
    for (query, key), weight in np.ndenumerate(np.array(head.weights)):
        colour = "white" if weight > 0.6 else "black"
        axes.text(key, query, f"{weight:.2f}", ha="center", va="center", fontsize=8, color=colour)
    axes.set_xlabel("key (looked at)")
    axes.set_ylabel(_query_label(site))
    figure.colorbar(image, label="attention weight")
    figure.suptitle(f"{head.head} ({head.short})\n{patterns.title}", fontsize=10, wrap=True)
    return figure


def _kinds(patterns: AttentionPatterns) -> list[tuple[str, str]]:
    return list(dict.fromkeys((site.stack, site.kind) for site in patterns.sites))


def _query_label(site: SitePattern) -> str:
    return "query (looks)" if site.stack == "encoder" else "query (fed → says)"


def _heat_map(axes: Axes, site: SitePattern, head: HeadPattern, fontsize: int) -> AxesImage:
    image = axes.imshow(head.weights, vmin=0, vmax=1, cmap=SEQUENTIAL, aspect="auto")
    turned = 0 if max(map(len, site.keys)) < 4 else 60
    axes.set_xticks(range(len(site.keys)), site.keys, fontsize=fontsize, rotation=turned)
    axes.set_yticks(range(len(site.queries)), site.queries, fontsize=fontsize)
    return image
