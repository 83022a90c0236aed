"""Is the loss no better than that of guessing?

The models of two published reports had a loss of 0.693, which is ln 2, after fifty epochs; the reports discussed their
encodings. A model that predicts every class or digit with its frequency, whatever the question, has the entropy of
these frequencies as its loss. A loss that high with a good accuracy is another case: the model is very sure of a few
wrong answers. If the loss is far above that of guessing, the model is sure and wrong, because it was trained in another
format or learned another rule. The check tries zero-filled, unfilled and reversed answers, and swapped classes.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from headcount.auditing.answer_formats import fitting_format
from headcount.auditing.audited_model import AuditedClassifier, AuditedModel, AuditedSequenceModel, ConstantBaseline
from headcount.auditing.causes import LOW_ACCURACY
from headcount.auditing.check import RESTATED, Check, Evidence, Finding, failed, not_applicable, passed
from headcount.data.from_adapter import encoded
from headcount.formatting import percent
from headcount.stats import Z95, Proportion
from headcount.tasks.base import IGNORE

MIN_GUESSING_RATIO = 0.98
"""A loss above this fraction of the loss of guessing counts as guessing; noise in training changes it by under 2 %."""
MIN_SURE_RATIO = 2
"""A loss above this multiple of the loss of a uniform guess means that the model is sure of wrong answers."""
MIN_TOKEN_LEAD = 0.1
"""The model learned something if token accuracy is above that of the best constant token per place by this much."""


def check_sequences(model: AuditedSequenceModel) -> Finding:
    """Compare the loss per token with that of guessing: predicting the frequency of each token at its place."""
    baseline = model.baseline
    if baseline is None or not math.isfinite(model.loss):
        return _not_comparable(model)
    guessing = _entropy_by_column(_labels(model))
    losses, evidence = _losses(model, "token", guessing)
    if model.loss < MIN_GUESSING_RATIO * guessing:
        return passed(losses, **evidence)
    if fitting := fitting_format(model):
        return _other_format(losses, evidence, str(fitting))
    if baseline.is_beaten or baseline.is_undecided:
        return _passed_with_errors(losses, evidence, baseline)
    if (sentence := _learned_tokens(model)) is not None:
        return passed(f"{losses}, {sentence}", **evidence)
    if model.loss > MIN_SURE_RATIO * math.log(len(model.task.tokens)):
        return _other_format(losses, evidence, "")
    return _nothing_learned(losses, evidence, baseline.measured)


def check_classes(model: AuditedClassifier) -> Finding:
    """Compare the loss per example with that of guessing: predicting the frequency of each class."""
    baseline = model.baseline
    if baseline is None or not math.isfinite(model.loss):
        return _not_comparable(model)
    guessing = entropy(model.answers.labels)
    losses, evidence = _losses(model, "example", guessing)
    if model.loss < MIN_GUESSING_RATIO * guessing and model.loss + _margin(model) < guessing:
        return passed(losses, **evidence)
    if fitting := _right_when_swapped(model, baseline):
        return _other_format(losses, evidence, fitting)
    if baseline.is_beaten or baseline.is_undecided:
        return _passed_with_errors(losses, evidence, baseline)
    if model.loss > MIN_SURE_RATIO * math.log(len(model.task.classes)):
        return _other_rule(losses, evidence)
    return _nothing_learned(losses, evidence, baseline.measured)


def _losses(model: AuditedModel, unit: str, guessing: float) -> tuple[str, Evidence]:
    """Return the model's loss and the loss of guessing, in words for the finding and as numbers for its evidence."""
    shown = "ln 2 = 0.693" if abs(guessing - math.log(2)) < 5e-4 else f"{guessing:.3f}"
    losses = f"the loss is {model.loss:.3f} per {unit}, and that of guessing is {shown}"
    return losses, {"loss": model.loss, "guessing": guessing}


def _not_comparable(model: AuditedModel) -> Finding:
    same = f"all {model.n:,} right answers are the same"
    return not_applicable(same if model.baseline is None else f"the loss is {model.loss}: see the check HC306")


def _passed_with_errors(losses: str, evidence: Evidence, baseline: ConstantBaseline) -> Finding:
    """Return a passed finding for a model with a high loss whose accuracy beats a constant answer, or may beat it."""
    if baseline.is_beaten:
        share = f"{percent(baseline.measured.rate)} of the answers are right"
        losses += f", although {share}: the model is very sure of its wrong answers"
    return passed(losses, **evidence)


