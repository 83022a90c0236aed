"""Is accuracy better than that of the best constant answer?

"About 50 %" of two classes was read as a weak model in reports 002, 003 and 004, and 0.486 and 0.514 as a difference
between encodings. The share of the most common right answer, on the same examples, is what accuracy has to be above.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import cast

import numpy as np

from headcount.auditing.check import FAIL, PASS, WARN, Check, Evidence, Finding, failed, not_applicable, passed, warned
from headcount.auditing.observed import Observed
from headcount.stats import Proportion
from headcount.tasks.base import ClassTask, SequenceTask

COULD_BE = 0.15
"""If accuracy may be so far above the constant answer, by its interval, there are too few examples to tell."""


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


def look(observed: Observed) -> Finding:
    """Accuracy, or exact match, beside the best constant answer."""
    found = standing(observed)
    if found is None:
        return not_applicable(f"all {observed.n:,} right answers are the same")
    measured = found.measured
    told = f"{measured.correct:,} of {observed.n:,} answers are right, {100 * measured.rate:.2f} %"
    beside = f"{found.answer} to everything would be right in {100 * found.share:.2f} %"
    evidence: Evidence = {"measured": measured.rate, "constant": found.share, "n": observed.n}
    if found.verdict == PASS:
        return passed(f"{told}; {beside}", **evidence)
    if found.verdict == WARN:
        return warned(
            f"{told} (95 % interval {100 * measured.low:.1f} to {100 * measured.high:.1f} %); {beside}",
            cause="there are too few examples to tell the model from a constant answer",
            fix="measure on more examples",
            **evidence,
        )
    return failed(
        f"{told}, no better than a constant answer: {beside}",
        cause="consistent with a model that is untrained or whose loss never fell, or with weights never loaded",
        fix="compare the loss with that of guessing, and look whether the trained weights are those that are measured",
        measured=measured.rate,
        constant=found.share,
        n=observed.n,
    )


PART = Check(
    "HC303",
    "Is accuracy better than that of the best constant answer?",
    look,
    is_quick=True,
    explains=("HC702", "HC703", "HC802"),
)
