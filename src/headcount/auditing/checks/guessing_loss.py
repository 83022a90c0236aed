"""Is the loss no better than that of guessing?

Two reports trained for fifty epochs at a loss of 0.693, which is ln 2, and discussed the encodings that they compared.
A model that predicts every class or digit with its frequency, whatever the question, has the entropy of these
frequencies as its loss. A loss that high with good accuracy is different: the model is very sure of a few wrong
answers. A loss far above that of guessing is not a lack of training: the model is sure and wrong, because it was
trained in another format or learned another rule. The check tries zero-filled, unfilled and reversed answers, and
swapped classes.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from headcount.auditing.answer_formats import fitting_format
from headcount.auditing.audited_model import AuditedClassifier, AuditedModel, AuditedSequenceModel, ConstantBaseline
from headcount.auditing.check import RESTATED, Check, Finding, failed, not_applicable, passed
from headcount.data.from_adapter import encoded
from headcount.stats import Proportion
from headcount.tasks.base import IGNORE

MIN_GUESSING_RATIO = 0.98
"""Fraction of the loss of guessing from which a loss counts as that of guessing: training noise is below 2 %."""
MIN_SURE_RATIO = 2
"""Multiple of the loss of an even guess that chance does not reach: the model must be sure of wrong answers."""
MIN_TOKEN_LEAD = 0.1
"""Accuracy of tokens above the best constant tokens that shows that something was learned."""


def check_sequences(model: AuditedSequenceModel) -> Finding:
    """Compare the loss per token with that of guessing each token by its frequency at its place."""
    baseline = model.baseline
    if baseline is None or not math.isfinite(model.loss):
        return _not_comparable(model)
    guessing = _entropy_by_column(_labels(model))
    losses = f"the loss is {model.loss:.3f} per token, and {_shown(guessing)} by guessing"
    if model.loss < MIN_GUESSING_RATIO * guessing:
        return passed(losses, loss=model.loss, guessing=guessing)
    if fitting := fitting_format(model):
        return _other_format(losses, model.loss, guessing, str(fitting))
    if baseline.is_beaten or baseline.is_undecided:
        return _passed_with_errors(losses, model.loss, guessing, baseline)
    if (sentence := _learned_tokens(model)) is not None:
        return passed(f"{losses}, {sentence}", loss=model.loss, guessing=guessing)
    if model.loss > MIN_SURE_RATIO * math.log(len(model.task.tokens)):
        return _other_format(losses, model.loss, guessing, "")
    return _nothing_learned(losses, model.loss, guessing, baseline.measured.rate, model.n)


def check_classes(model: AuditedClassifier) -> Finding:
    """Compare the loss per example with that of guessing each class by its frequency."""
    baseline = model.baseline
    if baseline is None or not math.isfinite(model.loss):
        return _not_comparable(model)
    guessing = entropy(model.answers.labels)
    losses = f"the loss is {model.loss:.3f} per example, and {_shown(guessing)} by guessing"
    if model.loss < MIN_GUESSING_RATIO * guessing and model.loss + _margin(model) < guessing:
        return passed(losses, loss=model.loss, guessing=guessing)
    if fitting := _right_when_swapped(model, baseline):
        return _other_format(losses, model.loss, guessing, fitting)
    if baseline.is_beaten or baseline.is_undecided:
        return _passed_with_errors(losses, model.loss, guessing, baseline)
    if model.loss > MIN_SURE_RATIO * math.log(len(model.task.classes)):
        return _other_rule(losses, model.loss, guessing)
    return _nothing_learned(losses, model.loss, guessing, baseline.measured.rate, model.n)


def _not_comparable(model: AuditedModel) -> Finding:
    same = f"all {model.n:,} right answers are the same"
    return not_applicable(same if model.baseline is None else f"the loss is {model.loss}: see HC306")


def _passed_with_errors(losses: str, loss: float, guessing: float, baseline: ConstantBaseline) -> Finding:
    if baseline.is_beaten:
        losses += f", although {baseline.measured.rate:.1%} are right: the model is very sure of its wrong answers"
    return passed(losses, loss=loss, guessing=guessing)


def _learned_tokens(model: AuditedSequenceModel) -> str | None:
    """Say how many tokens are right, if these are clearly more than the best constant tokens have; else None."""
    hits, asked, right = model.answers.teacher_forced_hits, model.answers.asked, model.right_answers
    if not asked.any():
        return None
    columns = [right[asked[:, i], i] for i in range(right.shape[1])]
    n_constant = sum(int(np.bincount(column).max()) for column in columns if len(column))
    accuracy = Proportion.count(hits[asked])
    if accuracy.low < n_constant / int(asked.sum()) + MIN_TOKEN_LEAD:
        return None
    return f"although {accuracy.rate:.1%} of the tokens are right: the model is very sure of its wrong tokens"


def _other_format(losses: str, loss: float, guessing: float, fitting: str) -> Finding:
    """Report a model that was trained in another format, which may be known."""
    none = "zero-filled, unfilled or reversed answers fit no better"
    return failed(
        f"{losses}: the model is sure and wrong, so the format does not fit; {fitting or none}",
        cause="consistent with an encode() that writes questions, answers or labels in another format than training",
        fix="write questions, answers and labels in encode() as in training: leading zeros, order of digits, start and "
        "end tokens, ids of tokens and classes",
        loss=loss,
        guessing=guessing,
        format=fitting,
    )


def _other_rule(losses: str, loss: float, guessing: float) -> Finding:
    """Report a classifier that is sure and wrong, whichever class is which; other checks find the rule it learned."""
    failure = failed(
        f"{losses}: the model is sure of answers that are no better than guesses, so it has learned another rule",
        cause="consistent with training examples that another rule tells apart, such as unsorted ones that are all "
        "shuffled, or with weights or inputs of another model",
        fix="train on the kinds of examples that are tested, and compare accuracy by kind",
        loss=loss,
        guessing=guessing,
    )
    return replace(failure, affects=RESTATED, explains_only=("HC303", "HC702", "HC703", "HC802"))


def _nothing_learned(losses: str, loss: float, guessing: float, measured: float, n: int) -> Finding:
    return failed(
        f"{losses}: nothing was learned, and {100 * measured:.2f} % of {n:,} answers are right",
        cause="consistent with a learning rate that is too high or too low, with labels that do not belong to their "
        "inputs, or with weights that were never trained or loaded",
        fix="train until the loss falls below that of guessing (a lower learning rate, warmup, a few examples first), "
        "and compare nothing before it does",
        loss=loss,
        guessing=guessing,
        measured=measured,
    )


def _right_when_swapped(model: AuditedClassifier, baseline: ConstantBaseline) -> str:
    """Say how many answers are right with the two classes swapped, if these are most of them; empty if not."""
    wrong = Proportion.count(~model.answers.hits)
    if model.answers.logits.shape[1] != 2 or wrong.low <= max(baseline.share, 1 - baseline.share):
        return ""
    return f"with the two classes swapped, {wrong.correct:,} of {wrong.n:,} are right"


def _margin(model: AuditedClassifier) -> float:
    """Return half the width of the 95 % CI of the loss."""
    logits, rows = model.answers.logits.astype(np.float64), np.arange(model.n)
    losses = np.logaddexp.reduce(logits, axis=1) - logits[rows, model.answers.labels]
    return 1.96 * float(losses.std()) / math.sqrt(model.n)


def entropy(labels: NDArray[np.int64]) -> float:
    """Return the loss of predicting each label with its frequency, in nats."""
    shares = np.unique(labels, return_counts=True)[1] / len(labels)
    return float(-(shares * np.log(shares)).sum())


def _labels(model: AuditedSequenceModel) -> NDArray[np.int64]:
    """Return [example, column]: the labels of the loss, including an adapter's end tokens."""
    if model.adapter is None:
        return model.answers.batch.labels
    return encoded(model.adapter, model.pairs)[1].cpu().numpy()


def _entropy_by_column(labels: NDArray[np.int64]) -> float:
    """Return the loss per label of predicting each label with its frequency in its column."""
    columns = [column[column != IGNORE] for column in labels.T]
    return sum(len(column) * entropy(column) for column in columns if len(column)) / max(1, sum(map(len, columns)))


def _shown(guessing: float) -> str:
    return "ln 2 = 0.693" if abs(guessing - math.log(2)) < 5e-4 else f"{guessing:.3f}"


PART = Check(
    "HC304",
    "Is the loss no better than that of guessing?",
    sequences=check_sequences,
    classes=check_classes,
    is_quick=True,
)
