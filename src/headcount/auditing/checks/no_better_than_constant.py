"""Is accuracy better than that of the best constant answer?

The published reports 002, 003 and 004 took an accuracy of "about 50 %" with two classes for a weak model, and 0.486 and
0.514 for a difference between encodings. Accuracy should be above the share of the most common right answer among the
same examples.
"""

from __future__ import annotations

from headcount.auditing.audited_model import AuditedModel
from headcount.auditing.check import RESTATED, Check, Evidence, Finding, failed, not_applicable, passed, warned
from headcount.formatting import number, percent


def run(model: AuditedModel) -> Finding:
    """Compare accuracy, or exact match, with that of always giving the most common right answer."""
    if (baseline := model.baseline) is None:
        return not_applicable(f"all {model.n:,} right answers are the same")
    measured = baseline.measured
    accuracy = f"{percent(measured.rate, 2)} of {model.n:,} answers are right"
    versus = f"always answering {baseline.answer} is right on {percent(baseline.share, 2)}"
    evidence: Evidence = {"measured": measured.rate, "constant": baseline.share, "n": model.n}
    if baseline.is_beaten:
        return passed(f"{accuracy}; {versus}", **evidence)
    if baseline.is_undecided:
        return warned(
            f"{accuracy} (95 % CI {number(100 * measured.low)} to {percent(measured.high)}); {versus}",
            cause="there are too few examples to tell the model from a constant answer",
            fix="measure on more examples",
            **evidence,
        )
    return failed(
        f"{accuracy}, no better than a constant answer: {versus}",
        cause="consistent with a model that is untrained or whose loss never fell, or with weights that were never "
        "loaded",
        fix="compare the loss with that of guessing, and check that the trained weights are the ones that are measured",
        **evidence,
    )


PART = Check(
    "HC303",
    "Is accuracy better than that of the best constant answer?",
    sequences=run,
    classes=run,
    is_quick=True,
    affects=RESTATED,
)
