"""Measure how much of a head's attention goes to kinds of keys that every text has: neighbours, copies, separators.

These measures need no task. They are defined by positions and tokens. For a query at i, a visible key j counts as:

    first         j = 0
    previous      j = i - 1
    itself        j = i
    next          j = i + 1
    farthest      |i - j| is largest (two keys for a query in the middle); left out if this is the first token for all
                  queries, as in causal models
    special       j is a special token of the tokenizer
    separator     j is a separator; left out if all separators are special tokens
    duplicate     j is another copy of the token at i
    induction     j < i, and the token at j - 1 is a copy of the token at i (Olsson et al. 2022, "In-context learning
                  and induction heads", arXiv 2209.11895)
    matching      j is a copy of the token at i on another side of a separator, as for the atoms of a reaction
    entropy_share entropy / log n, where n keys are visible: 0 if on one key, 1 if uniform
    distance      |i - j| in tokens

Special tokens and separators do not count as copies, as queries or as keys, and not as the token after a copy either.
Cross-attention connects two texts, whose positions are not comparable. It has only the measures first, special,
separator, duplicate (a copy in the other text) and induction (the token after any copy).

A query counts if it sees a key of the kind and another key. Visible keys are inferred from the weights. Besides the
attention to these keys, `tops` counts the queries whose largest weight is on such a key (ties do not count; for
`matching`, the largest weight across the separator counts), and `even` is the value under uniform attention.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from headcount.attention_roles import ROLES
from headcount.errors import InputError
from headcount.experiments.task_attention import query_minus_key, visible_in
from headcount.heads import HeadSite
from headcount.hooks.attention import Weights

SPREAD = ("entropy_share", "distance")
CLUSTERS = 24
"""Number of clusters of neighbouring queries, over which standard errors are computed.

Neighbouring queries are not independent. With more texts than this, each text is one cluster.
"""
AT_ONCE = 2**24
"""Number of attention weights of a block that are processed together, which limits the memory."""
PIECES = "Ġ▁#"
"""Characters with which tokenizers mark the start of a word or of a part of a word."""


@dataclass(frozen=True)
class Marks:
    """The tokens of one stack (encoder or decoder) as numbers, and masks of its special tokens and separators."""

    ids: Int[Tensor, " token"]
    special: Bool[Tensor, " token"]
    separator: Bool[Tensor, " token"]

    @property
    def plain(self) -> Bool[Tensor, " token"]:
        """A mask of the tokens that are neither special tokens nor separators."""
        return ~(self.special | self.separator)

    def to(self, device: torch.device) -> Marks:
        """Return a copy whose tensors are on this device."""
        return Marks(self.ids.to(device), self.special.to(device), self.separator.to(device))


def marks_of(
    tokens: Mapping[str, Sequence[str]],
    special: Mapping[str, Sequence[bool]] | None = None,
    separators: Collection[str] = (),
) -> dict[str, Marks]:
    """Return the tokens of each stack as numbers, with special tokens and separators marked.

    Equal tokens get equal numbers in all stacks.
    """
    numbers: dict[str, int] = {}
    marks = {}
    for stack, labels in tokens.items():
        ids = torch.tensor([numbers.setdefault(label, len(numbers)) for label in labels])
        is_special = (special or {}).get(stack) or [False] * len(labels)
        marks[stack] = Marks(ids, torch.tensor(list(is_special)), torch.tensor(separator_places(labels, separators)))
    return marks


def separator_places(tokens: Sequence[str], separators: Collection[str]) -> list[bool]:
    """Return whether each token is a separator, or part of a separator that the tokenizer split.

    >>> separator_places(["a", ">>", "b"], [">>"]), separator_places(["a", "Ġ>", ">", "b"], [">>"])
    ([False, True, False], [False, True, True, False])
    """
    bare = [token.lstrip(PIECES) or token for token in tokens]
    is_separator = [token in separators for token in tokens]
    for separator in separators:
        for begin in range(len(bare)):
            end = begin + 1
            while end < len(bare) and len("".join(bare[begin:end])) < len(separator):
                end += 1
            if "".join(bare[begin:end]) == separator:
                is_separator[begin:end] = [True] * (end - begin)
    return is_separator


def role_targets(
    queries: Marks, keys: Marks, sees: Bool[Tensor, "query key"], kind: str
) -> dict[str, Bool[Tensor, "query key"]]:
    """Return masks [query, key] of the visible keys that count for each role, such as `previous` (the token before)."""
    lag, key = query_minus_key(sees), torch.arange(sees.shape[1], device=sees.device)
    copies = (queries.ids[:, None] == keys.ids[None]) & queries.plain[:, None] & keys.plain[None]
    if kind == "self":
        copies &= lag != 0
    after = copies.roll(1, dims=1) & (key > 0) & keys.plain[None]
    targets = {"first": key == 0, "special": keys.special, "duplicate": copies, "induction": after}
    if (keys.separator & ~keys.special).any():
        targets["separator"] = keys.separator
    if kind == "self":
        farthest = _farthest(lag, sees)
        targets |= {"previous": lag == 1, "itself": lag == 0, "next": lag == -1, "induction": after & (lag > 0)}
        targets |= {"matching": copies & _across(queries, keys)}
        targets |= {} if torch.equal(farthest, sees & (key == 0)) else {"farthest": farthest}
    return {role: targets[role] & sees for role in ROLES if role in targets}


def _across(queries: Marks, keys: Marks) -> Tensor:
    """Return a mask [query, key] of pairs of plain tokens that lie on different sides of a separator."""
    query_side, key_side = (marks.separator.cumsum(dim=0) for marks in (queries, keys))
    is_across = query_side[:, None] != key_side[None]
    return is_across & queries.plain[:, None] & keys.plain[None]


def _farthest(lag: Tensor, sees: Tensor) -> Tensor:
    distance = torch.where(sees, lag.abs(), -1)
    return sees & (distance == distance.amax(dim=1, keepdim=True))


def stacks_of(site: HeadSite) -> tuple[str, str]:
    """Return the names of the stacks (encoder, decoder) whose tokens are an attention block's queries and keys."""
    return site.stack, "encoder" if site.kind == "cross" else site.stack


