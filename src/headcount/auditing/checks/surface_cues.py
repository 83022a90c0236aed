"""Does one number of an example predict the answer?

Length, sum, first and last number and range go together with order, more or less, as the data were made: a shuffled
sequence begins with any number, a sorted one with a small one. A model that has learned such a cue scores better than
chance, and its attention tells a story about the cue. For each, the best threshold is fitted to the model's answers on
one half of the examples, and compared with them, and with the right ones, on the other half.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from headcount.auditing.check import Check, Evidence, Finding, failed, not_applicable, passed, warned
from headcount.auditing.observed import Hits, Observed
from headcount.stats import Proportion
from headcount.tasks.base import ClassTask

ALL, MOST = 0.97, 0.85
"""A cue that predicts so many of the model's answers fails it, or warns of it, ..."""
APART = 0.1
"""... if it predicts this much less of the right answers, and the model's most common answer is as much less common."""
RIGHT = 0.97
"""A model that is right this often has no need of cues."""
FEWEST = 40
"""Examples that this can be told from."""

Cue = NDArray[np.float64]


@dataclass(frozen=True)
class Rule:
    """The last class at or above a threshold, or below it."""

    threshold: float
    is_above: bool

    def __call__(self, cue: Cue) -> Hits:
        """Which examples it puts into the last class."""
        return np.asarray((cue >= self.threshold) == self.is_above)

    @classmethod
    def fitted(cls, cue: Cue, is_last: Hits) -> Rule:
        """The one that agrees most often."""
        thresholds = np.append(np.unique(cue), np.inf)
        ordered, counts = np.sort(cue), np.concatenate([[0], np.cumsum(is_last[np.argsort(cue, kind="stable")])])
        below = np.searchsorted(ordered, thresholds)
        agree = (below - counts[below]) + (counts[-1] - counts[below])  # others below it, and the last class above
        best, worst = int(agree.argmax()), int(agree.argmin())
        is_above = bool(agree[best] >= len(cue) - agree[worst])
        return cls(float(thresholds[best if is_above else worst]), is_above)


def run(observed: Observed) -> Finding:
    """The cue that predicts most of the answers beyond what it should."""
    found, cues = observed.classes, _cues(observed)
    if cues is None or observed.n < FEWEST:
        return not_applicable("examples are no numbers" if cues is None else f"{observed.n} examples are too few")
    if (n_classes := len(cast(ClassTask, observed.task).classes)) != 2:
        return not_applicable(f"it is asked of models that answer by one of two classes, and there are {n_classes}")
    if found.hits.mean() >= RIGHT:
        return passed(
            f"{100 * found.hits.mean():.2f} % of the answers are right, so no cue can stand for them", n=observed.n
        )
    last = len(cast(ClassTask, observed.task).classes) - 1
    says, should = found.predicted == last, found.labels == last
    order = observed.rng("surface cues").permutation(observed.n)
    fit, test = order[: observed.n // 2], order[observed.n // 2 :]
    agreement = {name: _Agreement.of(cue, says, should, fit, test) for name, cue in cues.items()}
    name, best = max(agreement.items(), key=lambda item: (item[1].excess, item[1].model.rate))
    return _told(name, best, observed, cues[name], should)


@dataclass(frozen=True)
class _Agreement:
    """How often a cue's rule agrees with the model's answers, and with others."""

    rule: Rule
    model: Proportion
    right: float
    """With the right answers, by the best rule for those."""
    common: float
    """The share of the model's most common answer."""

    @classmethod
    def of(cls, cue: Cue, says: Hits, should: Hits, fit: NDArray[np.int64], test: NDArray[np.int64]) -> _Agreement:
        rule, other = (Rule.fitted(cue[fit], each[fit]) for each in (says, should))
        right = max(float((each(cue[test]) == should[test]).mean()) for each in (rule, other))
        share = float(says[test].mean())
        return cls(rule, Proportion.count(rule(cue[test]) == says[test]), right, max(share, 1 - share))

    @property
    def excess(self) -> float:
        """What it predicts beyond what it would of a right or of a constant model."""
        return self.model.rate - max(self.right, self.common)


def _told(name: str, found: _Agreement, observed: Observed, cue: Cue, should: Hits) -> Finding:
    side = "from {:g} on" if found.rule.is_above else "below {:g}"
    last = cast(ClassTask, observed.task).classes[-1]
    told = (
        f"{found.model.correct} of {found.model.n} answers are as the {name} alone predicts ({last} "
        f"{side.format(found.rule.threshold)}), {100 * found.model.rate:.1f} %; it predicts "
        f"{100 * found.right:.1f} % of the right answers"
    )
    evidence: Evidence = {"cue": name, "agreement": found.model.rate, "right": found.right, "n": found.model.n}
    is_beyond = found.excess >= APART and found.model.low > max(found.right, found.common)
    if not is_beyond or found.model.rate < MOST:
        return passed(f"no cue predicts the answers beyond what it should: {told}", **evidence)
    cause = f"consistent with a model that has learned the {name} and not the order of the numbers"
    fix = f"draw both classes with the same {name}, and test on pairs that share it"
    if found.model.rate >= ALL:
        return failed(told, cause=cause, fix=fix, right_despite_fault=np.asarray(found.rule(cue) == should), **evidence)
    return warned(told, cause=cause, fix=fix, **evidence)


def _cues(observed: Observed) -> Mapping[str, Cue] | None:
    """By name, of each example; None if it is not written as numbers."""
    rows = [observed.task.show(example).split() for example in observed.examples]
    if not all(word.isdigit() for row in rows for word in row):
        return None
    numbers = [np.array(row, dtype=np.float64) for row in rows]
    return {
        "length": np.array([float(len(row)) for row in numbers]),
        "sum": np.array([row.sum() for row in numbers]),
        "first number": np.array([row[0] for row in numbers]),
        "last number": np.array([row[-1] for row in numbers]),
        "range": np.array([np.ptp(row) for row in numbers]),
    }


PART = Check(
    "HC602",
    "Does one number of an example predict the answer?",
    run,
    asks="class",
    is_quick=True,
    explains=("HC303", "HC304", "HC601"),
)
