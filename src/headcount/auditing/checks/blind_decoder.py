"""Do the decoder's logits depend on the question?

A cross-attention mask may be inverted, or the encoder's output may not reach the decoder. The decoder then learns how
answers look on average: its loss falls for a while, and it answers every question alike. The check feeds the same
answers with other questions, and fails if no logit changes.
"""

from __future__ import annotations

import numpy as np

from headcount.auditing.audited_model import MAX_LOGIT_CHANGE, AuditedSequenceModel, logit_changes
from headcount.auditing.check import Check, Finding, failed, not_applicable, passed
from headcount.tasks.base import IGNORE

N_EXAMPLES = 64
"""Number of examples that get another example's question; one changed logit shows that the decoder sees questions."""


def run(model: AuditedSequenceModel) -> Finding:
    """Give each example the question of another one but keep its answer; fail if no logit changes."""
    rows = model.rows_of_one_length(N_EXAMPLES)
    if len(rows) < 2:
        return not_applicable("no two questions have the same length")
    examples, answers = model.examples[rows], model.right_answers[rows]
    logits, labels = model.logits_when_fed(examples, answers)
    others, _ = model.logits_when_fed(np.roll(examples, 1, axis=0), answers)
    if others.shape != logits.shape:
        return not_applicable("the logits have another shape if another question is given")
    if not bool(logits.isfinite().any()):
        return not_applicable("no logit is a finite number")
    changes = (logit_changes(logits, others) * (labels != IGNORE)).amax(dim=1)
    n_changed, n, largest = int((changes > MAX_LOGIT_CHANGE).sum()), len(rows), float(changes.max())
    if n_changed:
        finding = f"with another question, the logits change in {n_changed:,} of {n:,} examples"
        return passed(finding, n=n, moved=n_changed, largest=largest)
    return failed(
        "if the encoder reads another question and the decoder the same answer, the logits stay the same in "
        f"{n:,} of {n:,} examples (largest change: {largest:.1g} times the largest logit)",
        cause="the decoder cannot see its input: consistent with a cross-attention mask that is inverted or hides "
        "everything, or with an encoder output that does not reach the decoder",
        fix="pass the encoder's output to every cross-attention, mask only its padding, and train again",
        n=n,
        largest=largest,
    )


PART = Check("HC204", "Do the decoder's logits depend on the question?", sequences=run)
