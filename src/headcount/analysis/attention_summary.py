"""Where does each head of a large model attend on one text? Pool its attention weights, measure and name the head.

Large models have many heads, and texts are long. Each head's weights are therefore pooled into bins of neighbouring
tokens: the mean over a bin's queries of the total weight on a bin's keys. Rows still sum to 1, and in a short text each
bin is one token. The measures of `role_measures` are computed from the weights before pooling, as means over queries.
Heads that stand out by one of these measures get names (`roles`; one text, no controls).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isqrt
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from headcount.analysis.attention import PARTS, Array, Attention, Axis, HeadAttention, SiteAttention, shortened
from headcount.analysis.attention_measures import rounded
from headcount.analysis.role_measures import RoleSums, in_clusters, marks_of, only_row, site_measures, stacks_of
from headcount.analysis.roles import TEXTS, name_heads
from headcount.data.dataset import TokenizedText
from headcount.errors import InputError
from headcount.heads import HeadId, HeadSite
from headcount.hooks.attention import Weights, read_attention
from headcount.hooks.sites import Sites

MOST_BINS = 32
"""Largest number of bins (groups of neighbouring tokens) on an axis of pooled attention weights."""
MOST_CELLS = 150_000
"""Largest number of pooled weights over all heads, which keeps the JSON below 1 MB. More heads get wider bins."""


@dataclass(frozen=True, kw_only=True)
class AttentionSummary(Attention):
    """The attention of any model on one text: pooled weights of each head, and measures before pooling."""

    ABSENT = ("n", "example", "probability", "correct", "explanation", "weighting", "weights", "deviation")
    INDENT: ClassVar[int | None] = None  # one line per number would make the file several times as large

    def pattern(self, head: str | HeadId, weights: Array, most: int) -> tuple[tuple[Axis, Axis], Array]:
        """Pool a head's weights [query, key] into at most `most` bins of tokens per axis; return axes and weights."""
        axes = self.axes_of(self.find(head)[0])
        queries, keys = (replace(axis, edges=_edges(len(axis.tokens), most)) for axis in axes)
        n_queries, n_keys = len(queries.tokens), len(keys.tokens)
        if weights.shape != (n_queries, n_keys):
            raise InputError(
                f"the attention weights of {head} must be a matrix of {n_queries} queries by {n_keys} keys, got the "
                f"shape {weights.shape}"
            )
        return (queries, keys), _pooled(weights, queries, keys)


def attention_summary(
    name: str,
    digest: str,
    model: nn.Module,
    sites: Sites,
    row: TokenizedText,
    text: str | None = None,
) -> AttentionSummary:
    """Pool and measure the attention of every head of a model on one tokenized text.

    `row` is the tokenized text, and `text` the text before tokenization, for the title.
    """
    most, axes = max(1, min(MOST_BINS, isqrt(MOST_CELLS // len(sites.heads)))), dict[str, Axis]()
    for stack, tokens in row.tokens.items():
        mask, n = row.special.get(stack), len(tokens)
        if mask is not None and len(mask) != n:
            raise InputError(
                f"the mask of special tokens of the {stack} has {len(mask)} values, but the text has {n} tokens",
                "give one boolean per token: True for special tokens",
            )
        positions = None if mask is None else tuple(i for i, is_special in enumerate(mask) if is_special)
        axes[stack] = Axis(stack, tuple(tokens), positions, _edges(n, most))
    results, sums = dict[HeadSite, SiteAttention](), dict[HeadSite, dict[str, RoleSums]]()
    marks = marks_of(row.tokens, row.special, row.separators)

    def add(site: HeadSite, weights: Weights) -> None:
        measures = site_measures(site, weights, marks)
        sums[site] = {role: in_clusters(measure, 1) for role, measure in measures.items()}
        queries, keys = (axes[stack] for stack in stacks_of(site))
        heads = []
        for i, (head, w) in enumerate(zip(sites[site].heads, only_row(weights), strict=True)):
            values = w.float().nan_to_num().cpu().double().numpy()
            parts = (PARTS * _pooled(values, queries, keys)).round().astype(int)
            means: dict[str, Any] = {role: measure.mean(i) for role, measure in measures.items()}
            means = {role: None if mean is None else rounded(mean, 4) for role, mean in means.items()}
            pooled = tuple(map(tuple, parts.tolist()))
            heads.append(HeadAttention(head=str(head), short=head.short, **means, pooled=pooled))
        n = {role: int(measure.counted.sum()) for role, measure in measures.items()}
        results[site] = SiteAttention(str(site), site.stack, site.layer, site.kind, *stacks_of(site), tuple(heads), n)

    read_attention(model, sites, row.inputs, add)
    named = {role.head: tuple(role.named) for role in name_heads(sites, {TEXTS: sums})}
    for site, result in results.items():
        results[site] = replace(result, heads=tuple(replace(head, named=named[head.head]) for head in result.heads))
    words = [token for axis in axes.values() for token in axis.tokens] if text is None else text.split()
    return AttentionSummary(
        name=name,
        weights_sha256=digest,
        title=shortened(" ".join(words)),
        n_tokens=sum(map(len, row.tokens.values())),
        axes=tuple(axes.values()),
        sites=tuple(results[site] for site in sites),
        note=row.note,
        predicted=row.predicted,
        right=row.right,
    )


def head_pattern(model: nn.Module, sites: Sites, inputs: Sequence[Tensor], head: HeadId) -> NDArray[np.float32]:
    """Return the attention weights [query, key] of one head on one text (`inputs` are its tensors), without pooling."""
    (slot,) = sites.head_slots((head,))[head.site]
    patterns: list[NDArray[np.float32]] = []

    def keep(site: HeadSite, weights: Weights) -> None:
        if site == head.site:
            patterns.append(only_row(weights)[slot].float().nan_to_num().cpu().numpy())

    read_attention(model, sites, inputs, keep)
    return patterns[-1]


def _edges(n: int, most: int) -> tuple[int, ...]:
    """Return the boundaries from 0 to n that split n tokens into at most `most` bins of neighbouring tokens."""
    return tuple(np.linspace(0, n, min(n, most) + 1).round().astype(int).tolist())


def _pooled(weights: Array, queries: Axis, keys: Axis) -> Array:
    by_key = np.add.reduceat(weights, keys.edges[:-1], axis=1)
    mean: Array = np.add.reduceat(by_key, queries.edges[:-1], axis=0) / np.diff(queries.edges)[:, None]
    return mean
