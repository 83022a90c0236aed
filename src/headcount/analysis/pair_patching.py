"""What changes in the answer to one example if heads take their outputs from another one?

Both examples must have equally many tokens. The answer is compared where the answers of both examples differ: there,
the logit difference is the logit of the donor's token minus that of the receiver's own token. The *share* of a patch is
the part of the gap between both logit differences that the patch moves: 0 if nothing follows, 1 if the answer follows
the donor completely.

Every head is also patched alone, which ranks the heads. A single pair is an anecdote: `routes` measures many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from headcount.errors import InputError
from headcount.experiments.models import OpenModel
from headcount.heads import HeadId
from headcount.hooks.gates import eval_mode
from headcount.hooks.patching import outputs_of
from headcount.hooks.proof import first_tensor, prove
from headcount.hooks.replay import CachedPass, Intervention, sweep
from headcount.results import Contradiction, HeadName, Result

SMALLEST_GAP = 1e-3
"""Smallest gap, in logits, between both answers of which a share can be computed."""


@dataclass(frozen=True)
class PlaceShift:
    """One place at which the answers of both examples differ."""

    place: str
    own: str
    """The token of the receiver's own answer."""
    donor: str
    """The token of the donor's answer."""
    own_difference: float
    """Logit difference (donor's token minus own token) of the receiver without a patch."""
    donor_difference: float
    """Logit difference of the donor."""
    patched_difference: float
    """Logit difference of the receiver with the patch."""

    @property
    def share(self) -> float:
        """The part of the gap that the patch moves."""
        return (self.patched_difference - self.own_difference) / (self.donor_difference - self.own_difference)


@dataclass(frozen=True)
class HeadShift:
    """The share of the gap that one head moves alone, at the first place that differs."""

    head: HeadName
    share: float


@dataclass(frozen=True)
class PairPatch(Result):
    """A patch of some heads from one example into another."""

    ROWS: ClassVar[tuple[str, ...]] = ("ranking",)
    name: str
    weights_sha256: str
    receiver: str
    donor: str
    own_answer: str
    donor_answer: str
    patched_answer: str
    """The receiver's answer with the patch; empty if the model decodes no answers."""
    heads: tuple[HeadName, ...]
    """The heads that were patched together."""
    at: tuple[str, ...]
    """Names of the query positions that were patched; empty for all positions."""
    places: tuple[PlaceShift, ...]
    ranking: tuple[HeadShift, ...]
    """Every head alone, the largest share first."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield an inconsistency between the ranking and its order, or between the patch and its places."""
        shares = [each.share for each in self.ranking]
        if shares != sorted(shares, reverse=True):
            yield "ranking", "shares in falling order"
        if not self.places:
            yield "places", "at least one place at which both answers differ"


@dataclass(frozen=True)
class Pair:
    """Two examples as tensors, and the positions and tokens at which their answers are compared."""

    receiver: Sequence[Tensor]
    donor: Sequence[Tensor]
    positions: Sequence[int]
    """Positions of the logits; -1 for logits without positions."""
    own: Sequence[int]
    given: Sequence[int]
    """The ids of the receiver's own tokens, and of the donor's."""

    def __post_init__(self) -> None:
        for one, other in zip(self.receiver, self.donor, strict=True):
            require_equal_lengths(one.shape[-1], other.shape[-1])

    def differences(self, logits: Tensor) -> list[list[float]]:
        """Return the logit differences at all places, for each row of the logits."""
        rows = []
        for row in logits.double():
            at = [row if position < 0 else row[position] for position in self.positions]
            rows.append([float(x[b] - x[a]) for x, a, b in zip(at, self.own, self.given, strict=True)])
        return rows


def require_equal_lengths(one: int, other: int) -> None:
    """Raise an error unless both examples have equally many tokens."""
    if one != other:
        raise InputError(
            f"both examples must have equally many tokens, got {one} and {other}",
            "choose another pair: outputs of heads are moved position by position",
        )


def patch_pair(
    model: OpenModel, pair: Pair, heads: Sequence[HeadId], queries: Sequence[int] | None = None
) -> tuple[list[tuple[float, float, float]], list[HeadShift]]:
    """Return the logit differences of each place (own, donor's, patched), and the share of every head alone.

    The heads are patched together at `queries`, by default at all positions; each head alone at all positions.
    """
    module, sites = model.module, model.sites
    with eval_mode(module), torch.no_grad():
        prove(module, sites, [torch.cat([a, b]) for a, b in zip(pair.receiver, pair.donor, strict=True)])
        given = outputs_of(module, sites, pair.donor)
        cached = CachedPass(module, sites, pair.receiver)
        (own,), (donor,) = (pair.differences(first_tensor(each)) for each in (cached.output, module(*pair.donor)))
        values = {site: cached.z(site).clone() for site in sites.head_slots(heads)}
        for site, value in values.items():
            at = slice(None) if queries is None else list(queries)
            value[:, at] = given[site][:, at]
        patches = [Intervention(tuple(heads), "patch", values=values)]
        patches += [Intervention((head,), "patch", values={head.site: given[head.site]}) for head in sites.heads]
        after = {i: pair.differences(first_tensor(output))[0] for i, output in sweep(cached, patches, checked=True)}
    gap = donor[0] - own[0]
    if abs(gap) < SMALLEST_GAP:
        raise InputError(
            f"both examples have the same logits ({gap:.1g} apart), so that nothing can follow", "choose another pair"
        )
    alone = [HeadShift(str(head), (after[i][0] - own[0]) / gap) for i, head in enumerate(sites.heads, start=1)]
    return list(zip(own, donor, after[0], strict=True)), sorted(alone, key=lambda each: -each.share)
