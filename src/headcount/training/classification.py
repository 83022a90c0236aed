"""How good a classifier is: per class, never as one accuracy alone.

A model that gives one answer to everything is right on "about 50 %" of a balanced set, which several reports took for
a weak model. So the share of each answer stands beside every accuracy, and a constant answer is marked where there
are enough examples to say so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from headcount.hooks.gates import eval_mode
from headcount.models.finite import require_numbers
from headcount.models.transformer import Classifier
from headcount.results import Result
from headcount.stats import Proportion
from headcount.tasks.base import ClassTask, Examples, Tokens
from headcount.training.evaluation import WrongAnswer, on_device

TOKENS_AT_ONCE = 2**16
"""Tokens per forward pass, so that memory does not grow with the number of examples."""
MOST_AT_ONCE = 256
RARELY = 0.03
"""A model is called constant where its other answer comes less often than this, by the upper end of the 95 % interval.

One answer to all of n examples shows that from n = 125 on; 2 other answers among 200 do not (up to 3.6 %).
"""


@dataclass(frozen=True)
class Answers:
    """What a classifier said of some examples."""

    logits: NDArray[np.float32]
    """[example, class]."""
    labels: Tokens

    @property
    def predicted(self) -> Tokens:
        """The class with the largest logit."""
        return np.asarray(self.logits.argmax(axis=1))

    @property
    def hits(self) -> NDArray[np.bool_]:
        """Which are right."""
        return np.asarray(self.predicted == self.labels)

    @property
    def says_last(self) -> Proportion:
        """How often it said the last class."""
        return Proportion.count(self.predicted == self.logits.shape[1] - 1)

    @property
    def loss(self) -> float:
        """Cross-entropy per example."""
        logits = self.logits.astype(np.float64)
        right = logits[np.arange(len(logits)), self.labels]
        return float((np.logaddexp.reduce(logits, axis=1) - right).mean())

    @property
    def margins(self) -> NDArray[np.float32]:
        """The lead of the right class over the best other one."""
        rows = np.arange(len(self.labels))
        others = self.logits.copy()
        others[rows, self.labels] = -np.inf
        return np.asarray(self.logits[rows, self.labels] - others.max(axis=1))


def classify(
    model: Classifier, task: ClassTask, examples: Examples, at_once: int | None = None, *, first: int = 0
) -> Answers:
    """Ask the model about each example; `first` is the id of its first position."""
    batch = task.encode(examples)
    size = at_once or rows_at_once(batch.source.shape[1])
    logits = []
    with eval_mode(model, gradients=False) as device:
        for i in range(0, len(batch), size):
            (source,) = on_device(device, batch[i : i + size].source)
            logits.append(model(source, first=first).float().cpu().numpy())
    return Answers(np.concatenate(logits), batch.labels)


def rows_at_once(length: int) -> int:
    """Sequences of this length for one forward pass."""
    return max(1, min(MOST_AT_ONCE, TOKENS_AT_ONCE // length))


def constant_answer(predicted: Sequence[int] | Tokens, labels: Tokens, classes: tuple[str, ...]) -> str | None:
    """The one answer that is given to (nearly) everything, if it is shown that the other one is rare and should not be.

    >>> constant_answer([1] * 200, np.arange(200) % 2, ("unsorted", "sorted"))
    'sorted'
    >>> constant_answer([1] * 100, np.arange(100) % 2, ("unsorted", "sorted"))  # the other one may come in 3.7 %
    """
    says_last, is_last = np.asarray(predicted) == len(classes) - 1, labels == len(classes) - 1
    for answer, is_other, should_be in ((classes[0], says_last, is_last), (classes[-1], ~says_last, ~is_last)):
        if Proportion.count(is_other).high < RARELY < should_be.mean():
            return answer
    return None


@dataclass(frozen=True)
class ClassScores:
    """One group of examples."""

    facet: str
    group: str
    right: Proportion


@dataclass(frozen=True)
class Classification(Result):
    """A classifier on one held-out set."""

    SCHEMA: ClassVar[int] = 3
    FORMER: ClassVar[Mapping[str, str]] = {
        "model": "weights_sha256",
        "says": "answer_shares",
        "said": "predicted",
        "why": "explanation",
    }
    COLUMNS: ClassVar[dict[str, str]] = {"right": "right"}
    split: str
    weights_sha256: str
    accuracy: ClassScores
    groups: tuple[ClassScores, ...]
    answer_shares: tuple[ClassScores, ...]
    """The share of each answer, right or wrong."""
    constant: str | None
    """The one answer that it gives to everything, if that is shown: see `RARELY`."""
    wrong: tuple[WrongAnswer, ...]

    @property
    def rows(self) -> tuple[ClassScores, ...]:
        """Everything that was scored."""
        return (self.accuracy, *self.groups)


def evaluate(model: Classifier, task: ClassTask, split: str, weights_sha256: str = "") -> Classification:
    """Everything that is measured on a held-out set."""
    examples = task.split(split)
    predicted = classify(model, task, examples)
    require_numbers(predicted.loss, f"the {split} set")
    groups = tuple(
        ClassScores(facet, group, Proportion.count(predicted.hits[np.array(labels) == group]))
        for facet, labels in task.facets(examples).items()
        for group in sorted(set(labels))
    )
    answer_shares = tuple(
        ClassScores("says", name, Proportion.count(predicted.predicted == i)) for i, name in enumerate(task.classes)
    )
    return Classification(
        split=split,
        weights_sha256=weights_sha256,
        accuracy=ClassScores("accuracy", "all", Proportion.count(predicted.hits)),
        groups=groups,
        answer_shares=answer_shares,
        constant=constant_answer(predicted.predicted, predicted.labels, task.classes),
        wrong=tuple(_wrong(task, examples[i], int(predicted.predicted[i])) for i in np.flatnonzero(~predicted.hits)),
    )


def _wrong(task: ClassTask, example: Examples, predicted: int) -> WrongAnswer:
    right = int(task.encode(example[None]).labels[0])
    return WrongAnswer(
        task.show(example), task.classes[right], task.classes[predicted], task.explain(example, predicted)
    )
