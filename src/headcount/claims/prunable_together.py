"""Can the heads of the subject be removed together for at most 1 point?"""

from __future__ import annotations

import numpy as np

from headcount.bands import IMPORTANT
from headcount.claims._drops import drops_of
from headcount.claims.base import ClaimCase, ClaimKind, Evidence, Judgement, mean_interval
from headcount.seeds import stream

N_RANDOM = 8
"""Number of random sets of equally many heads, for comparison."""


def measure(case: ClaimCase) -> Judgement:
    """Measure the drop when all heads of the subject are removed together."""
    drops, heads, every_head = drops_of(case), case.heads, case.model.sites.heads
    together = drops.evidence("removing them together costs {}", drops.drop(heads))
    summed = drops.mean_of(np.sum(drops.losses([(head,) for head in heads]), axis=0))
    rng = stream(case.seed, "random sets", len(heads))
    picks = [rng.choice(len(every_head), size=len(heads), replace=False) for _ in range(N_RANDOM)]
    costs = [float(each.mean()) for each in drops.losses([[every_head[i] for i in pick] for pick in picks])]
    mean, low, high = mean_interval(costs)
    random = Evidence("random sets of as many heads cost {} on average", mean, low, high, N_RANDOM, "sets", drops.unit)
    alone = drops.evidence("their drops one at a time add up to {}", summed)
    return Judgement((together.at_most(IMPORTANT),), (alone, random))


PART = ClaimKind(
    grammar="SUBJECT prunable-together",
    phrase="can be removed together for at most 1 point",
    supported_if="the 95 % CI of the drop without all these heads lies at or below 1 point",
    refuted_if="the CI lies above 1 point",
    controls="shown: the sum of the drops one at a time, and random sets of as many heads",
    measure=measure,
)
