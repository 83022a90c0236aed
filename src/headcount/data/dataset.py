"""What every dataset is: examples, batches of them in the form that a model takes, and how outputs are scored.

A dataset knows no heads and runs no experiment. How its examples are batched is part of it: examples of a task come in
batches of one length, so that no row is padded and the mean of a head at a position is a mean over tokens; texts come
in batches of like length, padded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from headcount.errors import InputError
from headcount.registry import suggestion
from headcount.seeds import stream
from headcount.stats import Aggregator
from headcount.tasks.base import IGNORE, Examples, Task

Rows = NDArray[np.int64]
"""Numbers of examples."""
Score = Callable[[Tensor], Float[Tensor, " row"]]
"""From a model's output to one number per example; larger is better."""
ScoreFunction = Callable[[Tensor, Rows], Tensor]
"""A metric of one's own: from the output and the numbers of the examples to one number for each."""


@dataclass(frozen=True)
class TokenizedText:
    """One text as a model takes it: a row of inputs and, stack by stack, what stands at each position."""

    inputs: tuple[Tensor, ...]
    tokens: Mapping[str, Sequence[str]]
    special: Mapping[str, Sequence[bool]] = field(default_factory=dict)
    note: str = ""
    predicted: str | None = None
    """The model's own answer, where its adapter can ask for one."""
    right: str | None = None
    """The right answer, where the adapter's task or data know it."""
    separators: frozenset[str] = frozenset()
    """Tokens that part a text, by its tokenizer."""


class Answers(NamedTuple):
    """One example, answered by one pass that is fed the right answer, and by the model's own decoding."""

    question: str
    right: str
    labels: tuple[str, ...]
    """What one pass is held against, token by token."""
    one_pass: tuple[str, ...]
    generated: str


ShowAnswers = Callable[[Rows, Rows, Tensor], Sequence[Answers]]
"""From the examples of a batch, places of some among them, and the logits of all."""


@dataclass(frozen=True)
class Metric:
    """What a score is."""

    name: str
    is_accuracy: bool
    """Whether each example is right or wrong; else the score is any number, larger being better."""
    unit: str
    """Of a drop: points are hundredths, and have bands."""

    @property
    def in_points(self) -> bool:
        """Whether 0.01 is a little and 0.1 is much."""
        return self.unit == "points"

    @property
    def is_loss(self) -> bool:
        """Whether it is minus a cross-entropy over the last axis of the model's output."""
        return self.unit == "nats"


FREE = Metric("free-running", True, "points")
FORCED = Metric("teacher-forced", True, "points")
ACCURACY = Metric("accuracy", True, "points")
LOSS = Metric("loss", False, "nats")


def find_metric(metric: str | ScoreFunction | None, known: Sequence[Metric]) -> Metric:
    """The metric of that name, or the first; a function is one of its own."""
    if callable(metric):
        return Metric(getattr(metric, "__name__", "score"), False, "")
    if metric is None:
        return known[0]
    by_name = {each.name: each for each in known}
    if metric not in by_name:
        raise InputError(f"no metric {metric!r} for this task", suggestion(metric, tuple(by_name)))
    return by_name[metric]


@dataclass(frozen=True)
class EvalBatch:
    """Some examples in the form that the model takes them."""

    rows: Rows
    """Which examples."""
    inputs: tuple[Tensor, ...]
    """Several rows for each example, one after another, if that is what an example consists of."""
    scores: Mapping[str, Score]
    """By metric."""
    loss: Score | None
    """What gradients are taken of, per row."""
    token_mask: Mapping[str, Tensor] = field(default_factory=dict)
    """By stack, which positions [input row, position] hold tokens and no padding; all of them where none is given."""
    order: Rows | None = None
    """The examples' places in a running text, where neighbours are alike; None if they are independent."""

    @classmethod
    def scored(
        cls, rows: Rows, inputs: Iterable[Tensor], scores: dict[str, Score], masks: Mapping[str, Tensor] | None = None
    ) -> EvalBatch:
        """With gradients of minus the score by loss; `masks` as in `token_mask`."""
        return cls(rows, tuple(inputs), scores, negative(scores[LOSS.name]), masks or {})

    @property
    def n_inputs(self) -> int:
        """Rows that the model is given: several for each example, if that is what an example consists of."""
        return len(self.inputs[0])


def mean_score(scores: NDArray[np.float64], rows: Rows) -> NDArray[np.float64]:
    """What most metrics come to."""
    return scores.mean(axis=-1)


