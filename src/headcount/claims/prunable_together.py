"""The claim that some heads can be removed together for at most 1 point of accuracy."""

from __future__ import annotations

import numpy as np

from headcount.bands import limit_text
from headcount.claims._drops import drops_of
from headcount.claims.base import ClaimCase, ClaimKind, Evidence, Judgement, mean_interval
from headcount.limits import LOSS
from headcount.seeds import stream

N_RANDOM = 8
"""Number of random sets with as many heads as the claim names, whose mean drop is shown for comparison."""


def measure(case: ClaimCase) -> Judgement:
    """Measure the drop in score when all heads of a claim are removed together, and return it as evidence.

    The sum of the drops of single heads and the mean drop of random sets of as many heads are shown as controls.
    """
    drops, heads, every_head = drops_of(case), case.heads, case.model.sites.heads
    together = drops.evidence("removing them together costs {}", drops.drop(heads))
    summed = drops.mean_of(np.sum(drops.losses([(head,) for head in heads]), axis=0))
    rng = stream(case.seed, "random sets", len(heads))
    picks = [rng.choice(len(every_head), size=len(heads), replace=False) for _ in range(N_RANDOM)]
    costs = [float(each.mean()) for each in drops.losses([[every_head[i] for i in pick] for pick in picks])]
    mean, low, high = mean_interval(costs)
    random = Evidence(
        "removing a random set of as many heads costs {} on average", mean, low, high, N_RANDOM, "sets", drops.unit
    )
    alone = drops.evidence("the drops of these heads, removed one at a time, add up to {}", summed)
    return Judgement((together.at_most(LOSS),), (alone, random))


PART = ClaimKind(
    grammar="SUBJECT prunable-together",
    phrase=f"can be removed together for at most {limit_text(LOSS)}",
    supported_if=f"the whole 95 % CI of the drop without all these heads lies at or below {limit_text(LOSS)}",
    refuted_if=f"the whole 95 % CI of the drop without all these heads lies above {limit_text(LOSS)}",
    controls="the sum of the drops of single heads, and the mean drop of random sets of as many heads, are shown",
    measure=measure,
)
