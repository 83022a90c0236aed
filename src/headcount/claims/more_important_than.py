"""Does the model need one attention block, layer or head more than another?"""

from __future__ import annotations

import numpy as np

from headcount.claims._drops import drops_of
from headcount.claims.base import ClaimCase, ClaimKind, Judgement, heads_of
from headcount.errors import InputError


def measure(case: ClaimCase) -> Judgement:
    """Measure the difference of the two drops on the same examples, with heads removed together and one at a time."""
    others = heads_of(case.model, case.claim.objects[0])
    if set(case.heads) & set(others):
        raise InputError(
            f"{case.claim.subject} and {case.claim.objects[0]} share heads, so they cannot be compared",
            "compare different heads",
        )
    drops, subject, other = drops_of(case), case.claim.subject, case.claim.objects[0]
    together, together_other = drops.losses([case.heads, others])
    alone, alone_other = (np.sum(drops.losses([(head,) for head in group]), axis=0) for group in (case.heads, others))
    difference = drops.evidence(
        f"the drop without {subject} minus the drop without {other} is {{}}",
        drops.mean_of(together - together_other, 1.0),
    )
    summed = drops.evidence(
        f"added up, the single drops of {subject} minus those of {other} are {{}}", drops.mean_of(alone - alone_other)
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
    supported_if="removed together, the subject costs more, and so does the sum of its single drops (both CIs above 0)",
    refuted_if="removed together, the subject costs less (CI below 0)",
    controls="the sum of the single drops must agree, as two whole sites may both cost everything",
    measure=measure,
)
