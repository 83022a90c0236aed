"""Is the loss still that of guessing?

Two reports trained for fifty epochs at a loss of 0.693, which is ln 2, and discussed the encodings that they compared.
A model that gives every class or digit its share, whatever it is asked, has the entropy of those shares for a loss.
A loss that high with good accuracy is another matter: a few wrong answers that the model is sure of.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from headcount.auditing.check import FAIL, PASS, Check, Finding, failed, not_applicable, passed
from headcount.auditing.observed import Observed
from headcount.auditing.standing import standing
from headcount.data.from_adapter import encoded, pairs_of
from headcount.tasks.base import IGNORE

NEARLY = 0.98
"""Of the loss of guessing, from which on it counts as that."""


def run(observed: Observed) -> Finding:
    """The loss beside that of guessing; accuracy decides where a loss is high for another reason."""
    found = standing(observed)
    if found is None:
        return not_applicable(f"all {observed.n:,} right answers are the same")
    is_class = observed.task.output_type == "class"
    loss = observed.classes.loss if is_class else observed.sequences.loss
    if not math.isfinite(loss):
        return not_applicable(f"the loss is {loss}: see HC306")
    guess = entropy(observed.classes.labels) if is_class else _entropy_by_column(_labels(observed))
    told = f"the loss is {loss:.3f} per {'example' if is_class else 'token'}, and that of guessing {_named(guess)}"
    if _reaches(observed, loss, guess) and found.verdict == FAIL:
        return _failure(told, loss, guess, found.measured.rate, observed.n)
    if _reaches(observed, loss, guess) and found.verdict == PASS:
        told += f", though {found.measured.rate:.1%} are right: wrong answers are given with great certainty"
    return passed(told, loss=loss, guessing=guess)


def _failure(told: str, loss: float, guess: float, measured: float, n: int) -> Finding:
    return failed(
        f"{told}: nothing was learned, and {100 * measured:.2f} % of {n:,} are right",
        cause="consistent with a learning rate that is too high or too low, with labels that do not belong to their "
        "inputs, or with weights that were never trained or loaded",
        fix="train until the loss falls below that of guessing (a lower learning rate, warmup, a few examples first), "
        "and compare nothing before it does",
        loss=loss,
        guessing=guess,
        measured=measured,
    )


def _reaches(observed: Observed, loss: float, guess: float) -> bool:
    """Whether the loss is that of guessing or above; for classes, as far as the examples can tell."""
    more = 0.0
    if observed.task.output_type == "class":
        logits, rows = observed.classes.logits.astype(np.float64), np.arange(observed.n)
        losses = np.logaddexp.reduce(logits, axis=1) - logits[rows, observed.classes.labels]
        more = 1.96 * float(losses.std()) / math.sqrt(observed.n)
    return not (loss < NEARLY * guess and loss + more < guess)


def entropy(labels: NDArray[np.int64]) -> float:
    """The loss of guessing each label as often as it comes, in nats."""
    shares = np.unique(labels, return_counts=True)[1] / len(labels)
    return float(-(shares * np.log(shares)).sum())


def _labels(observed: Observed) -> NDArray[np.int64]:
    """[example, column]: what the loss is over, a stranger's end tokens included."""
    if observed.adapter is None:
        return observed.sequences.batch.labels
    return encoded(observed.adapter, pairs_of(observed.task, observed.examples))[1].cpu().numpy()


def _entropy_by_column(labels: NDArray[np.int64]) -> float:
    """Of guessing by the shares at each place, per label that is asked for."""
    asked = [column[column != IGNORE] for column in labels.T]
    return sum(len(column) * entropy(column) for column in asked if len(column)) / max(1, sum(map(len, asked)))


def _named(guess: float) -> str:
    return "ln 2 = 0.693" if abs(guess - math.log(2)) < 5e-4 else f"{guess:.3f}"


PART = Check(
    "HC304",
    "Is the loss still that of guessing?",
    run,
    is_quick=True,
    explains=("HC101", "HC102", "HC302", "HC303", "HC601", "HC702", "HC703", "HC802"),
)
