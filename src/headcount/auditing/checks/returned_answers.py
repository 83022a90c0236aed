"""Does the model output the answers that encode() was given?

An adapter whose encode() keeps the labels and whose forward() returns them scores 100 %, and so does one that hands
the labels to a classifier as an input. Fresh questions are encoded with wrong answers. A sound model's logits follow
these answers by teacher forcing alone: an earlier token that the decoder is fed may move the logits of a later one, and
nothing else may.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headcount.auditing.check import MEASUREMENT, Check, Finding, failed, not_applicable, passed
from headcount.auditing.fed_answers import TOLERANCE, share_moved
from headcount.auditing.observed import Observed
from headcount.data.adapter_task import AdapterModel, AdapterSequences
from headcount.data.from_adapter import Pairs, encoded, pairs_of, require_logits, whole_answer
from headcount.hooks.gates import eval_mode
from headcount.tasks.base import IGNORE

ROWS, FEWEST = 32, 4
"""Questions that are asked, at most and at least."""
MOST = 0.5
"""Share of wrong answers that no model outputs unless it was handed them."""
KEPT = "encode() keeps the answers, and forward() or generate() uses them"
HANDED = "encode() puts the answers into the inputs of the model"


def run(observed: Observed) -> Finding:
    """Encode fresh questions with wrong answers first, then with the right ones."""
    model = observed.answers
    if not isinstance(model, AdapterModel):
        return not_applicable("headcount encodes the questions of its own runs, without their answers")
    right, wrong = _pairs(observed)
    if len(right) < FEWEST:
        return not_applicable("questions have too few different answers")
    with_wrong, with_right = Pass.of(model, wrong), Pass.of(model, right)
    if with_right.again(model, right).has_other_logits(with_right):
        return not_applicable("two passes on the same input differ")
    n_returned, n = int(with_wrong.outputs_its_labels.sum()), len(right)
    if with_right.again(model, wrong).has_other_logits(with_right):
        return _failure(n_returned, n, KEPT)
    if not isinstance(model, AdapterSequences):
        if with_wrong.has_other_logits(with_right):
            return _failure(n_returned, n, HANDED)
        return passed(f"{n} questions have the same logits whether encode() is given right or wrong answers", n=n)
    n_kept = int(with_right.outputs(with_wrong.labels).sum())  # the first answer to a question may be kept for good
    n_kept = max(n_kept, _n_written(model, wrong))
    if n_kept > MOST * n:
        return _failure(n_kept, n, KEPT)
    if n_returned > MOST * n and with_wrong.hands_labels_over:
        return _failure(n_returned, n, HANDED)
    return passed(f"wrong answers to {n} questions reach the logits by teacher forcing alone, if at all", n=n)


def _failure(n_returned: int, n: int, way: str) -> Finding:
    told = f"{n_returned:,} of {n:,} outputs are these wrong answers" if n_returned else "its logits are others"
    return failed(
        f"the model outputs the answers that encode() was given: with wrong answers to {n:,} fresh questions, {told}, "
        "so that no accuracy measured here means anything",
        cause=way,
        fix="let encode() make inputs of the questions alone (a decoder is also fed the answer behind a start token), "
        "and let forward() compute logits from these inputs",
        returned=n_returned,
        n=n,
    )


@dataclass(frozen=True)
class Pass:
    """One pass over questions that were encoded with some answers."""

    inputs: tuple[Tensor, ...]
    labels: Tensor
    logits: Tensor

    @classmethod
    def of(cls, model: AdapterModel, pairs: Pairs) -> Pass:
        """Encode these pairs and ask the model."""
        inputs, labels = encoded(model.adapter, pairs)
        logits = _logits(model, inputs)
        require_logits(logits, labels)
        return cls(tuple(each.cpu() for each in inputs), labels.cpu(), logits)

    def again(self, model: AdapterModel, pairs: Pairs) -> Pass:
        """Encode these pairs, and ask the model with the inputs that there were before."""
        encoded(model.adapter, pairs)
        return Pass(self.inputs, self.labels, _logits(model, self.inputs))

    def outputs(self, labels: Tensor) -> Tensor:
        """[question]: whether the model outputs all of these labels."""
        if labels.shape != self.logits.shape[:-1]:
            return torch.zeros(len(self.logits), dtype=torch.bool)
        is_hit = (self.logits.argmax(dim=-1) == labels) | (labels == IGNORE)
        return is_hit.reshape(len(labels), -1).all(dim=1)

    @property
    def outputs_its_labels(self) -> Tensor:
        """[question]: whether the model outputs the answer that encode() was given."""
        return self.outputs(self.labels)

    @property
    def hands_labels_over(self) -> bool:
        """Whether one of several inputs has the very labels, where they are asked for."""
        asked = self.labels != IGNORE
        same = [each for each in self.inputs if each.shape == self.labels.shape]
        return len(self.inputs) > 1 and any(torch.equal(each[asked], self.labels[asked]) for each in same)

    def has_other_logits(self, other: Pass) -> bool:
        """Whether some logit differs by more than rounding."""
        if self.logits.shape != other.logits.shape:
            return True
        return bool((share_moved(self.logits, other.logits) > TOLERANCE).any())


def _logits(model: AdapterModel, inputs: Sequence[Tensor]) -> Tensor:
    with eval_mode(model.adapted, gradients=False) as device:
        return model.adapted(*(model.as_weights(each).to(device) for each in inputs)).cpu()


def _n_written(model: AdapterSequences, wrong: Pairs) -> int:
    """How many wrong answers generate() writes after encode() was given them."""
    if not model.generates:
        return 0
    encoded(model.adapter, wrong)
    texts = model.generate([question for question, _ in wrong])
    rights = [whole_answer(model.task, answer) for _, answer in wrong]
    return sum(whole_answer(model.task, text) == right for text, right in zip(texts, rights, strict=True))


def _pairs(observed: Observed) -> tuple[Pairs, Pairs]:
    """Fresh questions with right answers, and with the answer to another one: as long, if it is written by tokens."""
    task, is_class = observed.task, observed.task.output_type == "class"
    pairs = pairs_of(task, task.sample(observed.rng("returned answers"), ROWS))
    right, wrong = list[tuple[str, str]](), list[tuple[str, str]]()
    for i, (question, answer) in enumerate(pairs):
        others = (other for _, other in [*pairs[i:], *pairs[:i]] if other != answer)
        other = next((each for each in others if is_class or len(each) == len(answer)), None)
        if other is not None:
            right.append((question, answer))
            wrong.append((question, other))
    return right, wrong


PART = Check(
    "HC205",
    "Does the model output the answers that encode() was given?",
    run,
    is_quick=True,
    affects=MEASUREMENT,
    explains=("HC106", "HC201", "HC204", "HC305", "HC505", "HC506", "HC701", "HC702", "HC703", "HC704", "HC802"),
)
