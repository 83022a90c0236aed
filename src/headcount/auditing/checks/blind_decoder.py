"""Does what the model outputs depend on the question?

Cross-attention whose mask is inverted, an encoder's output that is never handed on, a source that is not passed: the
decoder learns how answers look in general, its loss goes down for a while, and it answers every question alike. It is
seen by feeding the same answers beside other questions: then some logit has to move.
"""

from __future__ import annotations

import numpy as np

from headcount.auditing.check import Check, Finding, failed, not_applicable, passed
from headcount.auditing.fed_answers import TOLERANCE, rows_of_one_length, share_moved
from headcount.auditing.observed import Observed
from headcount.tasks.base import IGNORE

ROWS = 64
"""Examples that are tried."""


def run(observed: Observed) -> Finding:
    """The same answers, the next example's question."""
    rows = rows_of_one_length(observed, ROWS)
    if len(rows) < 2:
        return not_applicable("there is but one question of its length")
    examples, answers = observed.examples[rows], observed.right_answers[rows]
    logits, labels = observed.logits_when_fed(examples, answers)
    others, _ = observed.logits_when_fed(np.roll(examples, 1, axis=0), answers)
    if others.shape != logits.shape:
        return not_applicable("its logits have another shape beside another question")
    if not bool(logits.isfinite().any()):
        return not_applicable("its logits are not numbers")
    moved = (share_moved(logits, others) * (labels != IGNORE)).amax(dim=1)
    n_moved, n = int((moved > TOLERANCE).sum()), len(rows)
    if n_moved:
        return passed("other questions have other logits", n=n, moved=n_moved, largest=float(moved.max()))
    return failed(
        f"beside another question, the logits of the same answer stay as they are in {n:,} of {n:,} examples: "
        f"the largest change is {float(moved.max()):.1g} of the largest logit",
        cause="the decoder cannot see its input: consistent with a cross-attention mask that is inverted or shuts "
        "everything out, or an encoder's output that does not reach the decoder",
        fix="hand the encoder's output to every cross-attention, mask its padding alone, and train again",
        n=n,
        largest=float(moved.max()),
    )


PART = Check(
    "HC204",
    "Does what the model outputs depend on the question?",
    run,
    asks="sequence",
    explains=("HC101", "HC102", "HC106", "HC301", "HC303", "HC304", "HC305"),
)
