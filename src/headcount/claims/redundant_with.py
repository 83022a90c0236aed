"""The claim that two heads stand in for each other: removing both costs more than the sum of removing each alone."""

from __future__ import annotations

from headcount.bands import IMPORTANT, limit_text
from headcount.claims._drops import drops_of
from headcount.claims.base import ClaimCase, ClaimKind, Judgement
from headcount.errors import InputError


def measure(case: ClaimCase) -> Judgement:
    """Measure the drop without two heads minus the sum of the drops without each of them, on the same examples."""
    (head,), other = case.heads, case.model.find_head(case.claim.objects[0])
    if head == other:
        raise InputError(f"{head.short} cannot be redundant with itself", "name two different heads")
    drops = drops_of(case)
    both, alone, alone_other = drops.losses([(head, other), (head,), (other,)])
    interaction = drops.evidence(
        "removing both heads costs {} more than the sum of removing each alone",
        drops.mean_of(both - alone - alone_other),
    )
    singles = [drops.evidence(f"removing {each.short} alone costs {{}}", drops.drop((each,))) for each in (head, other)]
    pair = drops.evidence("removing both heads costs {}", drops.drop((head, other)))
    return Judgement((interaction.at_least(IMPORTANT),), (*singles, pair))


PART = ClaimKind(
    grammar="HEAD redundant-with HEAD",
    phrase="is redundant with {object}",
    supported_if="the drop without both heads exceeds the sum of both single drops by at least "
    f"{limit_text(IMPORTANT)} (whole 95 % CI)",
    refuted_if=f"the drop without both heads exceeds the sum of both single drops by less than {limit_text(IMPORTANT)} "
    "(whole 95 % CI)",
    controls="the drop without each head alone, and that without both, are shown",
    measure=measure,
)
