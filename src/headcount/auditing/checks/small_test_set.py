"""Is the test set large enough for the difference that is claimed?

One report ablated heads on a single test example; others tell figures on 500 apart that lie within their intervals. A
claimed figure that is off by more than half a point, but by less than the interval, is neither confirmed nor refuted.
"""

import math
from typing import Any, cast

from headcount.auditing.check import CONCLUSIONS, Check, Finding, passed, warned
from headcount.auditing.observed import Observed
from headcount.stats import Proportion
from headcount.training.evaluation import Claim

FEWEST = 100
"""Examples, below which any figure is coarse."""
NEAR = 0.005
"""A claimed figure this near is taken for confirmed."""
Z = 1.96


def run(observed: Observed) -> Finding:
    """The interval first, then the author's figure."""
    share = Proportion.count(observed.right)
    half = (share.high - share.low) / 2
    told = f"{100 * share.rate:.2f} % right of {share.n:,} has an interval of ± {100 * half:.1f} points"
    if share.n < FEWEST:
        return warned(
            told,
            cause=f"a test set of {share.n} examples, so that each counts {100 / share.n:.1f} points",
            fix=f"test on {FEWEST} examples at least, 2,000 for half a point at 99 %",
            n=share.n,
            half_width=half,
        )
    claim = _claim(observed)
    if claim is None or claim.claimed is None:
        return passed(told, n=share.n, half_width=half)
    return _against(claim, claim.claimed)


def _claim(observed: Observed) -> Claim | None:
    is_class = observed.task.output_type == "class"
    answers: Any = observed.answers
    return cast("Claim | None", answers.claim(observed.examples, observed.classes if is_class else observed.sequences))


def _against(claim: Claim, claimed: float) -> Finding:
    apart, half = abs(claimed - claim.measured), (claim.high - claim.low) / 2
    told = f"{100 * claimed:.2f} % is claimed and {100 * claim.measured:.2f} % measured on {claim.n:,}, "
    told += f"{100 * apart:.1f} points apart"
    numbers = {"claimed": claimed, "measured": claim.measured, "half_width": half, "n": claim.n}
    if not NEAR < apart < half:
        what = "near enough" if apart <= NEAR else "more than the interval"
        return passed(f"{told}: {what} (± {100 * half:.1f})", **numbers)
    needed = examples_needed(apart, (claimed + claim.measured) / 2)
    return warned(
        f"{told}, less than the interval of ± {100 * half:.1f}: about {needed:,} examples would tell which is right",
        cause=f"{claim.n:,} test examples are too few for a difference of {100 * apart:.1f} points",
        fix=f"test on {needed:,} examples before the two figures are called equal or different",
        needed=needed,
        **numbers,
    )


def examples_needed(apart: float, rate: float) -> int:
    """So that two shares near `rate`, each of as many examples, tell a difference like this.

    >>> examples_needed(0.01, 0.95)
    3650
    """
    return math.ceil((Z / apart) ** 2 * rate * (1 - rate) * 2 - 1e-9)


PART = Check(
    "HC404", "Is the test set large enough for the difference that is claimed?", run, is_quick=True, affects=CONCLUSIONS
)