@dataclass(frozen=True)
class EvalDataset:
    """Examples, and how outputs for them are scored."""

    data: str
    """What the examples are, in words."""
    metrics: tuple[Metric, ...]
    """The first is the default."""
    lengths: Rows
    """Of every example, in tokens: those of like length are measured together."""
    encode: Callable[[Rows], EvalBatch]
    """The examples with these numbers."""
    width: int = 0
    """Numbers that the model outputs at each position, which memory is full of; 0 if batches are small anyway."""
    aggregators: Mapping[str, Aggregator] = field(default_factory=dict)
    """For metrics that are no mean over examples."""
    majority_baseline: Callable[[Rows], float] = lambda rows: 0.0
    """What the best constant answer scores by the first metric."""
    n_rows: int = 1
    """Rows that an example consists of."""
    decode: Callable[[Rows], NDArray[np.bool_]] | None = None
    """Answers generated by the model's own code: right or wrong?"""
    generate: Callable[[Rows], Sequence[str]] | None = None
    """These answers as they are written."""
    answers: ShowAnswers | None = None
    """Likewise, beside those of one pass: for people to see where they differ."""
    clusters: Rows | None = None
    """For examples of one running text: which of them are neighbours; None if they are independent of each other."""
    fresh: Callable[[int], EvalDataset] | None = None
    """About so many further examples to take means over, such as the model was trained on, where they can be drawn."""
    split: Callable[[EvalDataset, Rows, int], Iterator[Rows]] | None = None
    """Which examples go together, as places among those that are asked for; None for batches of like length."""
    task: Task | None = None
    examples: Examples | None = None
    """Where they are examples of a task, which can say what broke."""
    is_all: bool = False
    """Whether there are no other examples, so that what is measured is what there is to know."""
    largest_loss: float | None = None
    """Where examples are answered right or wrong, what one that breaks may lose by a loss: even odds, or more."""

    def __post_init__(self) -> None:
        if self.largest_loss is None and any(metric.is_accuracy for metric in self.metrics):
            object.__setattr__(self, "largest_loss", 0.0)

    def __len__(self) -> int:
        return len(self.lengths)

    def aggregator(self, metric: Metric) -> Aggregator:
        """What the scores of all examples come to by this metric."""
        return self.aggregators.get(metric.name, mean_score)

    def batches(self, rows: Rows, metric: Metric, score: ScoreFunction | None, at_once: int) -> Iterator[EvalBatch]:
        """These examples; each batch knows the places of its own among them. A function scores by itself."""
        for some in (self.split or like_lengths)(self, rows, at_once):
            for places, batch in self._encoded(rows, some):
                if score is not None:
                    batch = replace(batch, scores={metric.name: _bound(score, rows[places])})
                yield replace(batch, rows=places, order=None if self.clusters is None else rows[places])

    def _encoded(self, rows: Rows, places: Rows) -> Iterator[tuple[Rows, EvalBatch]]:
        """If it can be helped, no batch has as many rows as a sequence is long: rows are told by that."""
        batch = self.encode(rows[places])
        sizes = {size for each in batch.inputs for size in each.shape[1:]}
        if self.split is None and batch.n_inputs in sizes and len(places) >= 4:
            for part in np.array_split(places, 2):
                yield from self._encoded(rows, part)
        else:
            yield places, batch


def like_lengths(dataset: EvalDataset, rows: Rows, at_once: int) -> Iterator[Rows]:
    """Examples of like length, else shuffled: a donor should be no neighbour in a text, nor of the same class."""
    order = stream(0, "blocks of an exam").permutation(len(rows))
    by_length = order[np.argsort(dataset.lengths[rows[order]], kind="stable")]
    yield from parted(by_length, at_once)


def one_length(dataset: EvalDataset, rows: Rows, at_once: int) -> Iterator[Rows]:
    """Examples of one length, shuffled, for the classes of a split may stand in order."""
    lengths = dataset.lengths[rows]
    for length in np.unique(lengths):
        shuffled = stream(0, "blocks", int(length)).permutation(np.flatnonzero(lengths == length))
        yield from parted(shuffled, at_once)


