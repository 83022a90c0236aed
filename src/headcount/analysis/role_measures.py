"""How much of a head's attention goes to keys of a kind that every text has: neighbours, copies, separators?

No task says what is right here; positions and tokens do. For a query at i, of the keys j that it can see:

    first         j = 0
    previous      j = i - 1
    itself        j = i
    next          j = i + 1
    farthest      |i - j| is the largest that there is (two keys in the very middle; where that is the first token for
                  all queries, as in causal models, it is `first` and is left out)
    special       special tokens, as the tokenizer has them
    separator     separators; left out where they are special tokens anyway
    duplicate     other copies of the token at i
    induction     the token after an earlier copy of the token at i: j < i, and a copy at j - 1 (Olsson et al. 2022,
                  "In-context learning and induction heads", arXiv 2209.11895)
    matching      copies of the token at i on another side of a separator: what maps atoms of a reaction's two sides
    entropy_share entropy / log n, where n keys are visible: 0 on one key, 1 even
    distance      |i - j| in tokens

Special tokens and separators are no copies of each other, neither as queries nor as keys, nor is what follows a copy.
In cross-attention places of two texts are not compared: what is left is first, special, separator, duplicate (copies in
the other text) and induction (what follows any of them).

A query counts if it sees what is meant and something else; what is visible is read off the weights. Beside the weight,
`tops` counts the queries whose largest weight is on such a key (a tie is none; of `matching`, the largest of those
across the separator, which is how atoms are mapped), and `even` is what even attention over visible keys would give.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from headcount.errors import InputError
from headcount.heads import HeadSite
from headcount.hooks.attention import Weights

ROLES = (
    *("first", "previous", "itself", "next", "farthest"),
    *("special", "separator", "duplicate", "induction", "matching"),
)
"""Shares of attention, after which a head can be named."""
SPREAD = ("entropy_share", "distance")
CLUSTERS = 24
"""Neighbouring queries are alike, so runs of them count as one: so many in all, or one for each of more texts."""
AT_ONCE = 2**24
"""Weights of a site that are worked on together."""
PIECES = "Ġ▁#"
"""What tokenizers put before words, or before pieces of them."""


@dataclass(frozen=True)
class Marks:
    """The tokens of one stack as numbers, and which of them are special or separate parts of the text."""

    ids: Int[Tensor, " token"]
    special: Bool[Tensor, " token"]
    separator: Bool[Tensor, " token"]

    @property
    def plain(self) -> Bool[Tensor, " token"]:
        """Words, or what stands for them."""
        return ~(self.special | self.separator)

    def to(self, device: torch.device) -> Marks:
        """The same on another device."""
        return Marks(self.ids.to(device), self.special.to(device), self.separator.to(device))


def marks_of(
    tokens: Mapping[str, Sequence[str]],
    special: Mapping[str, Sequence[bool]] | None = None,
    separators: Collection[str] = (),
) -> dict[str, Marks]:
    """By stack; equal tokens are equal in all stacks."""
    numbers: dict[str, int] = {}
    found = {}
    for stack, labels in tokens.items():
        ids = torch.tensor([numbers.setdefault(label, len(numbers)) for label in labels])
        marked = (special or {}).get(stack) or [False] * len(labels)
        found[stack] = Marks(ids, torch.tensor(list(marked)), torch.tensor(separator_places(labels, separators)))
    return found


def separator_places(tokens: Sequence[str], separators: Collection[str]) -> list[bool]:
    """Which tokens are a separator, or a part of one that the tokenizer took apart.

    >>> separator_places(["a", ">>", "b"], [">>"]), separator_places(["a", "Ġ>", ">", "b"], [">>"])
    ([False, True, False], [False, True, True, False])
    """
    bare = [token.lstrip(PIECES) or token for token in tokens]
    found = [token in separators for token in tokens]
    for separator in separators:
        for begin in range(len(bare)):
            end = begin + 1
            while end < len(bare) and len("".join(bare[begin:end])) < len(separator):
                end += 1
            if "".join(bare[begin:end]) == separator:
                found[begin:end] = [True] * (end - begin)
    return found


def visible_keys(weights_HQK: Float[Tensor, "head query key"], kind: str) -> Bool[Tensor, "query key"]:
    """Keys that any head attends to; within one text, as far as any query does, for sharp heads' weights round to 0."""
    seen = torch.zeros(weights_HQK.shape[1:], dtype=torch.bool, device=weights_HQK.device)
    for weights_QK in weights_HQK:
        seen |= weights_QK > 0
    sees = seen.any(dim=0).expand_as(seen)
    if kind == "self" and seen.any():
        lag = _lag(seen)
        sees = sees & (lag >= lag[seen].min()) & (lag <= lag[seen].max())
    return sees


