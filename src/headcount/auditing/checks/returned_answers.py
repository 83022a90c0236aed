"""Does the model output the answers that encode() was given?

An adapter scores 100 % if its encode() keeps the labels and its forward() returns them, or if it gives the labels to a
classifier as an input. The check encodes new questions with wrong answers. In a sound model, these answers change
logits only by teacher forcing: a token that the decoder is fed may change the logits of later tokens, and of no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headcount.auditing.audited_model import MAX_LOGIT_CHANGE, AuditedModel, logit_changes
from headcount.auditing.check import MEASUREMENT, Check, Finding, failed, not_applicable, passed
from headcount.data.adapter_task import AdapterModel, AdapterSequences
from headcount.data.from_adapter import Pairs, encoded, pairs_of, require_logits, whole_answer
from headcount.hooks.gates import eval_mode
from headcount.tasks.base import IGNORE

N_QUESTIONS, MIN_QUESTIONS = 32, 4
"""Largest number of questions that are encoded with wrong answers, and smallest number that suffices for the check."""
MAX_RETURNED = 0.5
"""If more than this fraction of outputs are the wrong answers given to encode(), the model repeats what it is given."""
KEPT = "encode() keeps the answers, and forward() or generate() uses them"
PASSED_ON = "encode() puts the answers into the inputs of the model"


def run(model: AuditedModel) -> Finding:
    """Give encode() wrong answers to new questions; fail if the model outputs these or its logits change."""
    if not isinstance(adapted := model.opened.answers, AdapterModel):
        return not_applicable("headcount encodes the questions of models that it trained itself, without their answers")
    right, wrong = _pairs(model, same_length=isinstance(adapted, AdapterSequences))
    if (n := len(wrong)) < MIN_QUESTIONS:
        return not_applicable("the questions have too few different answers")
    with_wrong, with_right = Pass.of(adapted, wrong), Pass.of(adapted, right)
    n_returned = int(with_wrong.outputs(with_wrong.labels).sum())
    if with_right.again(adapted, right).has_other_logits(with_right):
        return not_applicable("two passes on the same input differ")
    if with_right.again(adapted, wrong).has_other_logits(with_right):
        return _failure(n_returned, n, KEPT)
    if not isinstance(adapted, AdapterSequences):
        if with_wrong.has_other_logits(with_right):
            return _failure(n_returned, n, PASSED_ON)
        return passed(f"{n} questions have the same logits whether encode() is given right or wrong answers", n=n)
    n_kept = int(with_right.outputs(with_wrong.labels).sum())  # encode() may keep the first answers it is given
    n_kept = max(n_kept, _n_decoded(adapted, wrong))
    if n_kept > MAX_RETURNED * n:
        return _failure(n_kept, n, KEPT)
    if n_returned > MAX_RETURNED * n and with_wrong.passes_labels_on:
        return _failure(n_returned, n, PASSED_ON)
    return passed(f"wrong answers to {n} questions change logits only by teacher forcing, if at all", n=n)


def _failure(n_returned: int, n: int, cause: str) -> Finding:
    outputs = f"{n_returned:,} of {n:,} outputs are these wrong answers" if n_returned else "the logits change"
    return failed(
        f"the model outputs the answers that encode() was given: if it is given wrong answers to {n:,} new questions, "
        f"{outputs}, so no accuracy measured here means anything",
        cause=cause,
        fix="let encode() build inputs from the questions alone (a decoder is also fed the answer behind a start "
        "token), and let forward() compute logits from these inputs",
        returned=n_returned,
        n=n,
    )


@dataclass(frozen=True)
class Pass:
    """One forward pass over questions that were encoded together with some answers, right or wrong."""

    inputs: tuple[Tensor, ...]
    labels: Tensor
    logits: Tensor

    @classmethod
    def of(cls, model: AdapterModel, pairs: Pairs) -> Pass:
        """Return the pass of the model over these questions and answers, encoded anew."""
        inputs, labels = encoded(model.adapter, pairs)
        logits = _logits(model, inputs)
        require_logits(logits, labels)
        return cls(tuple(each.cpu() for each in inputs), labels.cpu(), logits)

    def again(self, model: AdapterModel, pairs: Pairs) -> Pass:
        """Run the model on the same inputs again, after encode() was given other answers, which it may have stored."""
        encoded(model.adapter, pairs)
        return Pass(self.inputs, self.labels, _logits(model, self.inputs))

    def outputs(self, labels: Tensor) -> Tensor:
        """Return for each question whether the model outputs exactly these labels."""
        if labels.shape != self.logits.shape[:-1]:
            return torch.zeros(len(self.logits), dtype=torch.bool)
        is_hit = (self.logits.argmax(dim=-1) == labels) | (labels == IGNORE)
        return is_hit.reshape(len(labels), -1).all(dim=1)

    @property
    def passes_labels_on(self) -> bool:
        """Whether encode() makes several input tensors, one of which contains the labels unshifted."""
        is_label = self.labels != IGNORE
        same = [each for each in self.inputs if each.shape == self.labels.shape]
        return len(self.inputs) > 1 and any(torch.equal(each[is_label], self.labels[is_label]) for each in same)

    def has_other_logits(self, other: Pass) -> bool:
        """Return whether any logit differs from that of another pass by more than rounding."""
        if self.logits.shape != other.logits.shape:
            return True
        return bool((logit_changes(self.logits, other.logits) > MAX_LOGIT_CHANGE).any())


def _logits(model: AdapterModel, inputs: Sequence[Tensor]) -> Tensor:
    with eval_mode(model.adapted, gradients=False) as device:
        return model.adapted(*(model.as_weights(each).to(device) for each in inputs)).cpu()


def _n_decoded(model: AdapterSequences, wrong: Pairs) -> int:
    """Give encode() wrong answers to questions, and return how many of these answers generate() then returns."""
    if not model.generates:
        return 0
    encoded(model.adapter, wrong)
    texts = model.generate([question for question, _ in wrong])
    given = [whole_answer(model.task, answer) for _, answer in wrong]
    return sum(whole_answer(model.task, text) == answer for text, answer in zip(texts, given, strict=True))


def _pairs(model: AuditedModel, *, same_length: bool) -> tuple[Pairs, Pairs]:
    """Return new questions with their right answers, and these questions with the answers to other questions."""
    pairs = pairs_of(model.task, model.task.sample(model.rng("returned answers"), N_QUESTIONS))
    right, wrong = list[tuple[str, str]](), list[tuple[str, str]]()
    for i, (question, answer) in enumerate(pairs):
        others = (other for _, other in [*pairs[i:], *pairs[:i]] if other != answer)
        other = next((each for each in others if not same_length or len(each) == len(answer)), None)
        if other is not None:
            right.append((question, answer))
            wrong.append((question, other))
    return right, wrong


PART = Check(
    "HC205",
    "Does the model output the answers that encode() was given?",
    sequences=run,
    classes=run,
    is_quick=True,
    affects=MEASUREMENT,
)