def only_row(weights: Weights) -> Float[Tensor, "head query key"]:
    """Return the attention weights of a batch of one row; raise an error if the batch has more rows."""
    if len(weights) != 1:
        raise InputError(
            f"attention is measured on one text at a time, got a batch of {len(weights)} rows",
            "give a batch of one row",
        )
    return weights[0]


# --- measures of each query, and sums over queries and texts ----------------------------------------------------------


Values = NDArray[np.float64]


@dataclass(frozen=True)
class QueryMeasure:
    """The values of one measure, such as attention to the previous token, for all heads of a block on one text."""

    values: Values
    """Values of the measure, [head, query]."""
    counted: NDArray[np.bool_]
    """A mask [query] of the queries that count for the measure."""
    even: Values
    """Values that uniform attention would give, [query]."""
    tops: NDArray[np.bool_] | None = None
    """Whether each query's largest weight is on a key of the role, [head, query]; None if the measure is not a role."""

    def mean(self, head: int) -> float | None:
        """Return a head's mean over the counted queries; None if no query is counted."""
        return float(self.values[head, self.counted].mean()) if self.counted.any() else None


def site_measures(site: HeadSite, weights: Weights, marks: Mapping[str, Marks]) -> dict[str, QueryMeasure]:
    """Return every attention measure of the heads of a block on one text; `marks` are the tokens of each stack."""
    sizes = {stack: len(of_stack.ids) for stack, of_stack in marks.items()}
    if tuple(map(sizes.get, stacks_of(site))) != weights.shape[2:]:
        given = " queries and ".join(map(str, weights.shape[2:]))
        raise InputError(
            f"{site} has {given} keys, but the numbers of given tokens are {sizes}",
            "give one token per position of the model's inputs",
        )
    queries, keys = (marks[stack] for stack in stacks_of(site))
    return query_measures(only_row(weights), queries, keys, site.kind)