def _learned_tokens(model: AuditedSequenceModel) -> str | None:
    """Return the token accuracy in words if it is clearly above that of the best constant tokens; otherwise None."""
    hits, asked, right = model.answers.teacher_forced_hits, model.answers.asked, model.right_answers
    if not asked.any():
        return None
    columns = [right[asked[:, i], i] for i in range(right.shape[1])]
    n_constant = sum(int(np.bincount(column).max()) for column in columns if len(column))
    accuracy = Proportion.count(hits[asked])
    if accuracy.low < n_constant / int(asked.sum()) + MIN_TOKEN_LEAD:
        return None
    return f"although {percent(accuracy.rate)} of the tokens are right: the model is very sure of its wrong tokens"


def _other_format(losses: str, evidence: Evidence, fitting: str) -> Finding:
    """Return the finding that encode() writes another format than training did.

    `fitting` describes the right format; it is empty if that is unknown.
    """
    none = "answers with leading zeros, without leading zeros or in reversed order do not fit either"
    return failed(
        f"{losses}: the model is confident in wrong answers, so encode() seems to write a format that the model was "
        "not trained on; "
        f"{fitting or none}",
        cause="consistent with an encode() that writes questions, answers or labels in another format than training",
        fix="write questions, answers and labels in encode() as in training: leading zeros, order of digits, start and "
        "end tokens, ids of tokens and classes",
        **evidence,
        format=fitting,
    )


def _other_rule(losses: str, evidence: Evidence) -> Finding:
    """Return the finding for a classifier that is sure of wrong answers, although its classes are not swapped."""
    failure = failed(
        f"{losses}: the model is confident in answers that are no better than guesses, so it has learned another rule "
        "than the task's",
        cause="consistent with training examples whose classes a simpler rule also separates, such as unsorted "
        "sequences that are all random shuffles, or with weights or inputs of another model",
        fix="train on all the kinds of examples that are tested, and compare accuracy by kind of example",
        **evidence,
    )
    return replace(failure, affects=RESTATED, explains_only=LOW_ACCURACY)


def _nothing_learned(losses: str, evidence: Evidence, measured: Proportion) -> Finding:
    return failed(
        f"{losses}: the model has learned nothing, and {percent(measured.rate, 2)} of {measured.n:,} answers are right",
        cause="consistent with a learning rate that is too high or too low, with labels that do not belong to their "
        "inputs, or with weights that were never trained or loaded",
        fix="train until the loss falls below that of guessing (a lower learning rate, warmup, or a few examples "
        "first), and draw no conclusions before it does",
        **evidence,
        measured=measured.rate,
    )


def _right_when_swapped(model: AuditedClassifier, baseline: ConstantBaseline) -> str:
    """Say how many answers are right after the two classes are swapped; return an empty text if most are not right."""
    wrong = Proportion.count(~model.answers.hits)
    if model.answers.logits.shape[1] != 2 or wrong.low <= max(baseline.share, 1 - baseline.share):
        return ""
    return f"with the two classes swapped, {wrong.correct:,} of {wrong.n:,} are right"


def _margin(model: AuditedClassifier) -> float:
    """Return half the width of the 95 % CI of the loss."""
    logits, rows = model.answers.logits.astype(np.float64), np.arange(model.n)
    losses = np.logaddexp.reduce(logits, axis=1) - logits[rows, model.answers.labels]
    return Z95 * float(losses.std()) / math.sqrt(model.n)


def entropy(labels: NDArray[np.int64]) -> float:
    """Return the cross-entropy, in nats, of always predicting the relative frequencies of these labels."""
    shares = np.unique(labels, return_counts=True)[1] / len(labels)
    return float(-(shares * np.log(shares)).sum())


def _labels(model: AuditedSequenceModel) -> NDArray[np.int64]:
    """Return the labels [example, column] that the loss is computed on, including an adapter's end tokens."""
    if model.adapter is None:
        return model.answers.batch.labels
    return encoded(model.adapter, model.pairs)[1].cpu().numpy()


def _entropy_by_column(labels: NDArray[np.int64]) -> float:
    """Return the mean cross-entropy per label, in nats, of predicting the frequencies of labels in each column."""
    columns = [column[column != IGNORE] for column in labels.T]
    return sum(len(column) * entropy(column) for column in columns if len(column)) / max(1, sum(map(len, columns)))


PART = Check(
    "HC304",
    "Is the loss no better than that of guessing?",
    sequences=check_sequences,
    classes=check_classes,
    is_quick=True,
)
