"""A model, examples to try it on, and how an answer is scored: what every experiment on heads begins with.

Examples come in blocks of one length, so that no row is padded: the mean of a head at a position is a mean over tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from headcount.config import suggestion
from headcount.errors import InputError
from headcount.instruments.sites import Sites
from headcount.runs.run import Run
from headcount.seeds import stream
from headcount.tasks.base import IGNORE, Batch, ClassBatch, ClassTask, Examples, SequenceTask, Task, Tokens

Score = Callable[[Tensor], Float[Tensor, " row"]]
LONGEST = 8192
N_LENGTH = 400
"""Sequences of each asked length, unless it is said how many."""
AT_ONCE = 128
"""Examples of one block: their activations, and those of a few ablations beside them, stay in a processor's cache."""


@dataclass(frozen=True)
class Metric:
    """What a score is."""

    name: str
    is_share: bool
    """Whether each example is right or wrong; else the score is any number, larger being better."""
    unit: str
    """Of a drop."""


FREE = Metric("free-running", True, "points")
FORCED = Metric("teacher-forced", True, "points")
ACCURACY = Metric("accuracy", True, "points")
LOSS = Metric("loss", False, "nats")
METRICS = {"sequence": (FREE, FORCED, LOSS), "class": (ACCURACY, LOSS)}
"""By what the task asks for; the first is the default."""


@dataclass(frozen=True)
class Block:
    """Some examples in the form that the model takes them."""

    rows: NDArray[np.int64]
    """Which examples."""
    inputs: tuple[Tensor, ...]
    score: Score
    """From the model's output to one number per row; larger is better."""
    loss: Score | None
    """What gradients are taken of, per row."""


@dataclass(frozen=True)
class Subject:
    """A model on some examples."""

    model: nn.Module
    sites: Sites
    blocks: tuple[Block, ...]
    metric: Metric
    data: str
    """What the examples are, in words."""
    task: Task | None = None
    examples: Examples | None = None
    floor: float = 0.0
    """What the best constant answer scores: hits up to here prove nothing."""

    @property
    def n(self) -> int:
        """How many examples."""
        return sum(len(block.rows) for block in self.blocks)


def subject_of(
    run: Run,
    examples: Examples,
    data: str,
    metric: str | Callable[[Tensor, NDArray[np.int64]], Tensor] | None = None,
    *,
    at_once: int = AT_ONCE,
) -> Subject:
    """A run on examples of its task; a metric is a name, or a function of the output and the examples' numbers."""
    task, known = run.task, METRICS[run.task.asks_for]
    chosen = Metric(getattr(metric, "__name__", "score"), False, "") if callable(metric) else _named(metric, known)
    device = next(run.model.parameters()).device
    blocks, labels = [], []
    for rows in _rows(task, examples, at_once):
        batch = task.encode(examples[rows])  # type: ignore[attr-defined]
        inputs, scores = _parts(task, batch, device)
        labels.append(batch.labels)
        score = _bound(metric, rows) if callable(metric) else scores[chosen.name]
        blocks.append(Block(rows, inputs, score, _negative(scores["loss"])))
    floor = _constant(np.concatenate(labels)) if chosen is ACCURACY else 0.0
    return Subject(run.model, Sites.of(run.model), tuple(blocks), chosen, data, task, examples, floor)


def subject_on(
    model: nn.Module,
    sites: Sites,
    inputs: Sequence[Tensor],
    metric: Callable[[Tensor, NDArray[np.int64]], Tensor],
    *,
    at_once: int = AT_ONCE,
) -> Subject:
    """Any model on given inputs, whose first axis counts the examples."""
    n = {len(each) for each in inputs}
    if len(n) != 1 or 0 in n:
        raise InputError(f"inputs of {sorted(n)} rows", "give tensors whose first axis counts the same examples")
    blocks = []
    lengths = {size for each in inputs for size in each.shape[1:]}
    for rows in _parted(np.arange(len(inputs[0])), at_once, lengths):
        score = _bound(metric, rows)
        part = slice(rows[0], rows[-1] + 1)
        blocks.append(Block(rows, tuple(each[part] for each in inputs), score, _negative(score)))
    chosen = Metric(getattr(metric, "__name__", "score"), False, "")
    return Subject(model, sites, tuple(blocks), chosen, "given examples")


def held_out(task: Task, split: str, n: int | None) -> tuple[Examples, str]:
    """`n` examples of a split and what they are; beyond its size, fresh ones from where training examples come."""
    examples = task.split(split)
    if n is not None:
        _require_two(n)
    if n is None or n <= len(examples):
        if n is None or n == len(examples):
            return examples, f"the {split} set"
        some = stream(0, f"some of the {split} set").permutation(len(examples))[:n]  # its classes may stand in order
        return examples[np.sort(some)], f"{n:,} of the {split} set"
    fresh = task.draw(stream(0, f"beyond the {split} set"), n - len(examples))
    what = f"the {split} set and {len(fresh):,} fresh examples such as it was trained on"
    return np.concatenate([examples, fresh]), what


