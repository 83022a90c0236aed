"""Is the loss still that of guessing?

Two reports trained for fifty epochs at a loss of 0.693, which is ln 2, and discussed the encodings that they compared.
A model that gives every class or digit its share, whatever it is asked, has the entropy of those shares for a loss.
A loss that high with good accuracy is another matter: a few wrong answers that the model is sure of. A loss far
above that of guessing is no lack of training: the model is sure and wrong, for it was trained in another format or has
learned another rule. Zero-filled, unfilled and reversed answers are tried, and swapped classes.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from headcount.auditing.check import FAIL, PASS, RESTATED, Check, Finding, failed, not_applicable, passed
from headcount.auditing.fed_answers import fitting_format
from headcount.auditing.observed import Observed
from headcount.auditing.standing import standing
from headcount.data.from_adapter import encoded, pairs_of
from headcount.stats import Proportion
from headcount.tasks.base import IGNORE, ClassTask

NEARLY = 0.98
"""Of the loss of guessing, from which on it counts as that."""
SURE = 2
"""A loss of so many times that of guessing evenly among all outputs is not reached by chance: the model is sure."""


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
    if not _reaches(observed, loss, guess):
        return passed(told, loss=loss, guessing=guess)
    if fitting := _swapped(observed) if is_class else fitting_format(observed):
        return _misfit(told, loss, guess, str(fitting))
    if found.verdict == FAIL:
        n_outputs = len(cast(ClassTask, observed.task).classes if is_class else observed.task.tokens)
        if loss > SURE * math.log(n_outputs):
            return _learned_otherwise(told, loss, guess) if is_class else _misfit(told, loss, guess, "")
        return _failure(told, loss, guess, found.measured.rate, observed.n)
    if found.verdict == PASS:
        told += f", though {found.measured.rate:.1%} are right: wrong answers are given with great certainty"
    return passed(told, loss=loss, guessing=guess)


def _misfit(told: str, loss: float, guess: float, fitting: str) -> Finding:
    """The model was trained in another format, which may be known."""
    none = "zero-filled, unfilled or reversed answers fit no better"
    return failed(
        f"{told}: the model is sure and wrong, so the format does not fit; {fitting or none}",
        cause="consistent with an encode() that writes questions, answers or labels otherwise than training did",
        fix="write questions, answers and labels in encode() as in training: leading zeros, order of digits, start and "
        "end tokens, ids of tokens and classes",
        loss=loss,
        guessing=guess,
        format=fitting,
    )


def _learned_otherwise(told: str, loss: float, guess: float) -> Finding:
    """A classifier that is sure and wrong, whichever class is which, has learned another rule; others say which."""
    failure = failed(
        f"{told}: the model is sure of answers that are no better than guesses, so it has learned another rule",
        cause="consistent with training examples that another rule tells apart, such as unsorted ones that are all "
        "shuffled, or with weights or inputs of another model",
        fix="train on the kinds of examples that are tested, and compare accuracy by kind",
        loss=loss,
        guessing=guess,
    )
    return replace(failure, affects=RESTATED, explains=("HC303", "HC702", "HC703", "HC802"))


def _swapped(observed: Observed) -> str:
    """Say how many answers are right with the two classes swapped, if that is most of them; empty if it is not."""
    wrong, found = Proportion.count(~observed.classes.hits), standing(observed)
    if observed.classes.logits.shape[1] != 2 or found is None or wrong.low <= max(found.share, 1 - found.share):
        return ""
    return f"with the two classes swapped, {wrong.correct:,} of {wrong.n:,} are right"


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