def _lag(pairs: Tensor) -> Tensor:
    """Query less key."""
    return torch.sub(*torch.meshgrid(*(torch.arange(n, device=pairs.device) for n in pairs.shape), indexing="ij"))


def role_targets(
    queries: Marks, keys: Marks, sees: Bool[Tensor, "query key"], kind: str
) -> dict[str, Bool[Tensor, "query key"]]:
    """The visible keys that each role means, query by query."""
    lag, key = _lag(sees), torch.arange(sees.shape[1], device=sees.device)
    copies = (queries.ids[:, None] == keys.ids[None]) & queries.plain[:, None] & keys.plain[None]
    if kind == "self":
        copies &= lag != 0
    after = copies.roll(1, dims=1) & (key > 0) & keys.plain[None]
    meant = {"first": key == 0, "special": keys.special, "duplicate": copies, "induction": after}
    if (keys.separator & ~keys.special).any():
        meant["separator"] = keys.separator
    if kind == "self":
        farthest = _farthest(lag, sees)
        meant |= {"previous": lag == 1, "itself": lag == 0, "next": lag == -1, "induction": after & (lag > 0)}
        meant |= {"matching": copies & _across(queries, keys)}
        meant |= {} if torch.equal(farthest, sees & (key == 0)) else {"farthest": farthest}
    return {role: meant[role] & sees for role in ROLES if role in meant}


def _across(queries: Marks, keys: Marks) -> Tensor:
    """Whether a key is on another side of a separator than the query; special tokens and separators are on none."""
    query_side, key_side = (each.separator.cumsum(dim=0) for each in (queries, keys))
    parts = query_side[:, None] != key_side[None]
    return parts & queries.plain[:, None] & keys.plain[None]


def _farthest(lag: Tensor, sees: Tensor) -> Tensor:
    distance = torch.where(sees, lag.abs(), -1)
    return sees & (distance == distance.amax(dim=1, keepdim=True))


def stacks_of(site: HeadSite) -> tuple[str, str]:
    """The stacks whose tokens are a site's queries and keys."""
    return site.stack, "encoder" if site.kind == "cross" else site.stack


def only_row(weights: Weights) -> Float[Tensor, "head query key"]:
    """Those of the one text that there is."""
    if len(weights) != 1:
        raise InputError(f"attention is shown on one text, and these are {len(weights)} rows", "give one row")
    return weights[0]


# --- query by query, and pooled over texts ----------------------------------------------------------------------------


Values = NDArray[np.float64]


@dataclass(frozen=True)
class QueryMeasure:
    """One measure at one site on one text."""

    values: Values
    """[head, query]."""
    counted: NDArray[np.bool_]
    """[query]: whether it has a meaning there."""
    even: Values
    """[query]."""
    tops: NDArray[np.bool_] | None = None
    """[head, query]: whether the largest weight is on such a key; None if the measure is no weight."""

    def mean(self, head: int) -> float | None:
        """Over the queries that count; None if there are none."""
        return float(self.values[head, self.counted].mean()) if self.counted.any() else None


