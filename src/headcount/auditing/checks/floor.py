"""Is accuracy high enough that ablating a head can lower it?

The published reports 002 and 004 ranked heads of models whose accuracy another fault had lowered to 35 and 41 %. If a
classifier gives one answer to everything, ablating a head cannot lower its accuracy: every drop is 0, and every ranking
of heads is noise. With 60 test examples, one example is 1.7 points, so a head that costs one point cannot be told from
a head that costs nothing.
"""

from __future__ import annotations

from headcount.auditing.audited_model import AuditedModel
from headcount.auditing.check import CONCLUSIONS, Check, Evidence, Finding, failed, not_applicable, passed, warned
from headcount.formatting import percent
from headcount.limits import MIN_TEST_EXAMPLES

MIN_LEAD = 0.05
"""Smallest lead of accuracy over the best constant answer. With less, a ranking of heads depends on a few examples."""


def run(model: AuditedModel) -> Finding:
    """Check that accuracy is far enough above the best constant answer, on enough examples, to rank heads by drops."""
    if (baseline := model.baseline) is None:
        return not_applicable("all examples have the same right answer")
    measured, constant, n = baseline.measured, baseline.share, model.n
    accuracy = f"{percent(measured.rate)} of {n:,} answers are right"
    versus = f"the best constant answer reaches {percent(constant)}"
    evidence: Evidence = {"measured": measured.rate, "constant": constant, "n": n}
    if measured.low <= constant and n >= MIN_TEST_EXAMPLES:
        return failed(
            f"{accuracy}, and {versus}: ablating a head cannot lower accuracy, so a ranking of heads by drops is noise",
            cause="the model is no better than a constant answer",
            fix="repair or train the model before its heads are ranked, or rank them by loss",
            **evidence,
        )
    if measured.rate < constant + MIN_LEAD:
        return warned(
            f"{accuracy}, and {versus}: ablating heads can lower accuracy by at most "
            f"{100 * (measured.rate - constant):.1f} points",
            cause="the model is hardly better than a constant answer",
            fix="rank heads by loss, or train the model further",
            **evidence,
        )
    if n < MIN_TEST_EXAMPLES:
        return warned(
            f"{accuracy}: one example is worth {100 / n:.1f} percentage points, so heads whose ablation costs one "
            "point cannot be told apart",
            cause="there are too few examples",
            fix=f"measure on at least {MIN_TEST_EXAMPLES} examples, better on 2,000",
            **evidence,
        )
    return passed(f"{accuracy}, and {versus}", **evidence)


PART = Check(
    "HC702",
    "Is accuracy high enough that ablating a head can lower it?",
    sequences=run,
    classes=run,
    is_quick=True,
    affects=CONCLUSIONS,
)
