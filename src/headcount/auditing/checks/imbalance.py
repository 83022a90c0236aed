"""Are the classes of the test set unbalanced?

Some published reports drew each label at random. Between 45.4 and 54.6 % of their test sets were of one class, and a
model with one answer to everything had exactly this accuracy. An accuracy must be compared with that of the best
constant answer. For tasks whose answers are sequences, the check warns if one answer is right on more than a fifth of
the test set.
"""

from collections import Counter

import numpy as np
import scipy  # scipy.special alone, which is quick to load

from headcount.auditing.audited_model import AuditedClassifier, AuditedSequenceModel
from headcount.auditing.check import CONCLUSIONS, Check, Finding, passed, warned
from headcount.formatting import percent
from headcount.stats import Proportion

MAX_CLASS_SHARE, MAX_CHANCE = 0.55, 0.01
"""Largest share of one of two classes that counts as balanced, and the p-value below which imbalance is significant."""
MAX_ANSWER_SHARE = 0.2
"""Largest share of a single right answer among sequences: above it, results need the constant answer as a baseline."""


def check_classes(model: AuditedClassifier) -> Finding:
    """Count the classes of the whole test set; warn if they are significantly unbalanced."""
    task = model.task
    labels = task.encode(task.split(model.split)).labels
    counts = np.bincount(labels, minlength=len(task.classes))
    largest, n, fair = int(counts.argmax()), len(labels), 1 / len(task.classes)
    share = Proportion.of(int(counts[largest]), n)
    chance = scipy.special.bdtrc(share.correct - 1, n, fair)  # p-value if all classes are equally likely
    counted = f"{share.correct:,} of {n:,} test examples are {task.classes[largest]}"
    if share.rate <= MAX_CLASS_SHARE - 0.5 + fair or chance >= MAX_CHANCE:
        return passed(f"classes are balanced: {counted}", share=share.rate, n=n)
    return _warning(f"{counted}: a model that always gives this answer reaches {percent(share.rate)}", share)


def check_sequences(model: AuditedSequenceModel) -> Finding:
    """Find the most common right answer in the whole test set; warn if too many examples have it."""
    examples = model.task.split(model.split)
    answer, count = Counter(map(model.task.answer, examples)).most_common(1)[0]
    share = Proportion.of(count, len(examples))
    if share.low <= MAX_ANSWER_SHARE:
        finding = f"the most common right answer, {answer}, is right on {count:,} of {len(examples):,} test examples"
        return passed(finding, share=share.rate, n=len(examples))
    return _warning(f"one answer, {answer}, is right on {count:,} of {len(examples):,} test examples", share)


def _warning(finding: str, share: Proportion) -> Finding:
    return warned(
        finding,
        cause="consistent with labels that were drawn at random, or with examples from too small a range",
        fix="draw the same number of examples for each class, or report the accuracy of the best constant answer "
        "beside every accuracy",
        share=share.rate,
        low=share.low,
        n=share.n,
    )


PART = Check(
    "HC403",
    "Are the classes of the test set unbalanced?",
    sequences=check_sequences,
    classes=check_classes,
    is_quick=True,
    affects=CONCLUSIONS,
)