def query_measures(
    weights_HQK: Float[Tensor, "head query key"], queries: Marks, keys: Marks, kind: str
) -> dict[str, QueryMeasure]:
    """Return every attention measure of heads from their weights [head, query, key] and their tokens."""
    sees = visible_in(weights_HQK, kind)
    device, n_visible = weights_HQK.device, sees.sum(dim=1)
    targets, several = role_targets(queries.to(device), keys.to(device), sees, kind), _array(n_visible > 1) > 0
    size = max(1, AT_ONCE // max(sees.numel(), 1))
    parts = [part.float().nan_to_num() for part in weights_HQK.split(size)]
    measures = {}
    for role, target in targets.items():
        rivals = ~target & (_across(queries.to(device), keys.to(device)) if role == "matching" else sees)
        masses, tops = zip(*(_on_target(part, target, rivals) for part in parts), strict=True)
        n_target = target.sum(dim=1)
        counted = _array((n_target > 0) & (n_target < n_visible)) > 0
        even = _array(n_target) / _array(n_visible.clamp(min=1))
        measures[role] = QueryMeasure(_array(torch.cat(masses)), counted, even, _array(torch.cat(tops)) > 0)
    entropy = torch.cat([torch.special.entr(part).sum(dim=-1) for part in parts])
    shares = _array(entropy / n_visible.clamp(min=2).log())
    measures["entropy_share"] = QueryMeasure(shares, several, np.ones(len(several)))
    if kind == "self":
        distance = query_minus_key(sees).abs().float()
        means = torch.cat([torch.einsum("hqk,qk->hq", part, distance) for part in parts])
        even = _array((distance * sees).sum(dim=1)) / _array(n_visible.clamp(min=1))
        measures["distance"] = QueryMeasure(_array(means), several, even)
    return measures


def _on_target(weights: Tensor, target: Tensor, rivals: Tensor) -> tuple[Tensor, Tensor]:
    """Return each query's total weight on the marked keys, and whether one of them has a larger weight than all rivals.

    Both are [head, query]. `target` and `rivals` are masks [query, key].
    """
    most, other = (weights.masked_fill(~mask, -1.0).amax(dim=-1) for mask in (target, rivals))
    return torch.einsum("hqk,qk->hq", weights, target.float()), most > other


def _array(tensor: Tensor) -> Values:
    return tensor.cpu().double().numpy()


@dataclass(frozen=True)
class RoleSums:
    """One measure of one attention block, summed over the queries of each cluster (neighbouring queries of a text)."""

    sums: Values
    """Sums of the measure over queries, [cluster of queries, head]."""
    counts: Values
    """Number of counted queries, [cluster of queries]."""
    even: Values
    """Sums of the values under uniform attention, [cluster of queries]."""
    tops: Values | None
    """Number of queries whose largest weight is on a key of the role, [cluster, head]; None if it is not a role."""

    def __add__(self, other: RoleSums) -> RoleSums:
        """Return the sums of both, with the clusters of the other texts appended."""
        tops = None if self.tops is None or other.tops is None else np.concatenate([self.tops, other.tops])
        sums, counts = np.concatenate([self.sums, other.sums]), np.concatenate([self.counts, other.counts])
        return RoleSums(sums, counts, np.concatenate([self.even, other.even]), tops)


def in_clusters(measure: QueryMeasure, n_texts: int) -> RoleSums:
    """Return the sums of a measure over clusters of neighbouring queries; more texts mean fewer clusters per text."""
    n = len(measure.counted)
    n_clusters = max(1, min(n, -(-CLUSTERS // n_texts)))
    cluster_QC = np.eye(n_clusters)[np.arange(n) * n_clusters // max(n, 1)] * measure.counted[:, None]
    tops = None if measure.tops is None else (measure.tops @ cluster_QC).T
    return RoleSums((measure.values @ cluster_QC).T, cluster_QC.sum(axis=0), measure.even @ cluster_QC, tops)


SiteSums = Mapping[HeadSite, Mapping[str, RoleSums]]
"""The sums of every measure, by attention block and name of the measure."""
