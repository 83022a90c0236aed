"""Is accuracy better than that of the best constant answer?

"About 50 %" of two classes was read as a weak model in reports 002, 003 and 004, and 0.486 and 0.514 as a difference
between encodings. The share of the most common right answer, on the same examples, is what accuracy has to be above.
"""

from __future__ import annotations

from headcount.auditing.check import (
    PASS,
    RESTATED,
    WARN,
    Check,
    Evidence,
    Finding,
    failed,
    not_applicable,
    passed,
    warned,
)
from headcount.auditing.observed import Observed
from headcount.auditing.standing import standing


def run(observed: Observed) -> Finding:
    """Accuracy, or exact match, beside the best constant answer."""
    found = standing(observed)
    if found is None:
        return not_applicable(f"all {observed.n:,} right answers are the same")
    measured = found.measured
    told = f"{measured.correct:,} of {observed.n:,} answers are right, {100 * measured.rate:.2f} %"
    beside = f"{found.answer} to everything would be right in {100 * found.share:.2f} %"
    evidence: Evidence = {"measured": measured.rate, "constant": found.share, "n": observed.n}
    if found.verdict == PASS:
        return passed(f"{told}; {beside}", **evidence)
    if found.verdict == WARN:
        return warned(
            f"{told} (95 % interval {100 * measured.low:.1f} to {100 * measured.high:.1f} %); {beside}",
            cause="there are too few examples to tell the model from a constant answer",
            fix="measure on more examples",
            **evidence,
        )
    return failed(
        f"{told}, no better than a constant answer: {beside}",
        cause="consistent with a model that is untrained or whose loss never fell, or with weights never loaded",
        fix="compare the loss with that of guessing, and look whether the trained weights are those that are measured",
        measured=measured.rate,
        constant=found.share,
        n=observed.n,
    )


PART = Check(
    "HC303",
    "Is accuracy better than that of the best constant answer?",
    run,
    is_quick=True,
    explains=("HC702", "HC703", "HC802"),
    affects=RESTATED,
)
