"""Store the attention of every head on many examples compactly for an HTML page: one byte per weight, compressed.

A byte holds a weight in hundredths, so a page can show each weight with two decimals.
"""

from __future__ import annotations

import zlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from headcount.analysis.attention import Attention

Weights = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class SiteHeads:
    """One attention block and the names of its heads."""

    name: str
    stack: str
    kind: str
    layer: int
    heads: tuple[str, ...]
    """The short names of the heads, such as `E0H1`."""


@dataclass(frozen=True)
class PatternPage:
    """The attention weights of all heads on one example, or averaged over examples."""

    title: str
    note: str
    """A remark on the example, such as whether the answer is right; empty if there is none."""
    tokens: tuple[tuple[str, ...], ...]
    """The tokens of each axis of the heat maps; several attention blocks may share an axis."""
    axes: tuple[tuple[int, int], ...]
    """For each attention block, two indices into `tokens`: the axis of its queries, and the axis of its keys."""
    weights: tuple[NDArray[np.uint8], ...]
    """For each attention block, the weights [head, query, key] in hundredths."""

    def __post_init__(self) -> None:
        for (queries, keys), weights in zip(self.axes, self.weights, strict=True):
            assert weights.shape[1:] == (len(self.tokens[queries]), len(self.tokens[keys])), "axes fit their weights"


@dataclass(frozen=True)
class PatternBook:
    """The attention of one model's heads on several examples, one page per example, from which readers choose."""

    sites: tuple[SiteHeads, ...]
    pages: tuple[PatternPage, ...]
    places: tuple[tuple[str, ...], ...] = ()
    """The names of the positions on each axis, such as `a 10s`; empty if they differ between examples."""

    @property
    def n_heads(self) -> int:
        """Return the number of heads over all attention blocks."""
        return sum(len(site.heads) for site in self.sites)

    def header(self) -> dict[str, Any]:
        """Return the attention blocks, tokens and notes as data for JSON, without the attention weights."""
        return {
            "sites": [
                {"name": each.name, "stack": each.stack, "kind": each.kind, "layer": each.layer, "heads": each.heads}
                for each in self.sites
            ],
            "pages": [
                {"title": each.title, "note": each.note, "tokens": each.tokens, "axes": each.axes}
                for each in self.pages
            ],
            "places": self.places,
        }

    def packed(self) -> str:
        """Return all attention weights, ordered by example, block, head and query, as one compressed base-64 text."""
        raw = b"".join(weights.tobytes() for page in self.pages for weights in page.weights)
        return b64encode(zlib.compress(raw, 9)).decode()


def in_hundredths(weights: Weights) -> NDArray[np.uint8]:
    """Return weights between 0 and 1 in hundredths, rounded as Python rounds when it prints two decimals.

    >>> in_hundredths(np.array([0.004, 0.005, 0.125, 0.9951])).tolist()
    [0, 1, 12, 100]
    """
    shares = np.clip(weights, 0, 1)
    hundredths = np.rint(100 * shares)
    ties = np.abs(100 * shares % 1 - 0.5) < 1e-4
    hundredths[ties] = [round(100 * round(float(share), 2)) for share in shares[ties]]
    return hundredths.astype(np.uint8)


def book_of(results: Sequence[Attention]) -> PatternBook | None:
    """Return the attention patterns of a model as a book with one page per result; None if there are no results."""
    if not results:
        return None
    first, pages = results[0], tuple(page_of(each) for each in results)
    return PatternBook(sites_of(first), pages, _places(pages[0]) if first.example is None else ())


def _places(average: PatternPage) -> tuple[tuple[str, ...], ...]:
    """Return the names of the positions of an average over examples; a bare number 3 becomes `place 3`."""
    return tuple(tuple(f"place {each}" if each.isdigit() else each for each in axis) for axis in average.tokens)


def sites_of(result: Attention) -> tuple[SiteHeads, ...]:
    """Return the attention blocks of a result, each with its place in the model and the short names of its heads."""
    return tuple(
        SiteHeads(site.site, site.stack, site.kind, site.layer, tuple(head.short for head in site.heads))
        for site in result.sites
    )


def page_of(result: Attention) -> PatternPage:
    """Return the tokens and the attention weights of all heads on one example, as one page of a pattern book."""
    tokens: list[tuple[str, ...]] = []
    axes = []
    for site in result.sites:
        pair = [_labels(result, site, which) for which in (0, 1)]
        for labels in pair:
            if labels not in tokens:
                tokens.append(labels)
        axes.append((tokens.index(pair[0]), tokens.index(pair[1])))
    weights = tuple(in_hundredths(np.stack([head.array for head in site.heads])) for site in result.sites)
    return PatternPage(result.title, result.note, tuple(tokens), tuple(axes), weights)


def n_cells(summary: Attention) -> int:
    """Return how many attention weights all heads have on a text together if neighbouring tokens are not pooled."""
    sizes = {axis.stack: len(axis.tokens) for axis in summary.axes}
    return sum(len(site.heads) * sizes[str(site.queries)] * sizes[str(site.keys)] for site in summary.sites)


def whole_page(summary: Attention, weights: Mapping[str, Weights]) -> PatternPage:
    """Return the page of a text with every token, from `weights` [head, query, key] by name of attention block."""
    stacks = [axis.stack for axis in summary.axes]
    axes = tuple((stacks.index(str(site.queries)), stacks.index(str(site.keys))) for site in summary.sites)
    kept = tuple(in_hundredths(weights[site.site]) for site in summary.sites)
    return PatternPage(summary.title, summary.note, tuple(axis.tokens for axis in summary.axes), axes, kept)


def _labels(result: Attention, site: Any, which: int) -> tuple[str, ...]:
    """Return the labels of the queries (`which` 0) or keys (1) of a block: tokens, or bins of neighbouring tokens."""
    names = (site.queries, site.keys)[which]
    if not isinstance(names, str):
        return tuple(names)
    axis = result.axes_of(site)[which]
    bins = [axis.tokens[low:high] for low, high in zip(axis.edges, axis.edges[1:], strict=False)]
    return tuple(each[0] if len(each) == 1 else f"{each[0]} … {each[-1]}" for each in bins)
