"""Datasets of a task's examples, for a model that takes the task's own tokens."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from headcount.data.dataset import (
    ACCURACY,
    FORCED,
    FREE,
    LOSS,
    EvalBatch,
    EvalDataset,
    Rows,
    class_scores,
    one_length,
    token_scores,
)
from headcount.errors import InputError
from headcount.limits import require_room_for
from headcount.seeds import stream
from headcount.tasks.base import ClassTask, Examples, SequenceTask, Task, Tokens

LONGEST = 8192
"""Largest number of numbers in a sequence."""
N_LENGTH = 400
"""Default number of sequences of each length."""
REFERENCE = 2**19
"""Number of tokens over which the mean output of a head is computed."""


def task_dataset(
    task: Task,
    examples: Examples,
    data: str,
    device: torch.device,
    *,
    reference: Callable[[], Examples] | None = None,
    is_all: bool = False,
) -> EvalDataset:
    """Make a dataset from examples of a task; `data` describes the examples in results.

    `reference` returns the examples over which mean ablation averages. It is called only when they are needed.
    """
    dataset = EvalDataset(
        data=data,
        metrics=(FREE, FORCED, LOSS),
        lengths=np.zeros(len(examples), dtype=np.int64),
        encode=lambda rows: _sequence_batch(cast(SequenceTask, task), rows, examples[rows], device),
        fresh=None if reference is None else lambda _: task_dataset(task, reference(), "reference", device),
        split=one_length,
        task=task,
        examples=examples,
        is_all=is_all,
        largest_loss=math.log(len(task.tokens)),
    )
    if task.output_type != "class":
        return dataset
    class_task = cast(ClassTask, task)
    return replace(
        dataset,
        metrics=(ACCURACY, LOSS),
        lengths=class_task.lengths(examples),
        encode=lambda rows: _class_batch(class_task, rows, examples[rows], device),
        majority_baseline=lambda rows: majority_share(class_task.encode(examples[rows]).labels),
        largest_loss=math.log(len(class_task.classes)),
    )


def _sequence_batch(task: SequenceTask, rows: Rows, examples: Examples, device: torch.device) -> EvalBatch:
    batch, given = task.encode(examples), task.decoding_start.given
    begins_right = torch.from_numpy((batch.answer[:, : len(given)] == given).all(axis=1)).to(device)
    labels, right = (_on(device, tokens) for tokens in (batch.labels, batch.answer[:, len(given) :]))

    def free_running(logits: Tensor) -> Tensor:
        """Score free-running exact match from one pass: up to its first error, decoding is fed the same tokens."""
        return (logits.argmax(dim=-1) == right).all(dim=1) & begins_right

    inputs = _on(device, batch.source), _on(device, batch.decoder_input)
    return EvalBatch.scored(rows, inputs, {FREE.name: free_running, **token_scores(labels)})


def _class_batch(task: ClassTask, rows: Rows, examples: Examples, device: torch.device) -> EvalBatch:
    batch = task.encode(examples)
    return EvalBatch.scored(rows, [_on(device, batch.source)], class_scores(_on(device, batch.labels)))


def _on(device: torch.device, tokens: Tokens) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(tokens)).to(device)


def majority_share(labels: Tokens) -> float:
    """Return the fraction of the most frequent class."""
    return float(np.bincount(labels).max() / len(labels))


# --- which examples ---------------------------------------------------------------------------------------------------


def held_out(task: Task, split: str, n: int | None) -> tuple[Examples, str]:
    """Return `n` examples of a split, with a description; if the split has fewer, add new ones drawn as in training."""
    examples = task.split(split)
    if n is not None:
        _require_possible(n, examples.shape[1])
    if n is None or n <= len(examples):
        if n is None or n == len(examples):
            return examples, f"the {split} set"
        some = stream(0, f"some of the {split} set").permutation(len(examples))[:n]  # a split may be sorted by class
        return examples[np.sort(some)], f"{n:,} of the {split} set"
    fresh = task.sample(stream(0, f"beyond the {split} set"), n - len(examples))
    what = f"the {split} set and {len(fresh):,} fresh examples such as it was trained on"
    return np.concatenate([examples, fresh]), what


def reference_for(task: Task, length: int | None = None) -> Examples:
    """Draw the examples over which mean ablation averages: as in training, or of one length."""
    n = REFERENCE // max(length or task.longest, 16)
    if length is None:
        return task.sample(stream(0, "reference"), n)
    return of_length(task, length, max(n, 2), "reference")[0]


def of_length(task: Task, length: int, n: int | None = None, name: str = "test") -> tuple[Examples, str]:
    """Draw `n` sequences of one length with a description: half of the last class, half of all kinds of negatives."""
    if task.output_type != "class":
        raise InputError(f"all examples of {task.name} have the same length", "leave the lengths out")
    n = N_LENGTH if n is None else n
    if not 2 <= length <= LONGEST:
        raise InputError(f"sequences of length {length:,} cannot be drawn", f"choose a length from 2 to {LONGEST:,}")
    _require_possible(n, length)
    rng, sample = stream(0, f"heads {name}", length), cast(ClassTask, task).sample_of_length
    negatives, last_class = cast(ClassTask, task).negatives, cast(ClassTask, task).classes[-1]
    counts = np.diff(np.linspace(0, n // 2, len(negatives) + 1).round().astype(int)).tolist()
    parts = [sample(rng, length, None, n - n // 2)]
    parts += [sample(rng, length, kind, count) for kind, count in zip(negatives, counts, strict=True) if count]
    return np.concatenate(parts)[rng.permutation(n)], f"fresh sequences of {length}, half of them {last_class}"


def given_examples(task: Task, examples: Any) -> Examples:
    """Convert a user's examples to an array; raise an error if they are not valid examples of the task."""
    rows, like = np.asarray(examples), task.split("test")
    if not len(rows) or rows.shape[1:] != like.shape[1:] or not np.issubdtype(rows.dtype, np.integer):
        raise InputError(
            f"examples of shape {rows.shape} and type {rows.dtype} are none of {task.name}",
            f"give whole numbers, a row of {like.shape[1]} for each, such as {like[0].tolist()}",
        )
    for row in rows:
        task.parse(task.show(row))
    return rows


def _require_possible(n: int, length: int) -> None:
    if n < 2:
        raise InputError(f"n = {n} is too few for an interval", "give at least 2")
    require_room_for(n, length, "lower --n")
