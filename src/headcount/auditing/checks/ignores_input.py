"""Do outputs depend on the input at all?

A mask the wrong way round hides every token and leaves the padding; a pooled position attends to itself alone; ids are
overwritten before they are embedded. Loss and accuracy are then those of guessing, as if training had failed. Logits of
different sequences of one length, sorted and unsorted, are compared: if they are the same, no training could help.
"""

from typing import cast

import numpy as np

from headcount.auditing.check import Check, Finding, failed, not_applicable, passed
from headcount.auditing.observed import Observed
from headcount.tasks.base import ClassTask

TINY = 1e-4
"""Of the largest logit: what counts as no difference."""


def run(observed: Observed) -> Finding:
    """The widest spread of any logit among examples of one length that have different right answers."""
    found, lengths = observed.classes, cast(ClassTask, observed.task).lengths(observed.examples)
    groups = [rows for length in np.unique(lengths) if len(np.unique(found.labels[rows := lengths == length])) > 1]
    if not groups:
        return not_applicable("no two examples of one length have different right answers")
    logits, largest = found.logits.astype(np.float64), float(np.abs(found.logits).max())
    spread = max(float(np.ptp(logits[rows], axis=0).max()) for rows in groups)
    told = f"among examples of one length, logits differ by up to {spread:.3g}, and the largest is {largest:.3g}"
    if not spread <= TINY * largest:
        return passed(told, spread=spread, largest=largest)
    only = "anything" if float(np.ptp(logits, axis=0).max()) <= TINY * largest else "anything but the length"
    return failed(
        f"outputs do not depend on {only} in the input: {told}, n = {observed.n:,}",
        cause="consistent with a mask that hides the tokens, a position that attends to nothing but itself, or ids "
        "that never reach the embedding",
        fix="follow two different examples through forward() until the first tensor that is the same for both",
        spread=spread,
        largest=largest,
    )


PART = Check(
    "HC305",
    "Do outputs depend on the input at all?",
    run,
    asks="class",
    is_quick=True,
    explains=("HC301", "HC302", "HC303", "HC304", "HC505", "HC601", "HC602"),
)
