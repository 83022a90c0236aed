"""What changes in the answer to one example (the receiver) if heads take their outputs from another one (the donor)?

Both examples must have equally many tokens. They are compared at the places where their answers differ. There, the
logit difference is the logit of the donor's token minus that of the receiver's own token. The *share* of a patch is
the part of the gap between both logit differences that the patch moves: 0 if nothing follows, 1 if the answer
follows the donor completely.

Every head is also patched alone, which ranks the heads. A single pair is an anecdote: `routes` measures many pairs.
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
from headcount.hooks.intervention_proof import first_tensor, prove
from headcount.hooks.patching import outputs_of
from headcount.hooks.replay import CachedPass, Intervention, sweep
from headcount.results import Contradiction, HeadName, Result

SMALLEST_GAP = 1e-3
"""Smallest gap between both logit differences, in logits, from which a share can be computed."""


@dataclass(frozen=True)
class PlaceShift:
    """One place at which the answers of donor and receiver differ, and how far a patch moves the logits there."""

    place: str
    own: str
    """The token that the receiver has at this place of its own answer."""
    donor: str
    """The token that the donor has at this place of its answer."""
    own_difference: float
    """Logit of the donor's token minus logit of the receiver's own token, for the receiver without a patch."""
    donor_difference: float
    """The logit difference (donor's token minus own token) for the donor."""
    patched_difference: float
    """The logit difference (donor's token minus own token) for the receiver with the patch."""

    @property
    def share(self) -> float:
        """The part of the gap between receiver and donor that the patch moves: 0 for nothing, 1 for all of it."""
        return (self.patched_difference - self.own_difference) / (self.donor_difference - self.own_difference)


@dataclass(frozen=True)
class HeadShift:
    """How far one head, patched alone, moves the answer: its share of the gap at the first place that differs."""

    head: HeadName
    share: float


@dataclass(frozen=True)
class PairPatch(Result):
    """Outcome of patching the outputs of some heads from one example (the donor) into another one (the receiver)."""

    ROWS: ClassVar[tuple[str, ...]] = ("ranking",)
    name: str
    weights_sha256: str
    receiver: str
    donor: str
    own_answer: str
    donor_answer: str
    patched_answer: str
    """The answer that the receiver decodes with the patch; empty if the model decodes no answers."""
    heads: tuple[HeadName, ...]
    """The heads that were patched together."""
    at: tuple[str, ...]
    """Names of the query positions that were patched, such as `10s`; empty if all were patched."""
    places: tuple[PlaceShift, ...]
    ranking: tuple[HeadShift, ...]
    """The share of every head patched alone, the largest first."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if the ranking is out of order, or if no place of the answer differs."""
        shares = [each.share for each in self.ranking]
        if shares != sorted(shares, reverse=True):
            yield "ranking", "shares in falling order"
        if not self.places:
            yield "places", "at least one place at which both answers differ"


@dataclass(frozen=True)
class Pair:
    """Receiver and donor as tensors, and the positions and tokens at which their answers are compared."""

    receiver: Sequence[Tensor]
    donor: Sequence[Tensor]
    positions: Sequence[int]
    """For each place, its position in the logits; -1 if the logits have no positions (a classifier)."""
    own: Sequence[int]
    given: Sequence[int]
    """For each place, the id of the receiver's own token; and the id of the donor's."""

    def __post_init__(self) -> None:
        for one, other in zip(self.receiver, self.donor, strict=True):
            require_equal_lengths(one.shape[-1], other.shape[-1])

    def differences(self, logits: Tensor) -> list[list[float]]:
        """Return, for each row of the logits, the logit differences (donor's token minus own token) at all places."""
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
            "choose examples of equal length: a patch moves outputs of heads position by position",
        )


def patch_pair(
    model: OpenModel, pair: Pair, heads: Sequence[HeadId], queries: Sequence[int] | None = None
) -> tuple[list[tuple[float, float, float]], list[HeadShift]]:
    """Patch heads from the donor into the receiver; return the logit differences, and the share of every head alone.

    Each place gives three logit differences: the receiver's own, the donor's, and the patched one. The heads are
    patched together at `queries` (default: all positions), and each head alone at all positions.
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
            f"the logits of both examples are nearly equal ({gap:.1g} apart), so there is no gap to move",
            "choose two examples with clearly different answers",
        )
    alone = [HeadShift(str(head), (after[i][0] - own[0]) / gap) for i, head in enumerate(sites.heads, start=1)]
    return list(zip(own, donor, after[0], strict=True)), sorted(alone, key=lambda each: -each.share)
