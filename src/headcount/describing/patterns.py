"""Every head on many examples, small enough to be kept in a page: a byte per weight, in hundredths, deflated.

Hundredths, so that a weight reads off the page as it does off the result, to two digits.
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
    """One attention block."""

    name: str
    stack: str
    kind: str
    layer: int
    heads: tuple[str, ...]
    """Short names."""


@dataclass(frozen=True)
class PatternPage:
    """All heads on one example, or averaged."""

    title: str
    note: str
    """What became of it, such as that the answer is right."""
    tokens: tuple[tuple[str, ...], ...]
    """The axes that there are: their tokens, ..."""
    axes: tuple[tuple[int, int], ...]
    """... and for each site, which of them are its queries and its keys."""
    weights: tuple[NDArray[np.uint8], ...]
    """For each site [head, query, key], in hundredths."""

    def __post_init__(self) -> None:
        for (queries, keys), weights in zip(self.axes, self.weights, strict=True):
            assert weights.shape[1:] == (len(self.tokens[queries]), len(self.tokens[keys])), "axes fit their weights"


@dataclass(frozen=True)
class PatternBook:
    """Pages that readers turn."""

    sites: tuple[SiteHeads, ...]
    pages: tuple[PatternPage, ...]
    places: tuple[tuple[str, ...], ...] = ()
    """What tokens of the first page's axes stand for, where those of the other pages stand for the same: `a 10s`."""

    @property
    def n_heads(self) -> int:
        """Of the model."""
        return sum(len(site.heads) for site in self.sites)

    def header(self) -> dict[str, Any]:
        """All but the weights."""
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
        """The weights, page after page, site after site, head after head, row after row: deflated, in base 64."""
        raw = b"".join(weights.tobytes() for page in self.pages for weights in page.weights)
        return b64encode(zlib.compress(raw, 9)).decode()


def in_hundredths(weights: Weights) -> NDArray[np.uint8]:
    """From shares of 1, rounded as they are printed: 0.005 is a little more than its digits say, so it is 0.01.

    >>> in_hundredths(np.array([0.004, 0.005, 0.125, 0.9951])).tolist()
    [0, 1, 12, 100]
    """
    shares = np.clip(weights, 0, 1)
    found = np.rint(100 * shares)
    ties = np.abs(100 * shares % 1 - 0.5) < 1e-4
    found[ties] = [round(100 * round(float(share), 2)) for share in shares[ties]]
    return found.astype(np.uint8)


def book_of(results: Sequence[Attention]) -> PatternBook | None:
    """Of results of one model, each a page; None if there are none."""
    if not results:
        return None
    first, pages = results[0], tuple(page_of(each) for each in results)
    return PatternBook(sites_of(first), pages, _places(pages[0]) if first.example is None else ())


def _places(average: PatternPage) -> tuple[tuple[str, ...], ...]:
    """An average names places, not tokens; where it only counts them, so that they are not taken for numbers."""
    return tuple(tuple(f"place {each}" if each.isdigit() else each for each in axis) for axis in average.tokens)


def sites_of(result: Attention) -> tuple[SiteHeads, ...]:
    """Every site and its heads."""
    return tuple(
        SiteHeads(site.site, site.stack, site.kind, site.layer, tuple(head.short for head in site.heads))
        for site in result.sites
    )


def page_of(result: Attention) -> PatternPage:
    """One result, pooled as it is."""
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
    """Weights of all heads on a text, token by token."""
    sizes = {axis.stack: len(axis.tokens) for axis in summary.axes}
    return sum(len(site.heads) * sizes[str(site.queries)] * sizes[str(site.keys)] for site in summary.sites)


def whole_page(summary: Attention, weights: Mapping[str, Weights]) -> PatternPage:
    """A text token by token: by site, its weights [head, query, key]."""
    stacks = [axis.stack for axis in summary.axes]
    axes = tuple((stacks.index(str(site.queries)), stacks.index(str(site.keys))) for site in summary.sites)
    kept = tuple(in_hundredths(weights[site.site]) for site in summary.sites)
    return PatternPage(summary.title, summary.note, tuple(axis.tokens for axis in summary.axes), axes, kept)


def _labels(result: Attention, site: Any, which: int) -> tuple[str, ...]:
    """Tokens, or bins of tokens that are named by their first and last one."""
    given = (site.queries, site.keys)[which]
    if not isinstance(given, str):
        return tuple(given)
    axis = result.axes_of(site)[which]
    bins = [axis.tokens[low:high] for low, high in zip(axis.edges, axis.edges[1:], strict=False)]
    return tuple(each[0] if len(each) == 1 else f"{each[0]} … {each[-1]}" for each in bins)
