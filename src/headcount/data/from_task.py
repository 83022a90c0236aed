"""Datasets of a task's examples, for a model that takes the task's own tokens."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
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
    class_scores,
    one_length,
    token_scores,
)
from headcount.errors import InputError
from headcount.limits import N_LENGTH, require_room_for
from headcount.seeds import stream
from headcount.tasks.base import ClassTask, Examples, SequenceTask, Task, Tokens, past_end

LONGEST = 8192
"""Largest length of sequences that are drawn."""
REFERENCE = 2**18
"""Number of tokens over which the mean output of a head is computed, for mean ablation."""


def task_dataset(
    task: Task,
    examples: Examples,
    data: str,
    device: torch.device,
    *,
    reference: Callable[[], Examples] | None = None,
    is_all: bool = False,
) -> EvalDataset:
    """Return a dataset of a task's examples; `data` describes the examples in results.

    `reference` returns the examples over which mean ablation averages; it is called only if they are needed. `is_all`
    states that these are all examples of the task.
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
    is_filled = _on(device, past_end(batch.answer, task.end_id)[:, len(given) :])
    begins_right = torch.from_numpy((batch.answer[:, : len(given)] == given).all(axis=1)).to(device)
    labels, right = (_on(device, tokens) for tokens in (batch.labels, batch.answer[:, len(given) :]))

    def free_running(logits: Tensor) -> Tensor:
        """Return for each example whether the decoded answer would be right, from logits of a teacher-forced pass.

        No decoding is needed, because it is fed the same tokens up to its first error.
        """
        return ((logits.argmax(dim=-1) == right) | is_filled).all(dim=1) & begins_right

    inputs = _on(device, batch.source), _on(device, batch.decoder_input)
    return EvalBatch.scored(rows, inputs, {FREE.name: free_running, **token_scores(labels)})


def _class_batch(task: ClassTask, rows: Rows, examples: Examples, device: torch.device) -> EvalBatch:
    batch = task.encode(examples)
    return EvalBatch.scored(rows, [_on(device, batch.source)], class_scores(_on(device, batch.labels)))


def _on(device: torch.device, tokens: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(tokens)).to(device)


def majority_share(labels: Tokens) -> float:
    """Return the fraction of the labels that are the most frequent class."""
    return float(np.bincount(labels).max() / len(labels))


# --- which examples ---------------------------------------------------------------------------------------------------


def held_out(task: Task, split: str, n: int | None) -> tuple[Examples, str]:
    """Return `n` examples of a split (None: all), and a description of them.

    If the split has fewer than `n`, new examples are added, drawn as in training.
    """
    examples = task.split(split)
    if n is not None:
        _require_possible(n, examples.shape[1])
    if n is None or n <= len(examples):
        if n is None or n == len(examples):
            return examples, f"the {split} set"
        some = stream(0, f"some of the {split} set").permutation(len(examples))[:n]  # a split may be sorted by class
        return examples[np.sort(some)], f"{n:,} of the {split} set"
    fresh = task.sample(stream(0, f"beyond the {split} set"), n - len(examples))
    what = f"the {split} set and {len(fresh):,} new examples, drawn as in training"
    return np.concatenate([examples, fresh]), what


def reference_for(task: Task, length: int | None = None) -> Examples:
    """Return new examples over which mean ablation averages: drawn as in training, or all of one length."""
    n = REFERENCE // max(length or task.longest, 16)
    if length is None:
        return task.sample(stream(0, "reference"), n)
    return of_length(task, length, max(n, 2), "reference")[0]


def of_length(task: Task, length: int, n: int | None = None, name: str = "test") -> tuple[Examples, str]:
    """Return `n` new sequences of one length, and a description of them.

    Half are of the last class (such as sorted), and half of the first class, of all kinds that the task can generate.
    """
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
    return np.concatenate(parts)[rng.permutation(n)], f"new sequences of length {length}, half of them {last_class}"


def given_examples(task: Task, examples: Any) -> Examples:
    """Return a user's examples as an array; raise an error if they are not valid examples of the task."""
    rows, like = np.asarray(examples), task.split("test")
    if not len(rows) or rows.shape[1:] != like.shape[1:] or not np.issubdtype(rows.dtype, np.integer):
        raise InputError(
            f"examples of shape {rows.shape} and type {rows.dtype} do not fit the task {task.name}",
            f"give one row of {like.shape[1]} whole numbers per example, such as {like[0].tolist()}",
        )
    for row in rows:
        task.parse(task.show(row))
    return rows


def _require_possible(n: int, length: int) -> None:
    if n < 2:
        raise InputError(f"n = {n} examples are too few for a confidence interval", "give at least 2")
    require_room_for(n, length, "lower --n")