def parted(rows: Rows, at_once: int, lengths: Collection[int] = ()) -> list[Rows]:
    """Parts of nearly equal size; if it can be helped, none as large as a sequence is long: rows are told by that."""
    n_parts = max(1, min(-(-len(rows) // at_once), len(rows) // 2))  # nobody alone: resampling needs another
    for n in range(n_parts, min(n_parts + 4, len(rows) // 2 + 1)):
        parts = np.array_split(rows, n)
        if not {len(part) for part in parts} & set(lengths):
            return parts
    return np.array_split(rows, n_parts)


def tensor_dataset(inputs: Sequence[Tensor], score: ScoreFunction) -> EvalDataset:
    """Tensors whose first axis counts the examples, and a function that scores outputs."""
    n = {len(each) for each in inputs}
    if len(n) != 1 or 0 in n:
        raise InputError(f"inputs of {sorted(n)} rows", "give tensors whose first axis counts the same examples")
    metric, sizes = find_metric(score, ()), {size for each in inputs for size in each.shape[1:]}

    def encode(rows: Rows) -> EvalBatch:
        is_run, own = len(rows) == rows[-1] + 1 - rows[0], _bound(score, rows)
        part = slice(rows[0], rows[-1] + 1) if is_run else torch.from_numpy(rows)  # a slice is no copy
        return EvalBatch(rows, tuple(each[part] for each in inputs), {metric.name: own}, negative(own))

    def in_order(dataset: EvalDataset, rows: Rows, at_once: int) -> Iterator[Rows]:
        yield from parted(np.arange(len(rows)), at_once, sizes)

    return EvalDataset("given examples", (metric,), np.zeros(n.pop(), dtype=np.int64), encode, split=in_order)


def split_in_half(dataset: EvalDataset, n: int | None = None) -> tuple[Rows, Rows]:
    """Examples to choose heads on, and others to measure on; `n` in all.

    They are drawn at random, but not from one running text: there the first half is chosen on, and the second measured,
    for what is chosen on a window has in part been measured on its neighbour.
    """
    order = stream(0, "halves of an exam").permutation(len(dataset))
    order = order if n is None else order[: max(0, n)]
    if len(order) < 4:
        raise InputError(f"{len(order)} examples are too few to choose on some and measure on others", "at least 4")
    if dataset.clusters is not None:
        order = np.sort(order)
    middle = len(order) // 2
    if dataset.clusters is not None:  # nothing that belongs together is in both halves, unless it is more than a half
        middle = int(np.searchsorted(dataset.clusters[order], dataset.clusters[order[middle]])) or middle
    return np.sort(order[:middle]), np.sort(order[middle:])


def subsample(dataset: EvalDataset, n: int | None) -> Rows:
    """`n` examples, drawn, or all."""
    if n is None or n >= len(dataset):
        return np.arange(len(dataset))
    return np.sort(stream(0, "some of an exam").permutation(len(dataset))[: max(0, n)])


def token_scores(labels: Tensor) -> dict[str, Score]:
    """Whether all labelled tokens of each row are right, and minus their mean loss."""

    def all_right(logits: Tensor) -> Tensor:
        _require_logits(logits, labels)
        return ((logits.argmax(dim=-1) == labels) | (labels == IGNORE)).all(dim=1)

    def loss(logits: Tensor) -> Tensor:
        _require_logits(logits, labels)
        each = F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORE, reduction="none")
        return -each.sum(dim=1) / (labels != IGNORE).sum(dim=1).clamp(min=1)

    return {FORCED.name: all_right, LOSS.name: loss}


def class_scores(labels: Tensor) -> dict[str, Score]:
    """Whether the class of each row is right, and minus its loss."""

    def loss(logits: Tensor) -> Tensor:
        if logits.dim() != 2:
            raise InputError(f"logits of shape {tuple(logits.shape)} for one class per row", "forward(): [row, class]")
        return -F.cross_entropy(logits, labels, reduction="none")

    return {ACCURACY.name: lambda logits: torch.eq(logits.argmax(dim=-1), labels), LOSS.name: loss}


def negative(score: Score) -> Score:
    """From a score to a loss."""
    return lambda output: -score(output).cpu().double()


def _require_logits(logits: Tensor, labels: Tensor) -> None:
    """One row of logits for each token."""
    if logits.dim() != 3 or logits.shape[:2] != labels.shape:
        raise InputError(
            f"the model outputs a tensor of shape {tuple(logits.shape)}, not one row of logits for each of "
            f"{tuple(labels.shape)} tokens",
            "load it with its language-modelling head (AutoModelForMaskedLM, AutoModelForCausalLM, ...)",
        )


def _bound(score: ScoreFunction, rows: Rows) -> Score:
    return lambda output: score(output, rows)
