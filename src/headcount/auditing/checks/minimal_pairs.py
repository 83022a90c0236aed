"""Are examples that differ from the other class in one place told from it?

Report 000 had 1.000 at every length: its model looked whether a value is near its relative position. Shuffles are
caught that way, and one swap of neighbours in 0 %. Test sets of shuffles cannot show it, so each way to break a
sequence is asked apart, at the longest length in training.
"""

from __future__ import annotations

from typing import cast

from headcount.auditing.check import Check, Finding, failed, passed, warned
from headcount.auditing.observed import Observed
from headcount.stats import Proportion
from headcount.tasks.base import ClassTask

N = 200
EASY, HARD = 0.8, 0.5
"""A model fails if it finds more than this of the easiest kind and less than that of the hardest."""
APART = 0.2
"""And is warned of from this difference on."""


def run(observed: Observed) -> Finding:
    """The share that is found of each kind, and how far apart the intervals of two are."""
    task = cast(ClassTask, observed.task)
    length = observed.trained_lengths[1]
    found = {kind: _found(observed, length, kind) for kind in task.negatives}
    hard = found.pop(task.local_negative)
    name, easy = max(found.items(), key=lambda item: item[1].rate)
    told = (
        f"of {N} examples of length {length} that differ from {task.classes[-1]} ones in one place "
        f"({task.local_negative}), {hard.correct} are found, and of {N} of the kind {name}, {easy.correct}"
    )
    shares = {kind: each.rate for kind, each in found.items()} | {task.local_negative: hard.rate}
    if easy.low - hard.high <= APART and not (hard.high < HARD and easy.low > EASY):
        return passed(told, **shares, n=N)
    cause = (
        "consistent with a rule that is not the task's, such as whether each value is near where it would be in order, "
        "and with training on negatives that are broken in many places"
    )
    fix = f"train and test on the kind {task.local_negative} too, and report accuracy by kind"
    if hard.high < HARD and easy.low > EASY:
        return failed(told, cause=cause, fix=fix, right_despite_fault=None, **shares, n=N)
    return warned(told, cause=cause, fix=fix, **shares, n=N)


def _found(observed: Observed, length: int, kind: str) -> Proportion:
    """The share of fresh examples of this kind that are told to be of the first class."""
    rng = observed.rng(f"minimal pairs: {kind}")
    return Proportion.count(
        observed.classify(cast(ClassTask, observed.task).sample_of_length(rng, length, kind, N)).hits
    )


PART = Check("HC601", "Are examples that differ from the other class in one place told from it?", run, asks="class")
