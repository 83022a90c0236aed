"""Is the test set large enough for the difference that is claimed?

One report ablated heads on a single test example. Others distinguish figures on 500 examples that lie within their 95 %
CIs. A claimed figure that is off by more than half a point, but by less than the CI, is neither confirmed nor refuted.
"""

import math

from headcount.auditing.audited_model import AuditedModel
from headcount.auditing.check import CONCLUSIONS, Check, Finding, passed, warned
from headcount.limits import MIN_TEST_EXAMPLES
from headcount.stats import Z95, Proportion, percent
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
            cause=f"a test set of {share.n} examples, so that each counts {100 / share.n:.1f} points",
            fix=f"test on at least {MIN_TEST_EXAMPLES} examples, and on 2,000 for half a point at 99 %",
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
        f"{percent(claim.measured, 2)} of {claim.n:,} is measured and {percent(claimed, 2)} claimed, "
        f"{100 * difference:.1f} points apart"
    )
    numbers = {"claimed": claimed, "measured": claim.measured, "half_width": half, "n": claim.n}
    if not MAX_CONFIRMED_DIFFERENCE < difference < half:
        is_near = difference <= MAX_CONFIRMED_DIFFERENCE
        conclusion = "the claim is confirmed" if is_near else "more than the 95 % CI"
        return passed(f"{figures}: {conclusion} (± {100 * half:.1f})", **numbers)
    needed = examples_needed(difference, (claimed + claim.measured) / 2)
    return warned(
        f"{figures}, less than the 95 % CI of ± {100 * half:.1f}: about {needed:,} examples would decide",
        cause=f"{claim.n:,} test examples are too few for a difference of {100 * difference:.1f} points",
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
