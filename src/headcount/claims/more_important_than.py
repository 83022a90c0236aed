"""The claim that the model needs one attention block, layer or head more than another."""

from __future__ import annotations

import numpy as np

from headcount.claims._drops import drops_of
from headcount.claims.base import ClaimCase, ClaimKind, Judgement, heads_of
from headcount.errors import InputError


def measure(case: ClaimCase) -> Judgement:
    """Measure the drops of two groups of heads on the same examples, and return their difference as evidence.

    The heads of each group are removed together and, to check that both agree, one at a time.
    """
    others = heads_of(case.model, case.claim.objects[0])
    if set(case.heads) & set(others):
        raise InputError(
            f"{case.claim.subject} and {case.claim.objects[0]} have heads in common, so they cannot be compared",
            "name two groups without common heads",
        )
    drops, subject, other = drops_of(case), case.claim.subject, case.claim.objects[0]
    together, together_other = drops.losses([case.heads, others])
    alone, alone_other = (np.sum(drops.losses([(head,) for head in group]), axis=0) for group in (case.heads, others))
    difference = drops.evidence(
        f"the drop without {subject} minus the drop without {other} is {{}}",
        drops.mean_of(together - together_other, 1.0),
    )
    summed = drops.evidence(
        f"the sum of the drops of single heads of {subject} minus that of {other} is {{}}",
        drops.mean_of(alone - alone_other),
    )
    wholes = [
        drops.evidence(f"removing {name} costs {{}}", drops.drop(group))
        for name, group in ((subject, case.heads), (other, others))
    ]
    sizes = f"{subject} has {len(case.heads)} heads, and {other} has {len(others)}."
    note = "" if len(case.heads) == len(others) else sizes
    return Judgement((difference.above(0.0),), (summed.above(0.0), *wholes), note=note)


PART = ClaimKind(
    grammar="SUBJECT more-important-than SUBJECT",
    phrase="is more important than {object}",
    supported_if="removing the subject's heads together costs more than removing those of the other, and so does "
    "the sum of the drops of its single heads (both 95 % CIs of the difference above 0)",
    refuted_if="removing all heads of the subject together costs less (whole 95 % CI of the difference below 0)",
    controls="the sums of the drops of single heads must agree, because the model may lose all of its accuracy without "
    "either of two whole blocks",
    measure=measure,
)
