"""How good a model is beside the best constant answer, and beside itself at another length."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import cast

import numpy as np

from headcount.auditing.check import FAIL, PASS, WARN
from headcount.auditing.observed import Observed
from headcount.data.from_task import of_length
from headcount.errors import HeadcountError
from headcount.stats import Proportion
from headcount.tasks.base import ClassTask, SequenceTask

COULD_BE = 0.15
"""If accuracy may be so far above the constant answer, by its interval, there are too few examples to tell."""
MOST, FEWEST, N_TOKENS = 200, 20, 2**14
"""Sequences of each length: so many, or as many as have so many numbers together."""


@dataclass(frozen=True)
class Standing:
    """Accuracy beside the best constant answer on the same examples."""

    measured: Proportion
    answer: str
    """The most common right one."""
    share: float
    """How often it is right."""
    by_class: tuple[Proportion, ...]
    """Accuracy on each class; none if answers are sequences."""

    @property
    def verdict(self) -> str:
        """Whether accuracy is better; a warning if there are too few examples to tell."""
        # Of a rare class, the share of the common one leaves no room: there it counts that each class is mostly right.
        both = self.by_class and all(each.low > 0.5 for each in self.by_class)
        if self.measured.low > self.share or (both and self.measured.rate > self.share):
            return PASS
        is_open = self.measured.rate > self.share and self.measured.high > self.share + COULD_BE
        return WARN if is_open else FAIL


def standing(observed: Observed) -> Standing | None:
    """Of a model on its examples; None if all of them have one right answer."""
    if observed.task.output_type == "class":
        task, labels, hits = cast(ClassTask, observed.task), observed.classes.labels, observed.classes.hits
        names = [task.classes[label] for label in labels.tolist()]
        by_class = tuple(Proportion.count(hits[labels == label]) for label in np.unique(labels))
    else:
        names = [cast(SequenceTask, observed.task).show_tokens(row) for row in observed.right_answers]
        hits, by_class = observed.right, ()
    answer, count = Counter(names).most_common(1)[0]
    return None if count == len(names) else Standing(Proportion.count(hits), answer, count / len(names), by_class)


def right_at(observed: Observed, length: int) -> Proportion | None:
    """How often it is right on sequences of one length, half of them sorted; None if it refuses them."""
    n = max(FEWEST, min(MOST, N_TOKENS // length))
    examples, _ = of_length(observed.task, length, n, "audit")
    try:
        return Proportion.count(observed.classify(examples).hits)
    except HeadcountError:
        return None


def is_as_good(inside: Proportion, beyond: Proportion) -> bool:
    """Whether a model that is better than guessing in range is not shown to be worse beyond."""
    return inside.low > 0.5 and beyond.high >= inside.low
