"""Is the test set large enough for the difference that is claimed?

One published report ablated heads on a single test example. Others call accuracies on 500 examples different although
each lies within the 95 % CI of the other. If a claimed accuracy is off by more than half a point but lies within the CI
of the measured one, it is neither confirmed nor refuted.
"""

import math

from headcount.auditing.audited_model import AuditedModel
from headcount.auditing.check import CONCLUSIONS, Check, Finding, passed, warned
from headcount.formatting import percent
from headcount.limits import MIN_TEST_EXAMPLES
from headcount.stats import Z95, Proportion
from headcount.training.evaluation import Claim

MAX_CONFIRMED_DIFFERENCE = 0.005
"""A measurement confirms the author's figure if they differ by at most this: most reports round to half a point."""


def run(model: AuditedModel) -> Finding:
    """Check whether the test set is large enough to tell the measured accuracy from the claimed one."""
    share = Proportion.count(model.right)
    half = (share.high - share.low) / 2
    finding = f"{percent(share.rate, 2)} of {share.n:,} answers are right (95 % CI ± {100 * half:.1f} points)"
    if share.n < MIN_TEST_EXAMPLES:
        return warned(
            finding,
            cause=f"the test set has only {share.n} examples, so each is worth {100 / share.n:.1f} percentage points",
            fix=f"test on at least {MIN_TEST_EXAMPLES} examples; for a CI of half a point at 99 % accuracy, on 2,000",
            n=share.n,
            half_width=half,
        )
    claim = model.claim()
    if claim is None or claim.claimed is None:
        return passed(finding, n=share.n, half_width=half)
    return _compare(claim, claim.claimed)


def _compare(claim: Claim, claimed: float) -> Finding:
    difference, half = abs(claimed - claim.measured), (claim.high - claim.low) / 2
    figures = (
        f"the measured accuracy is {percent(claim.measured, 2)} of {claim.n:,} and the claimed one "
        f"{percent(claimed, 2)}, {100 * difference:.1f} points apart"
    )
    numbers = {"claimed": claimed, "measured": claim.measured, "half_width": half, "n": claim.n}
    if not MAX_CONFIRMED_DIFFERENCE < difference < half:
        is_near = difference <= MAX_CONFIRMED_DIFFERENCE
        conclusion = "the claim is confirmed" if is_near else "the claim is outside the 95 % CI"
        return passed(f"{figures}: {conclusion} (± {100 * half:.1f} points)", **numbers)
    needed = examples_needed(difference, (claimed + claim.measured) / 2)
    return warned(
        f"{figures}, which is within the 95 % CI (± {100 * half:.1f} points): about {needed:,} examples would tell "
        "them apart",
        cause=f"{claim.n:,} test examples are too few to confirm a difference of {100 * difference:.1f} points",
        fix=f"test on {needed:,} examples before the two figures are called equal or different",
        needed=needed,
        **numbers,
    )


def examples_needed(difference: float, rate: float) -> int:
    """Return how many examples each of two measurements needs to show this difference between rates near `rate`.

    >>> examples_needed(0.01, 0.95)
    3650
    """
    return math.ceil((Z95 / difference) ** 2 * rate * (1 - rate) * 2 - 1e-9)


PART = Check(
    "HC404",
    "Is the test set large enough for the difference that is claimed?",
    sequences=run,
    classes=run,
    is_quick=True,
    affects=CONCLUSIONS,
)
