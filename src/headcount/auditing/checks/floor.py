"""Is there room for heads to matter?

Reports 002 and 004 ranked heads on a baseline of 35 and 41 % that a fault had set, and a classifier that gives one
answer to everything loses nothing with any head: at a floor, every drop is 0 and every ranking is noise. And on 60
examples one example is 1.7 points, so that a head that costs a point cannot be told from one that costs nothing.
"""

from __future__ import annotations

from headcount.auditing.check import CONCLUSIONS, Check, Evidence, Finding, failed, not_applicable, passed, warned
from headcount.auditing.observed import Observed
from headcount.auditing.standing import standing

ROOM = 0.05
"""Above the best constant answer; below that, ranks are of a few examples."""
ENOUGH = 100
"""Examples, so that one of them is a point."""


def run(observed: Observed) -> Finding:
    """Accuracy above the best constant answer, and the number of examples."""
    found = standing(observed)
    if found is None:
        return not_applicable("all examples have one right answer")
    measured, constant, n = found.measured, found.share, observed.n
    told = f"{measured.correct:,} of {n:,} answers are right, {100 * measured.rate:.1f} %"
    beside = f"the best constant answer has {100 * constant:.1f} %"
    evidence: Evidence = {"measured": measured.rate, "constant": constant, "n": n}
    if measured.low <= constant and n >= ENOUGH:
        return failed(
            f"{told}, and {beside}: no head can cost anything, and a ranking of heads by drops is noise",
            cause="the model is at the floor of its task",
            fix="repair or train the model before its heads are ranked, or rank them by loss",
            measured=measured.rate,
            constant=constant,
            n=n,
        )
    if measured.rate < constant + ROOM:
        return warned(
            f"{told}, and {beside}: all heads together can cost {100 * (measured.rate - constant):.1f} points",
            cause="the model is near the floor of its task",
            fix="rank heads by loss, or train the model further",
            **evidence,
        )
    if n < ENOUGH:
        return warned(
            f"{told}: one example is {100 / n:.1f} points, so heads that cost a point cannot be told apart",
            cause="there are too few examples",
            fix=f"measure on {ENOUGH} examples at least, better on 2,000",
            **evidence,
        )
    return passed(f"{told}, and {beside}", **evidence)


PART = Check(
    "HC702", "Is there room for heads to matter?", run, is_quick=True, explains=("HC703", "HC704"), affects=CONCLUSIONS
)