def of_length(task: Task, length: int, n: int | None = None, name: str = "test") -> tuple[Examples, str]:
    """`n` sequences of one length: half of the last class, half of the first, in every way to make one."""
    if task.asks_for != "class":
        raise InputError(f"{task.name} has one length only", "leave the lengths out")
    n = N_LENGTH if n is None else n
    _require_two(n)
    if not 2 <= length <= LONGEST:
        raise InputError(f"sequences of {length:,} cannot be tried", f"choose a length from 2 to {LONGEST:,}")
    asked, rng = cast(ClassTask, task), stream(0, f"heads {name}", length)
    share = np.diff(np.linspace(0, n // 2, len(asked.kinds) + 1).round().astype(int))
    parts = [asked.stretched(rng, length, None, n - n // 2)]
    parts += [asked.stretched(rng, length, kind, int(k)) for kind, k in zip(asked.kinds, share, strict=True) if k]
    return np.concatenate(parts)[rng.permutation(n)], f"fresh sequences of {length}, half of them {asked.classes[-1]}"


def given(task: Task, examples: Any) -> Examples:
    """Examples that somebody gives, if the task can have such."""
    rows, like = np.asarray(examples), task.split("test")
    if not len(rows) or rows.shape[1:] != like.shape[1:] or not np.issubdtype(rows.dtype, np.integer):
        raise InputError(
            f"examples of shape {rows.shape} and type {rows.dtype} are none of {task.name}",
            f"give whole numbers, a row of {like.shape[1]} for each, such as {like[0].tolist()}",
        )
    for row in rows:
        task.parse(task.show(row))
    return rows


def _require_two(n: int) -> None:
    if n < 2:
        raise InputError(f"{n} examples are too few", "at least 2")


def _constant(labels: Tokens) -> float:
    """How often the most frequent class is right."""
    return float(np.bincount(labels).max() / len(labels))


def _named(name: str | None, known: Sequence[Metric]) -> Metric:
    by_name = {metric.name: metric for metric in known}
    if name is None:
        return known[0]
    if name not in by_name:
        raise InputError(f"no metric {name!r} for this task", suggestion(name, tuple(by_name)))
    return by_name[name]


def _rows(task: Task, examples: Examples, at_once: int) -> Iterator[NDArray[np.int64]]:
    """Which examples go together: of one length, shuffled, for the classes of a split may stand in order."""
    lengths = cast(ClassTask, task).lengths(examples) if task.asks_for == "class" else np.zeros(len(examples))
    for length in np.unique(lengths):
        yield from _parted(stream(0, "blocks", int(length)).permutation(np.flatnonzero(lengths == length)), at_once)


def _parted(rows: NDArray[np.int64], at_once: int, lengths: Collection[int] = ()) -> list[NDArray[np.int64]]:
    """Blocks of nearly equal size; if it can be helped, none as large as a sequence is long: rows are told by that."""
    n_blocks = max(1, min(-(-len(rows) // at_once), len(rows) // 2))  # nobody alone: resampling needs another
    for n in range(n_blocks, min(n_blocks + 4, len(rows) // 2 + 1)):
        parts = np.array_split(rows, n)
        if not {len(part) for part in parts} & set(lengths):
            return parts
    return np.array_split(rows, n_blocks)


def _parts(task: Task, batch: Any, device: torch.device) -> tuple[tuple[Tensor, ...], dict[str, Score]]:
    return _sequence_parts(task, batch, device) if task.asks_for == "sequence" else _class_parts(batch, device)


def _sequence_parts(task: Task, batch: Batch, device: torch.device) -> tuple[tuple[Tensor, ...], dict[str, Score]]:
    given = cast(SequenceTask, task).generation.given
    begins_right = torch.from_numpy((batch.answer[:, : len(given)] == given).all(axis=1)).to(device)
    labels, right = (_there(device, tokens) for tokens in (batch.labels, batch.answer[:, len(given) :]))

    def free_running(logits: Tensor) -> Tensor:
        """Fed the right answer, the first wrong token is the one it would have said running freely."""
        return (logits.argmax(dim=-1) == right).all(dim=1) & begins_right

    def teacher_forced(logits: Tensor) -> Tensor:
        return ((logits.argmax(dim=-1) == labels) | (labels == IGNORE)).all(dim=1)

    def loss(logits: Tensor) -> Tensor:
        each = F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORE, reduction="none")
        return -each.sum(dim=1) / (labels != IGNORE).sum(dim=1).clamp(min=1)

    scores: dict[str, Score] = {FREE.name: free_running, FORCED.name: teacher_forced, LOSS.name: loss}
    return (_there(device, batch.source), _there(device, batch.fed)), scores


def _class_parts(batch: ClassBatch, device: torch.device) -> tuple[tuple[Tensor, ...], dict[str, Score]]:
    labels = _there(device, batch.labels)
    scores: dict[str, Score] = {
        ACCURACY.name: lambda logits: logits.argmax(dim=-1) == labels,
        LOSS.name: lambda logits: -F.cross_entropy(logits, labels, reduction="none"),
    }
    return (_there(device, batch.source),), scores


def _there(device: torch.device, tokens: Tokens) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(tokens)).to(device)


def _bound(metric: Callable[[Tensor, NDArray[np.int64]], Tensor], rows: NDArray[np.int64]) -> Score:
    return lambda output: metric(output, rows)


def _negative(score: Score) -> Score:
    return lambda output: -score(output).double()
