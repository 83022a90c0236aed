"""Is the decoder given the beginning of the answer, so that it never predicts it?

An adapter declares these tokens as `given`, and a run by its decoding start. Published reports without a start token
gave their decoder a 0: an answer that begins with another digit cannot be right, however good the model is.
"""

from __future__ import annotations

from headcount.auditing.audited_model import AuditedSequenceModel
from headcount.auditing.check import FAIL, WARN, Check, Finding, passed
from headcount.limits import RARELY
from headcount.stats import Proportion


def run(model: AuditedSequenceModel) -> Finding:
    """Count the right answers that begin with the tokens that the decoder is given; it can predict no other answers."""
    given = model.sequence_model.given
    if not given:
        return passed("the decoder predicts every token of an answer")
    begins = model.begins_as_given
    lost, n_possible = Proportion.count(~begins), int(begins.sum())
    finding = (
        f"{n_possible:,} of {model.n:,} right answers begin with {given}, which the decoder is given as the beginning "
        "of every answer and never predicts"
    )
    evidence = {"given": given, "possible": 1 - lost.rate}
    if not lost.correct:
        return passed(finding, **evidence)
    is_rare = lost.high < RARELY
    return Finding(
        WARN if is_rare else FAIL,
        finding,
        cause="the decoder was trained without a start token, so that its first prediction is a later token",
        fix="feed [start, *answer[:-1]], use the whole answer as labels, and begin generation with the start token",
        evidence=evidence,
        right_despite_fault=None if is_rare else begins,
    )


PART = Check(
    "HC107",
    "Is the decoder given the beginning of the answer, so that it never predicts it?",
    sequences=run,
    is_quick=True,
)
