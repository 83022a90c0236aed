"""Examples of one of headcount's tasks or of an adapter's own, and single questions, as the adapter encodes them."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headcount.data.dataset import (
    ACCURACY,
    FORCED,
    FREE,
    LOSS,
    EvalBatch,
    EvalDataset,
    Rows,
    TokenizedText,
    class_scores,
    token_scores,
)
from headcount.data.from_file import require_text
from headcount.errors import InputError
from headcount.external.adapter import Adapted, Adapter, task_of
from headcount.external.models import ExternalModel
from headcount.external.user_code import user_code_errors
from headcount.seeds import stream
from headcount.tasks.base import IGNORE

Pairs = Sequence[tuple[str, str]]
"""Questions and right answers."""


def adapter_dataset(external: ExternalModel, split: str = "test") -> EvalDataset:
    """The examples of a split of the adapter's task, or its own data."""
    adapter, model = external.adapter, external.model
    assert adapter is not None and isinstance(model, Adapted), "brought by one"  # noqa: PT018
    pairs, data = _pairs(adapter, split)
    inputs, labels = encoded(adapter, pairs[:2])
    if labels.dim() not in (1, 2):
        raise InputError(f"encode() made labels of {labels.dim()} axes", "[row] for classes, [row, position] else")
    device = next(model.parameters()).device
    model.require_answer([each.to(device) for each in inputs])
    dataset = _dataset(adapter, model, pairs, data, is_sequence=labels.dim() == 2)
    if adapter.task is None:
        return dataset
    task = task_of(adapter)

    def fresh(n: int) -> EvalDataset:
        pairs = [(task.show(row), task.answer(row)) for row in task.sample(stream(0, "reference"), n)]
        what = f"{n:,} examples such as it was trained on"
        return _dataset(adapter, model, pairs, what, is_sequence=labels.dim() == 2)

    return replace(dataset, fresh=fresh)


def _dataset(adapter: Adapter, model: Adapted, pairs: Pairs, data: str, *, is_sequence: bool) -> EvalDataset:
    device = next(model.parameters()).device

    def encode(rows: Rows) -> EvalBatch:
        inputs, labels = encoded(adapter, [pairs[row] for row in rows])
        right = labels.to(device)
        scores = token_scores(right) if right.dim() == 2 else class_scores(right)
        if is_sequence:
            scores[FREE.name] = scores[FORCED.name]
        masks = {"decoder": _up_to_the_last(right != IGNORE)} if is_sequence else {}
        return EvalBatch.scored(rows, (each.to(device) for each in inputs), scores, masks)

    def decode(rows: Rows) -> NDArray[np.bool_]:
        with user_code_errors(adapter, "generate"):
            predicted = adapter.generate(model.model, [pairs[row][0] for row in rows])
        return np.array([one == pairs[row][1] for one, row in zip(predicted, rows, strict=True)])

    generates = is_sequence and type(adapter).generate is not Adapter.generate
    answers = np.unique([answer for _, answer in pairs], return_counts=True)[1]
    majority_baseline = float(answers.max() / len(pairs)) if not is_sequence else 0.0
    return EvalDataset(
        data=data,
        metrics=(FREE if is_sequence else ACCURACY, LOSS),
        lengths=np.array([max(len(question), len(answer)) for question, answer in pairs]),
        encode=encode,
        width=1024,
        majority_baseline=lambda rows: majority_baseline,
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
    return [(task.show(row), task.answer(row)) for row in task.split(split)], f"the {split} set of {task.name}"


def encoded(adapter: Adapter, pairs: Pairs) -> tuple[tuple[Tensor, ...], Tensor]:
    """What the model is given, and what it should output."""
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


# --- one question -----------------------------------------------------------------------------------------------------


def adapter_input(model: ExternalModel, question: str) -> TokenizedText:
    """As its adapter encodes it, with the model's own answer if it generates one."""
    require_text(question)
    adapter = model.adapter
    assert adapter is not None, "brought by one"
    generates = type(adapter).generate is not Adapter.generate
    with user_code_errors(adapter, "generate"):
        answer = adapter.generate(model.inner, [question])[0] if generates else _right_answer(model, adapter, question)
    inputs = tuple(each.to(next(model.model.parameters()).device) for each in encoded(adapter, [(question, answer)])[0])
    if isinstance(model.model, Adapted):
        model.model.require_answer(inputs)
    stacks = ("encoder", "decoder") if any(site.stack == "encoder" for site in model.sites) else ("layer",)
    with user_code_errors(adapter, "tokens"):
        labels = [list(map(str, part)) for part in adapter.tokens(question, answer)]
    labels += [list(map(str, range(each.shape[1]))) for each in inputs[len(labels) :]]
    tokens = dict(zip(stacks, labels, strict=False))
    if not generates:
        return TokenizedText(inputs, tokens)
    right, told = None, ""
    if adapter.task is not None:
        task = task_of(adapter)
        with suppress(InputError):  # a question of one's own may be none of the task's
            right = task.answer(task.parse(question)[0])
            told = " (right)" if answer == right else f" (wrong, should be {right})"
    return TokenizedText(inputs, tokens, note=f"{question} = {answer}{told}", predicted=answer, right=right)


def _right_answer(model: ExternalModel, adapter: Adapter, question: str) -> str:
    """What a model that is not asked for its own answer is fed."""
    if adapter.task is not None:
        task = task_of(adapter)
        return task.answer(task.parse(question)[0])
    with user_code_errors(adapter, "data"):
        known = {str(asked): str(answer) for asked, answer in adapter.data()}
    if question not in known:
        raise InputError(f"{model.name} cannot answer {question!r}", "add generate() to the adapter")
    return known[question]
