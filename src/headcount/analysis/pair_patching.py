"""Measure how the answer to one example (the receiver) changes if heads get their outputs from another (the donor).

Both examples must have equally many tokens. They are compared at the places where their answers differ. There, the
logit difference is the logit of the donor's token minus that of the receiver's own token. The *share* of a patch is
the part of the gap between both logit differences that the patch moves: 0 if nothing follows, 1 if the answer
follows the donor completely.

Every head is also patched alone, which ranks the heads. A single pair of examples proves little: `routes` measures
many.
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
"""Smallest gap, in logits, between the logit differences of donor and receiver from which a share can be computed."""


@dataclass(frozen=True)
class PlaceShift:
    """One place of the answer at which donor and receiver differ, and how far a patch moves the logits there.

    The donor is the example whose head outputs are put into the pass over the receiver.
    """

    place: str
    own: str
    """The receiver's own token at this place of the answer."""
    donor: str
    """The donor's token at this place (such as the 10s) of the answer; the donor's head outputs are put in."""
    own_difference: float
    """For the receiver without a patch: logit of the donor's token minus logit of the receiver's own token."""
    donor_difference: float
    """For the donor: logit of the donor's token minus logit of the receiver's token."""
    patched_difference: float
    """For the receiver with the patch: logit of the donor's token minus logit of the receiver's own token."""

    @property
    def share(self) -> float:
        """The part of the gap between receiver and donor that the patch moves: 0 for nothing, 1 for the whole gap."""
        return (self.patched_difference - self.own_difference) / (self.donor_difference - self.own_difference)


@dataclass(frozen=True)
class HeadShift:
    """How far patching one head alone moves the answer: its share of the logit gap at the first token that differs."""

    head: HeadName
    share: float


@dataclass(frozen=True)
class PairPatch(Result):
    """Outcome of patching head outputs from one example (the donor) into another one (the receiver)."""

    ROWS: ClassVar[tuple[str, ...]] = ("ranking",)
    name: str
    weights_sha256: str
    receiver: str
    donor: str
    own_answer: str
    donor_answer: str
    patched_answer: str
    """The answer that the model decodes for the receiver with the patch; empty if the model decodes no answers."""
    heads: tuple[HeadName, ...]
    """Names of the heads that were patched together."""
    at: tuple[str, ...]
    """Names of the only query positions that were patched, such as `10s`; empty if all positions were patched."""
    places: tuple[PlaceShift, ...]
    ranking: tuple[HeadShift, ...]
    """The share of the logit gap that each head moves when patched alone, the largest first."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if the ranking of heads is out of order, or if the two answers do not differ."""
        shares = [each.share for each in self.ranking]
        if shares != sorted(shares, reverse=True):
            yield "ranking", "heads in the order of falling shares"
        if not self.places:
            yield "places", "at least one place at which the two answers differ"


@dataclass(frozen=True)
class Pair:
    """The patched example (receiver) and the one whose head outputs are put in (donor), as tensors.

    The other fields say at which positions and tokens their answers are compared.
    """

    receiver: Sequence[Tensor]
    donor: Sequence[Tensor]
    positions: Sequence[int]
    """For each place of the answer, its position in the logits; -1 for a classifier, whose logits have no positions."""
    own: Sequence[int]
    given: Sequence[int]
    """For each place of the answer, the id of the donor's token (`given`) and of the receiver's token (`own`)."""

    def __post_init__(self) -> None:
        for one, other in zip(self.receiver, self.donor, strict=True):
            require_equal_lengths(one.shape[-1], other.shape[-1])

    def differences(self, logits: Tensor) -> list[list[float]]:
        """Return, for each row of logits, the donor's logit minus the receiver's own one at every compared position."""
        rows = []
        for row in logits.double():
            at = [row if position < 0 else row[position] for position in self.positions]
            rows.append([float(x[b] - x[a]) for x, a, b in zip(at, self.own, self.given, strict=True)])
        return rows


def require_equal_lengths(one: int, other: int) -> None:
    """Raise an error unless two examples have equally many tokens, given as `one` and `other`."""
    if one != other:
        raise InputError(
            f"both examples must have equally many tokens, got {one} and {other}",
            "choose examples of equal length: a patch copies outputs of heads position by position",
        )


def patch_pair(
    model: OpenModel, pair: Pair, heads: Sequence[HeadId], queries: Sequence[int] | None = None
) -> tuple[list[tuple[float, float, float]], list[HeadShift]]:
    """Patch head outputs from the donor into the receiver, all given heads together and every head alone.

    Return three logit differences for each place of the answer (receiver, donor, patched receiver), and the share of
    the gap that every head moves alone. The heads are patched together at `queries` (default: all positions), and each
    head alone at all positions.
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
            "the effect of a patch cannot be measured: the logit difference between the two answers changes by only "
            f"{gap:.1g} from one example to the other",
            "choose two examples with clearly different answers",
        )
    alone = [HeadShift(str(head), (after[i][0] - own[0]) / gap) for i, head in enumerate(sites.heads, start=1)]
    return list(zip(own, donor, after[0], strict=True)), sorted(alone, key=lambda each: -each.share)
