"""Are the classes of the test set out of balance?

The newer reports tossed a coin for each label: their test sets had 45.4 to 54.6 % of one class, and a model with one
answer to everything scored just that. What the best constant answer scores is the figure to beat. Of a task that asks
for sequences, it is told if one answer alone is right on more than a fifth of the set.
"""

from collections import Counter
from typing import cast

import numpy as np
import scipy  # scipy.special alone, which is quick to load

from headcount.auditing.check import CONCLUSIONS, Check, Finding, passed, warned
from headcount.auditing.observed import Observed
from headcount.stats import Proportion
from headcount.tasks.base import ClassTask, SequenceTask

SKEWED, ALPHA = 0.55, 0.01
"""Share of the larger of two classes, and the chance of one so large by luck."""
COMMON = 0.2
"""Share of one answer where answers are sequences."""


def run(observed: Observed) -> Finding:
    """In the whole test set, whose classes may stand in order, and not in the first examples of it."""
    if observed.task.output_type == "sequence":
        return _one_sequence(observed)
    task = cast(ClassTask, observed.task)
    labels = task.encode(task.split(observed.split)).labels
    counts = np.bincount(labels, minlength=len(task.classes))
    largest, n, fair = int(counts.argmax()), len(labels), 1 / len(task.classes)
    share, luck = Proportion.of(int(counts[largest]), n), _chance(int(counts[largest]), n, fair)
    skewed = SKEWED - 0.5 + fair
    told = f"{share.correct:,} of {n:,} test examples are {task.classes[largest]}"
    if share.rate <= skewed or luck >= ALPHA:
        return passed(f"classes are balanced: {told}", share=share.rate, n=n)
    return _skewed(f"{told}: always answering so scores {100 * share.rate:.1f} %, before anything is learned", share)


def _one_sequence(observed: Observed) -> Finding:
    task = cast(SequenceTask, observed.task)
    examples = task.split(observed.split)
    answer, count = Counter(map(task.answer, examples)).most_common(1)[0]
    share = Proportion.of(count, len(examples))
    if share.low <= COMMON:
        told = f"no answer is right on many: the most frequent one, {answer}, on {count:,} of {len(examples):,}"
        return passed(told, share=share.rate, n=len(examples))
    return _skewed(f"one answer, {answer}, is right on {count:,} of {len(examples):,} test examples", share)


def _skewed(told: str, share: Proportion) -> Finding:
    return warned(
        told,
        cause="consistent with labels by the toss of a coin, or with examples drawn from too small a range",
        fix="draw as many examples of each class, or give the score of the best constant answer beside every accuracy",
        share=share.rate,
        low=share.low,
        n=share.n,
    )


def _chance(count: int, n: int, fair: float) -> float:
    """Of so many or more, were the classes as frequent as each other."""
    return float(scipy.special.bdtrc(count - 1, n, fair))


PART = Check("HC403", "Are the classes of the test set out of balance?", run, is_quick=True, affects=CONCLUSIONS)
