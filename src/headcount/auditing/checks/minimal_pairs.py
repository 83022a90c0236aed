"""Does the model recognise examples that differ from the other class in one place?

The model of published report 000 had an accuracy of 100 % at every length, because it compared each value with its
relative position. This detects all shuffled sequences, and none with a single adjacent swap. A test set of shuffles
cannot show the difference, so the check measures each way to break a sequence separately, at the longest training
length.
"""

from __future__ import annotations

from headcount.auditing.audited_model import AuditedClassifier
from headcount.auditing.check import FAIL, PASS, WARN, Check, Finding
from headcount.stats import Proportion

N_EXAMPLES = 200
"""Number of examples of each kind of broken sequence: the 95 % CI of an accuracy is then at most 14 points wide."""
MIN_EASY, MAX_HARD = 0.8, 0.5
"""The check fails if accuracy is above the first value on the easiest kind of example, and below the second on minimal
pairs."""
MAX_DIFFERENCE = 0.2
"""The check warns if accuracy on the easiest kind of example and on minimal pairs differs by more than this."""


def run(model: AuditedClassifier) -> Finding:
    """Compare accuracy on sequences that are broken in one place with accuracy on other kinds of broken sequences."""
    task, length = model.task, model.trained_lengths[1]
    recognised = {kind: _recognised(model, length, kind) for kind in task.negatives}
    evidence = {kind: share.rate for kind, share in recognised.items()} | {"n": N_EXAMPLES}
    hard = recognised.pop(task.local_negative)
    name, easy = max(recognised.items(), key=lambda item: item[1].rate)
    finding = (
        f"of {task.classes[0]} examples of length {length}, the model recognises {hard.correct} of {N_EXAMPLES} that "
        f"differ from {task.classes[-1]} ones in one place ({task.local_negative}), and {easy.correct} of {N_EXAMPLES} "
        f"of the kind {name}"
    )
    is_failure = hard.high < MAX_HARD and easy.low > MIN_EASY
    if easy.low - hard.high <= MAX_DIFFERENCE and not is_failure:
        return Finding(PASS, finding, evidence=evidence)
    return Finding(
        FAIL if is_failure else WARN,
        finding,
        cause="consistent with a rule that is not the task's, such as whether each value is near its place in the "
        "sorted sequence, and with training on examples that are broken in many places",
        fix=f"train and test on the kind {task.local_negative} too, and report accuracy by kind",
        evidence=evidence,
    )


def _recognised(model: AuditedClassifier, length: int, kind: str) -> Proportion:
    """Return the accuracy on new negative examples of this kind and length."""
    rng = model.rng(f"minimal pairs: {kind}")
    return Proportion.count(model.classify(model.task.sample_of_length(rng, length, kind, N_EXAMPLES)).hits)


PART = Check("HC601", "Does the model recognise examples that differ from the other class in one place?", classes=run)