def site_measures(site: HeadSite, weights: Weights, marks: Mapping[str, Marks]) -> dict[str, QueryMeasure]:
    """Every measure of every head of a site on one text, whose tokens are known by stack."""
    sizes = {stack: len(each.ids) for stack, each in marks.items()}
    if tuple(map(sizes.get, stacks_of(site))) != weights.shape[2:]:
        given = " queries and ".join(map(str, weights.shape[2:]))
        raise InputError(f"{site} has {given} keys", f"tokens were named for {sizes}")
    queries, keys = (marks[stack] for stack in stacks_of(site))
    return query_measures(only_row(weights), queries, keys, site.kind)


def query_measures(
    weights_HQK: Float[Tensor, "head query key"], queries: Marks, keys: Marks, kind: str
) -> dict[str, QueryMeasure]:
    """Every measure of every head of a site."""
    sees = visible_keys(weights_HQK, kind)
    device, n_visible = weights_HQK.device, sees.sum(dim=1)
    targets, several = role_targets(queries.to(device), keys.to(device), sees, kind), _array(n_visible > 1) > 0
    size = max(1, AT_ONCE // max(sees.numel(), 1))
    parts = [part.float().nan_to_num() for part in weights_HQK.split(size)]
    found = {}
    for role, target in targets.items():
        rivals = ~target & (_across(queries.to(device), keys.to(device)) if role == "matching" else sees)
        masses, tops = zip(*(_on_target(part, target, rivals) for part in parts), strict=True)
        n_target = target.sum(dim=1)
        counted = _array((n_target > 0) & (n_target < n_visible)) > 0
        even = _array(n_target) / _array(n_visible.clamp(min=1))
        found[role] = QueryMeasure(_array(torch.cat(masses)), counted, even, _array(torch.cat(tops)) > 0)
    entropy = torch.cat([torch.special.entr(part).sum(dim=-1) for part in parts])
    shares = _array(entropy / n_visible.clamp(min=2).log())
    found["entropy_share"] = QueryMeasure(shares, several, np.ones(len(several)))
    if kind == "self":
        distance = _lag(sees).abs().float()
        reach = torch.cat([torch.einsum("hqk,qk->hq", part, distance) for part in parts])
        even = _array((distance * sees).sum(dim=1)) / _array(n_visible.clamp(min=1))
        found["distance"] = QueryMeasure(_array(reach), several, even)
    return found


def _on_target(weights: Tensor, target: Tensor, rivals: Tensor) -> tuple[Tensor, Tensor]:
    """The weight on the keys that are meant, and whether none of their rivals has as much as the best of them."""
    most, other = (weights.masked_fill(~mask, -1.0).amax(dim=-1) for mask in (target, rivals))
    return torch.einsum("hqk,qk->hq", weights, target.float()), most > other


def _array(tensor: Tensor) -> Values:
    return tensor.cpu().double().numpy()


@dataclass(frozen=True)
class RoleSums:
    """One measure at one site, over all texts: sums over the queries that count, in clusters of neighbours."""

    sums: Values
    """[cluster, head]."""
    counts: Values
    """[cluster]."""
    even: Values
    """[cluster]."""
    tops: Values | None
    """[cluster, head]: queries whose largest weight is on such a key."""

    def __add__(self, other: RoleSums) -> RoleSums:
        """Further texts."""
        tops = None if self.tops is None or other.tops is None else np.concatenate([self.tops, other.tops])
        sums, counts = np.concatenate([self.sums, other.sums]), np.concatenate([self.counts, other.counts])
        return RoleSums(sums, counts, np.concatenate([self.even, other.even]), tops)


def in_clusters(measured: QueryMeasure, n_texts: int) -> RoleSums:
    """Sums over runs of neighbouring queries, the fewer the more texts there are."""
    n = len(measured.counted)
    n_runs = max(1, min(n, -(-CLUSTERS // n_texts)))
    run_QC = np.eye(n_runs)[np.arange(n) * n_runs // max(n, 1)] * measured.counted[:, None]
    tops = None if measured.tops is None else (measured.tops @ run_QC).T
    return RoleSums((measured.values @ run_QC).T, run_QC.sum(axis=0), measured.even @ run_QC, tops)


SiteSums = Mapping[HeadSite, Mapping[str, RoleSums]]
"""By site and measure."""
