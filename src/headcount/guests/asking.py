"""What an adapter's model is asked: examples of one of our tasks, or its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from headcount.analysis.subjects import ACCURACY, FREE, LOSS, Score
from headcount.config import parse
from headcount.errors import InputError
from headcount.guests.adapter import Adapted, Adapter
from headcount.guests.exams.base import Asked, Exam, Rows, require_logits, token_loss
from headcount.guests.user_code import user_code_errors
from headcount.seeds import stream
from headcount.tasks import TASKS
from headcount.tasks.base import IGNORE, Task

Pairs = Sequence[tuple[str, str]]
"""Questions and right answers."""


def exam_of(adapter: Adapter, model: Adapted, split: str = "test") -> Exam:
    """The examples of a split of the adapter's task, or its own data."""
    pairs, data = _pairs(adapter, split)
    inputs, labels = encoded(adapter, pairs[:2])
    if labels.dim() not in (1, 2):
        raise InputError(f"encode() made labels of {labels.dim()} axes", "[row] for classes, [row, position] else")
    device = next(model.parameters()).device
    model.require_answer([each.to(device) for each in inputs])
    exam = _exam(adapter, model, pairs, data, is_sequence=labels.dim() == 2)
    return exam if adapter.task is None else replace(exam, fresh=lambda n: _fresh(adapter, model, exam, n))


def _fresh(adapter: Adapter, model: Adapted, exam: Exam, n: int) -> Exam:
    """Training examples of the task, as many as are asked for."""
    task = task_of(adapter)
    pairs = [(task.show(row), task.answer(row)) for row in task.draw(stream(0, "reference"), n)]
    what = f"{n:,} examples such as it was trained on"
    return _exam(adapter, model, pairs, what, is_sequence=exam.metrics[0] is FREE)


def _exam(adapter: Adapter, model: Adapted, pairs: Pairs, data: str, *, is_sequence: bool) -> Exam:
    device = next(model.parameters()).device

    def ask(rows: Rows) -> Asked:
        inputs, labels = encoded(adapter, [pairs[row] for row in rows])
        right = labels.to(device)
        loss, hit = _scores(right)
        scores = {FREE.name if is_sequence else ACCURACY.name: hit, LOSS.name: loss}
        real = {"decoder": _up_to_the_last(right != IGNORE)} if is_sequence else {}
        return Asked(tuple(each.to(device) for each in inputs), scores, lambda logits: -loss(logits), real)

    def decode(rows: Rows) -> NDArray[np.bool_]:
        with user_code_errors(adapter, "generate"):
            said = adapter.generate(model.model, [pairs[row][0] for row in rows])
        return np.array([one == pairs[row][1] for one, row in zip(said, rows, strict=True)])

    metrics = (FREE, LOSS) if is_sequence else (ACCURACY, LOSS)
    lengths = np.array([max(len(question), len(answer)) for question, answer in pairs])
    generates = is_sequence and type(adapter).generate is not Adapter.generate
    answers = np.unique([answer for _, answer in pairs], return_counts=True)[1]
    floor = float(answers.max() / len(pairs)) if not is_sequence else 0.0
    return Exam(
        data=data,
        metrics=metrics,
        lengths=lengths,
        ask=ask,
        width=1024,
        floor=lambda rows: floor,
        decode=decode if generates else None,
    )


def _pairs(adapter: Adapter, split: str) -> tuple[Pairs, str]:
    if adapter.task is None:
        if type(adapter).data is Adapter.data:
            raise InputError(
                f"{type(adapter).__name__} says neither which task its model was trained on nor what to ask it",
                'set task = "addition", or write data()',
            )
        if split != "test":
            raise InputError(f"the adapter's own data have no {split!r} split", "leave it out: data() is all there is")
        with user_code_errors(adapter, "data"):
            pairs = [(str(question), str(answer)) for question, answer in adapter.data()]
        if len(pairs) < 2:
            raise InputError("data() should give questions and right answers", "a list of at least 2 pairs of texts")
        return pairs, "the adapter's data"
    task = task_of(adapter)
    examples = task.split(split)
    return [(task.show(row), task.answer(row)) for row in examples], f"the {split} set of {task.name}"


def task_of(adapter: Adapter) -> Task:
    """The task that the model was trained on."""
    kind = TASKS.get(str(adapter.task))
    settings = parse({"task": kind.config_class}, {"task": adapter.settings})["task"]
    return cast(Task, kind(settings))


def encoded(adapter: Adapter, pairs: Pairs) -> tuple[tuple[Tensor, ...], Tensor]:
    """What the model is given, and what it should say."""
    if type(adapter).encode is Adapter.encode:
        raise InputError(f"{type(adapter).__name__} has no encode()", "write it: from texts to tensors and labels")
    with user_code_errors(adapter, "encode"):
        made = adapter.encode([question for question, _ in pairs], [answer for _, answer in pairs])
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], Tensor)):
        raise InputError("encode() should return inputs and labels", "return (tensor, ...), labels")
    inputs = (made[0],) if isinstance(made[0], Tensor) else made[0]
    if not (isinstance(inputs, tuple | list) and inputs and all(isinstance(each, Tensor) for each in inputs)):
        raise InputError("encode() should return tensors, then labels", "return (tensor, ...), labels")
    rows = [len(each) if each.dim() else 0 for each in (*inputs, made[1])]
    if set(rows) != {len(pairs)}:
        raise InputError(f"encode() made tensors of {rows} rows from {len(pairs)} questions", "rows come first")
    return tuple(inputs), made[1]


def _up_to_the_last(asked: Tensor) -> Tensor:
    """Positions that hold tokens: after the last that is asked for there is padding."""
    return asked.flip(1).cumsum(1).flip(1) > 0


def _scores(labels: Tensor) -> tuple[Score, Callable[[Tensor], Tensor]]:
    """Minus the loss, and whether all that was asked is right."""
    if labels.dim() == 2:
        return token_loss(labels), lambda logits: _all_right(logits, labels)

    def loss(logits: Tensor) -> Tensor:
        if logits.dim() != 2:
            raise InputError(f"logits of shape {tuple(logits.shape)} for one class per row", "forward(): [row, class]")
        return -F.cross_entropy(logits, labels, reduction="none")

    return loss, lambda logits: torch.eq(logits.argmax(-1), labels)


def _all_right(logits: Tensor, labels: Tensor) -> Tensor:
    require_logits(logits, labels)
    return ((logits.argmax(-1) == labels) | (labels == IGNORE)).all(dim=1)
