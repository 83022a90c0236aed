"""Do two heads stand in for each other: does removing both cost more than removing each?"""

from __future__ import annotations

from headcount.bands import IMPORTANT
from headcount.claims._drops import drops_of
from headcount.claims.base import ClaimCase, ClaimKind, Judgement
from headcount.errors import InputError


def measure(case: ClaimCase) -> Judgement:
    """Measure on each example the drop without both heads minus the sum of the two single drops."""
    (head,), other = case.heads, case.model.find_head(case.claim.objects[0])
    if head == other:
        raise InputError(f"{head.short} cannot be redundant with itself", "name two heads")
    drops = drops_of(case)
    both, alone, alone_other = drops.losses([(head, other), (head,), (other,)])
    interaction = drops.evidence(
        "removing both costs {} more than both alone add up to", drops.mean_of(both - alone - alone_other)
    )
    singles = [drops.evidence(f"removing {each.short} alone costs {{}}", drops.drop((each,))) for each in (head, other)]
    pair = drops.evidence("removing both costs {}", drops.drop((head, other)))
    return Judgement((interaction.at_least(IMPORTANT),), (*singles, pair))


PART = ClaimKind(
    grammar="HEAD redundant-with HEAD",
    phrase="is redundant with {object}",
    supported_if="the drop without both heads exceeds the sum of both single drops by at least 1 point (whole 95 % CI)",
    refuted_if="it exceeds the sum by less than 1 point (whole 95 % CI)",
    controls="shown: the drop of each head alone, and of both",
    measure=measure,
)
