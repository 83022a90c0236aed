"""Attention of every head on many examples, stored small enough for a page: one byte per weight, compressed.

A byte holds hundredths, so the page shows a weight with the two digits that the result has.
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
    """The tokens of each axis."""
    axes: tuple[tuple[int, int], ...]
    """For each attention block, the indices in `tokens` of the axis of its queries and of its keys."""
    weights: tuple[NDArray[np.uint8], ...]
    """For each attention block, the weights [head, query, key] in hundredths."""

    def __post_init__(self) -> None:
        for (queries, keys), weights in zip(self.axes, self.weights, strict=True):
            assert weights.shape[1:] == (len(self.tokens[queries]), len(self.tokens[keys])), "axes fit their weights"


@dataclass(frozen=True)
class PatternBook:
    """Attention of one model's heads on several examples, among which readers choose."""

    sites: tuple[SiteHeads, ...]
    pages: tuple[PatternPage, ...]
    places: tuple[tuple[str, ...], ...] = ()
    """The names of the positions, such as `a 10s`, if they are equal for all examples; otherwise empty."""

    @property
    def n_heads(self) -> int:
        """Return the number of heads over all attention blocks."""
        return sum(len(site.heads) for site in self.sites)

    def header(self) -> dict[str, Any]:
        """Return the blocks, tokens and notes as data for JSON, without the weights."""
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
        """Return all weights as one text, in the order example, block, head, query: compressed, in base 64."""
        raw = b"".join(weights.tobytes() for page in self.pages for weights in page.weights)
        return b64encode(zlib.compress(raw, 9)).decode()


def in_hundredths(weights: Weights) -> NDArray[np.uint8]:
    """Return weights from 0 to 1 as hundredths, rounded as Python prints them with two digits.

    >>> in_hundredths(np.array([0.004, 0.005, 0.125, 0.9951])).tolist()
    [0, 1, 12, 100]
    """
    shares = np.clip(weights, 0, 1)
    hundredths = np.rint(100 * shares)
    ties = np.abs(100 * shares % 1 - 0.5) < 1e-4
    hundredths[ties] = [round(100 * round(float(share), 2)) for share in shares[ties]]
    return hundredths.astype(np.uint8)


def book_of(results: Sequence[Attention]) -> PatternBook | None:
    """Return the attention patterns of a model with one page per result; None if it has no results."""
    if not results:
        return None
    first, pages = results[0], tuple(page_of(each) for each in results)
    return PatternBook(sites_of(first), pages, _places(pages[0]) if first.example is None else ())


def _places(average: PatternPage) -> tuple[tuple[str, ...], ...]:
    """Return the names of an average's positions; a bare number becomes `place 3`, so it is not read as a token."""
    return tuple(tuple(f"place {each}" if each.isdigit() else each for each in axis) for axis in average.tokens)


def sites_of(result: Attention) -> tuple[SiteHeads, ...]:
    """Return the attention blocks of a result, each with the short names of its heads, such as `E0H1`."""
    return tuple(
        SiteHeads(site.site, site.stack, site.kind, site.layer, tuple(head.short for head in site.heads))
        for site in result.sites
    )


def page_of(result: Attention) -> PatternPage:
    """Return the tokens and the attention weights of all heads on one example, as a page."""
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
    """Return the number of attention weights that all heads have on a text, if its tokens are not pooled."""
    sizes = {axis.stack: len(axis.tokens) for axis in summary.axes}
    return sum(len(site.heads) * sizes[str(site.queries)] * sizes[str(site.keys)] for site in summary.sites)


def whole_page(summary: Attention, weights: Mapping[str, Weights]) -> PatternPage:
    """Return the page of a text with all of its tokens, from the weights [head, query, key] of each attention block."""
    stacks = [axis.stack for axis in summary.axes]
    axes = tuple((stacks.index(str(site.queries)), stacks.index(str(site.keys))) for site in summary.sites)
    kept = tuple(in_hundredths(weights[site.site]) for site in summary.sites)
    return PatternPage(summary.title, summary.note, tuple(axis.tokens for axis in summary.axes), axes, kept)


def _labels(result: Attention, site: Any, which: int) -> tuple[str, ...]:
    """Return the tokens of an axis. A bin of neighbouring tokens is named by its first and its last token."""
    names = (site.queries, site.keys)[which]
    if not isinstance(names, str):
        return tuple(names)
    axis = result.axes_of(site)[which]
    bins = [axis.tokens[low:high] for low, high in zip(axis.edges, axis.edges[1:], strict=False)]
    return tuple(each[0] if len(each) == 1 else f"{each[0]} … {each[-1]}" for each in bins)
