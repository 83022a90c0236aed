"""Does a surface cue, such as the length or the sum of an example, predict the model's answer?

Length, sum, first number, last number and range may correlate with the right answer, depending on how the data were
generated: a shuffled sequence begins with any number, and a sorted one with a small number. A model that learned such a
cue scores better than chance, and its attention says something about the cue only. For each cue, the check fits the
best threshold to the model's answers on one half of the examples. On the other half, it compares the answers that this
threshold predicts with the model's answers and with the right answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headcount.auditing.audited_model import AuditedClassifier, Hits
from headcount.auditing.check import FAIL, WARN, Check, Evidence, Finding, not_applicable, passed
from headcount.formatting import percent
from headcount.stats import Proportion

MIN_AGREEMENT_FAIL, MIN_AGREEMENT_WARN = 0.97, 0.85
"""The check fails or warns if a cue predicts at least this share of the model's answers."""
MIN_EXCESS = 0.1
"""A cue must predict this many more of the model's answers than of the right answers, and than a constant predicts."""
MAX_ACCURACY = 0.97
"""Maximum accuracy for the check: above it, no cue can explain the answers."""
MIN_EXAMPLES = 40
"""Minimum number of examples: one half fits the threshold of a cue, and the other half tests it."""

Cue = NDArray[np.float64]


@dataclass(frozen=True)
class Rule:
    """A rule with a threshold: it predicts the last class where a cue, such as the length, is above (or below) it."""

    threshold: float
    is_above: bool

    def __call__(self, cue: Cue) -> Hits:
        """Return for each example whether the rule predicts the last class."""
        return np.asarray((cue >= self.threshold) == self.is_above)

    @classmethod
    def fitted(cls, cue: Cue, is_last: Hits) -> Rule:
        """Return the threshold rule that agrees with `is_last` on most examples."""
        thresholds = np.append(np.unique(cue), np.inf)
        ordered, counts = np.sort(cue), np.concatenate([[0], np.cumsum(is_last[np.argsort(cue, kind="stable")])])
        below = np.searchsorted(ordered, thresholds)
        agree = (below - counts[below]) + (counts[-1] - counts[below])  # other classes below, last class above
        best, worst = int(agree.argmax()), int(agree.argmin())
        is_above = bool(agree[best] >= len(cue) - agree[worst])
        return cls(float(thresholds[best if is_above else worst]), is_above)


def run(model: AuditedClassifier) -> Finding:
    """Find the surface cue, such as the length, that predicts the model's answers better than the right answers."""
    answers, cues, n_classes = model.answers, _cues(model), len(model.task.classes)
    if cues is None or model.n < MIN_EXAMPLES:
        return not_applicable("the examples are not numbers" if cues is None else f"{model.n} examples are too few")
    if n_classes != 2:
        return not_applicable(f"this check applies only to tasks with two classes, and this task has {n_classes}")
    if answers.hits.mean() >= MAX_ACCURACY:
        finding = f"{percent(answers.hits.mean(), 2)} of the answers are right, so no cue can explain them"
        return passed(finding, n=model.n)
    predicted, right = answers.predicted == n_classes - 1, answers.labels == n_classes - 1
    order = model.rng("surface cues").permutation(model.n)
    fit, test = order[: model.n // 2], order[model.n // 2 :]
    agreements = {name: _Agreement.of(cue, predicted, right, fit, test) for name, cue in cues.items()}
    name, best = max(agreements.items(), key=lambda item: (item[1].excess, item[1].model.rate))
    return _finding(name, best, model.task.classes[-1], np.asarray(best.rule(cues[name]) == right))


@dataclass(frozen=True)
class _Agreement:
    """How often the threshold rule of one cue, such as length, agrees with the model's and with the right answers."""

    rule: Rule
    model: Proportion
    right: float
    """Agreement of the cue with the right answers, by the better of the rules fitted to either kind of answer."""
    common: float
    """The share of the model's most common answer."""

    @classmethod
    def of(cls, cue: Cue, predicted: Hits, right: Hits, fit: NDArray[np.int64], test: NDArray[np.int64]) -> _Agreement:
        rule, other = (Rule.fitted(cue[fit], each[fit]) for each in (predicted, right))
        agreement = max(float((each(cue[test]) == right[test]).mean()) for each in (rule, other))
        share = float(predicted[test].mean())
        return cls(rule, Proportion.count(rule(cue[test]) == predicted[test]), agreement, max(share, 1 - share))

    @property
    def excess(self) -> float:
        """How much better the rule predicts this model's answers than the right answers, or than a constant does."""
        return self.model.rate - max(self.right, self.common)


def _finding(name: str, agreement: _Agreement, last_class: str, still_right: Hits) -> Finding:
    side = "from {:g} on" if agreement.rule.is_above else "below {:g}"
    finding = (
        f"{agreement.model.correct} of {agreement.model.n} answers ({percent(agreement.model.rate)}) are those that "
        f"the {name} alone predicts ({last_class} {side.format(agreement.rule.threshold)}); of the right answers, the "
        f"{name} predicts {percent(agreement.right)}"
    )
    shares = {"agreement": agreement.model.rate, "right": agreement.right}
    evidence: Evidence = {"cue": name, **shares, "n": agreement.model.n}
    is_beyond = agreement.excess >= MIN_EXCESS and agreement.model.low > max(agreement.right, agreement.common)
    if not is_beyond or agreement.model.rate < MIN_AGREEMENT_WARN:
        return passed(f"no cue explains the answers: {finding}", **evidence)
    is_failure = agreement.model.rate >= MIN_AGREEMENT_FAIL
    return Finding(
        FAIL if is_failure else WARN,
        finding,
        cause=f"consistent with a model that has learned to use the {name} instead of the order of the numbers",
        fix=f"generate both classes with the same {name}, and test on pairs that share it",
        evidence=evidence,
        right_despite_fault=still_right if is_failure else None,
    )


def _cues(model: AuditedClassifier) -> Mapping[str, Cue] | None:
    """Return the value of each surface cue for all examples; None if the examples are not sequences of numbers."""
    rows = [model.task.show(example).split() for example in model.examples]
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
    "Does a surface cue, such as the length or the sum of an example, predict the model's answer?",
    classes=run,
    is_quick=True,
)
