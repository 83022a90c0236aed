"""Is the decoder handed the beginning of an answer, and so never predicts it?

An adapter says so by `given`, a run by how its decoding starts. The reports without a start token handed their decoder
a 0: an answer that begins otherwise cannot be right, however good the model is.
"""

from __future__ import annotations

from typing import cast

from headcount.auditing.check import Check, Finding, failed, passed, warned
from headcount.auditing.observed import Observed
from headcount.auditing.written_answers import begins_as_given
from headcount.stats import Proportion
from headcount.training.answers import RARELY
from headcount.training.evaluation import SequenceModel


def run(observed: Observed) -> Finding:
    """What is handed, against how right answers begin."""
    given = cast(SequenceModel, observed.answers).given
    if not given:
        return passed("every token of an answer is predicted")
    begins = begins_as_given(observed)
    lost, possible = Proportion.count(~begins), int(begins.sum())
    finding = (
        f"the decoder is handed {given} as the beginning of every answer and never predicts it: "
        f"{possible:,} of {observed.n:,} right answers begin so"
    )
    cause = "the decoder was trained without a start token, so that its first prediction is that of a later token"
    fix = "feed [start, *answer[:-1]], ask for the whole answer, and begin generation with the start token"
    if not lost.correct:
        return passed(finding, given=given, possible=1.0)
    if lost.high < RARELY:
        return warned(finding, cause=cause, fix=fix, given=given, possible=1 - lost.rate)
    return failed(finding, cause=cause, fix=fix, right_despite_fault=begins, given=given, possible=1 - lost.rate)


PART = Check(
    "HC107",
    "Is the decoder handed the beginning of an answer, and so never predicts it?",
    run,
    asks="sequence",
    is_quick=True,
    explains=("HC104", "HC106", "HC303", "HC304", "HC702", "HC703", "HC802"),
)
