"""Do the outputs depend on the input at all?

They do not if an inverted mask hides every token but padding, if the pooled position attends only to itself, or if ids
are overwritten before they are embedded. Loss and accuracy are then those of guessing, as if training had failed. The
check compares the logits of sequences of one length with different right answers. If they are equal, no training helps.
"""

import numpy as np

from headcount.auditing.audited_model import AuditedClassifier
from headcount.auditing.check import Check, Finding, failed, not_applicable, passed

MAX_SPREAD = 1e-4
"""A spread of logits up to this fraction of the largest logit counts as rounding."""


def run(model: AuditedClassifier) -> Finding:
    """Fail if logits do not vary between examples of one length that have different right answers."""
    answers, lengths = model.answers, model.lengths
    groups = [rows for length in np.unique(lengths) if len(np.unique(answers.labels[rows := lengths == length])) > 1]
    if not groups:
        return not_applicable("no two examples of one length have different right answers")
    logits, largest = answers.logits.astype(np.float64), float(np.abs(answers.logits).max())
    spread = max(float(np.ptp(logits[rows], axis=0).max()) for rows in groups)
    measured = (
        f"among examples of one length, logits differ by up to {spread:.3g}, and the largest logit is {largest:.3g}"
    )
    if not spread <= MAX_SPREAD * largest:
        return passed(measured, spread=spread, largest=largest)
    nothing = "anything" if float(np.ptp(logits, axis=0).max()) <= MAX_SPREAD * largest else "anything but the length"
    return failed(
        f"outputs do not depend on {nothing} in the input: {measured}, n = {model.n:,}",
        cause="consistent with a mask that hides the tokens, a pooled position that attends only to itself, or token "
        "ids that never reach the embedding",
        fix="follow two different examples through forward() to the first tensor that is the same for both",
        spread=spread,
        largest=largest,
    )


PART = Check("HC305", "Do the outputs depend on the input at all?", classes=run, is_quick=True)
