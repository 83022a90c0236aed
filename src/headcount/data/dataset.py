"""The type of every dataset: examples, their batches as a model takes them, and how outputs are scored.

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
"""Indices of examples in a dataset."""
Score = Callable[[Tensor], Float[Tensor, " row"]]
"""Takes a model's output and returns one number per example; larger is better."""
ScoreFunction = Callable[[Tensor, Rows], Tensor]
"""A user's own metric: takes the output and the row numbers of the examples, and returns one number per example."""


@dataclass(frozen=True)
class TokenizedText:
    """One text, image or question as the inputs of a model, and names for the positions."""

    inputs: tuple[Tensor, ...]
    """Tensors with a single row."""
    tokens: Mapping[str, Sequence[str]]
    """The name of each position, by stack: `encoder` and `decoder`, or `layer` if there is one stack."""
    special: Mapping[str, Sequence[bool]] = field(default_factory=dict)
    """Whether each position holds a special token such as [CLS], by stack."""
    note: str = ""
    """What a reader should know about the inputs, such as that the text was cut."""
    predicted: str | None = None
    """The model's own answer, if its adapter generates one."""
    right: str | None = None
    """The right answer, if the adapter's task or data know it."""
    separators: frozenset[str] = frozenset()
    """Separator tokens of the tokenizer."""


class Answers(NamedTuple):
    """The answers to one example: by one teacher-forced pass, and by the model's own decoding."""

    question: str
    right: str
    labels: tuple[str, ...]
    """The right tokens, with which the tokens of one forward pass are compared."""
    one_pass: tuple[str, ...]
    generated: str


ShowAnswers = Callable[[Rows, Rows, Tensor], Sequence[Answers]]
"""Takes the examples of a batch, the places of some of them in the batch, and the logits of the batch; returns the
answers to the examples at these places."""


@dataclass(frozen=True)
class Metric:
    """The name and unit of a score, and whether it is an accuracy."""

    name: str
    is_accuracy: bool
    """Whether each example is right or wrong; otherwise the score is any number, and larger is better."""
    unit: str
    """Unit of a drop: `points` (percentage points) or `nats` (of a loss); empty for a user's own function."""

    @property
    def in_points(self) -> bool:
        """Whether drops are measured in percentage points."""
        return self.unit == "points"

    @property
    def is_loss(self) -> bool:
        """Whether the score is minus a cross-entropy, in nats."""
        return self.unit == "nats"


FREE = Metric("free-running", True, "points")
FORCED = Metric("teacher-forced", True, "points")
ACCURACY = Metric("accuracy", True, "points")
LOSS = Metric("loss", False, "nats")


def find_metric(metric: str | ScoreFunction | None, known: Sequence[Metric]) -> Metric:
    """Return the metric of that name, the default for None, or a new metric for a user's own function."""
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
    """A batch of examples: input tensors for the model, and functions that score the model's output."""

    rows: Rows
    """Indices of the examples of the batch."""
    inputs: tuple[Tensor, ...]
    """Input tensors whose first axis counts rows; an example may have several consecutive rows."""
    scores: Mapping[str, Score]
    """Maps the name of each metric to the function that scores the model's output."""
    loss: Score | None
    """Takes the model's output and returns the loss of each example, for gradients; None if there is no loss."""
    token_mask: Mapping[str, Tensor] = field(default_factory=dict)
    """[input row, position] by stack: which positions hold tokens and not padding; a missing stack has no padding."""
    order: Rows | None = None
    """Places of the examples in a running text, where neighbours are similar; None if the examples are independent."""

    @classmethod
    def scored(
        cls, rows: Rows, inputs: Iterable[Tensor], scores: dict[str, Score], masks: Mapping[str, Tensor] | None = None
    ) -> EvalBatch:
        """Make a batch whose loss, for gradients, is minus the score LOSS; `masks` becomes `token_mask`."""
        return cls(rows, tuple(inputs), scores, negative(scores[LOSS.name]), masks or {})

    @property
    def n_inputs(self) -> int:
        """The number of rows of the input tensors; an example may have several rows."""
        return len(self.inputs[0])


def mean_score(scores: NDArray[np.float64], rows: Rows) -> NDArray[np.float64]:
    """Return the mean score over all examples, which is the aggregate of most metrics."""
    return scores.mean(axis=-1)


@dataclass(frozen=True)
class EvalDataset:
    """Examples, how they become batches, and how the model's outputs are scored."""

    data: str
    """Description of the examples, for results."""
    metrics: tuple[Metric, ...]
    """Metrics by which the examples can be scored; the first is the default."""
    lengths: Rows
    """Length of every example in tokens; examples of similar length share a batch."""
    encode: Callable[[Rows], EvalBatch]
    """The function that encodes the examples with these indices as a batch."""
    width: int = 0
    """Number of values in the model's output at each position, which limits the size of batches; 0 for no limit."""
    aggregators: Mapping[str, Aggregator] = field(default_factory=dict)
    """Maps names of metrics that are not a mean over examples to the function that computes them from all scores."""
    majority_baseline: Callable[[Rows], float] = lambda rows: 0.0
    """The function that returns the score of the best constant answer to these rows, by the first metric."""
    n_rows: int = 1
    """Number of input rows per example, such as 2 for a pair of sentences."""
    decode: Callable[[Rows], NDArray[np.bool_]] | None = None
    """The function that decodes answers with the model's own code and returns which are right; None without one."""
    generate: Callable[[Rows], Sequence[str]] | None = None
    """The function that returns the answers decoded by the model's own code as texts; None without such code."""
    answers: ShowAnswers | None = None
    """The function that shows decoded answers beside those of one forward pass; None if nothing is decoded."""
    clusters: Rows | None = None
    """Number of the cluster that each example belongs to, such as neighbours in a running text; None if independent."""
    fresh: Callable[[int], EvalDataset] | None = None
    """The function that draws about this many new examples, as in training; mean ablation averages over them."""
    split: Callable[[EvalDataset, Rows, int], Iterator[Rows]] | None = None
    """The function that splits rows into batches, as places in `rows`; None for batches of similar length."""
    task: Task | None = None
    examples: Examples | None = None
    """The examples as the task represents them, so that the task can describe the answers that an ablation breaks."""
    is_all: bool = False
    """Whether the dataset has all examples that exist, so that figures have no sampling error."""
    largest_loss: float | None = None
    """The loss that one broken example outside the sample is assumed to have when a confidence interval is computed (or
    the largest observed loss, if that is larger). For tasks it is the loss of guessing; None assumes no such example
    exists."""

    def __post_init__(self) -> None:
        if self.largest_loss is None and any(metric.is_accuracy for metric in self.metrics):
            object.__setattr__(self, "largest_loss", 0.0)

    def __len__(self) -> int:
        return len(self.lengths)

    def aggregator(self, metric: Metric) -> Aggregator:
        """Return the function that turns the scores of all examples into the metric's one number, such as the mean."""
        return self.aggregators.get(metric.name, mean_score)

    def batches(self, rows: Rows, metric: Metric, score: ScoreFunction | None, at_once: int) -> Iterator[EvalBatch]:
        """Yield batches of these examples, whose `rows` are places in the argument; `score` replaces the scores."""
        for some in (self.split or like_lengths)(self, rows, at_once):
            for places, batch in self._encoded(rows, some):
                if score is not None:
                    batch = replace(batch, scores={metric.name: _bound(score, rows[places])})
                yield replace(batch, rows=places, order=None if self.clusters is None else rows[places])

    def _encoded(self, rows: Rows, places: Rows) -> Iterator[tuple[Rows, EvalBatch]]:
        """Encode a batch, halved if it has as many rows as positions: hooks tell the axis of rows by its size."""
        batch = self.encode(rows[places])
        sizes = {size for each in batch.inputs for size in each.shape[1:]}
        if self.split is None and batch.n_inputs in sizes and len(places) >= 4:
            for part in np.array_split(places, 2):
                yield from self._encoded(rows, part)
        else:
            yield places, batch


def like_lengths(dataset: EvalDataset, rows: Rows, at_once: int) -> Iterator[Rows]:
    """Yield shuffled batches of similar length, because resample ablation takes outputs from the same batch.

    The donors should be neither neighbours in a text nor examples of one class only.
    """
    order = stream(0, "blocks of an exam").permutation(len(rows))
    by_length = order[np.argsort(dataset.lengths[rows[order]], kind="stable")]
    yield from split_evenly(by_length, at_once)


def one_length(dataset: EvalDataset, rows: Rows, at_once: int) -> Iterator[Rows]:
    """Yield batches whose examples all have the same length, shuffled because a split may be sorted by class."""
    lengths = dataset.lengths[rows]
    for length in np.unique(lengths):
        shuffled = stream(0, "blocks", int(length)).permutation(np.flatnonzero(lengths == length))
        yield from split_evenly(shuffled, at_once)


def split_evenly(rows: Rows, at_once: int, lengths: Collection[int] = ()) -> list[Rows]:
    """Split rows into parts of nearly equal size; avoid parts whose size is one of `lengths`, if possible."""
    n_parts = max(1, min(-(-len(rows) // at_once), len(rows) // 2))  # no part of one row: resampling needs another
    for n in range(n_parts, min(n_parts + 4, len(rows) // 2 + 1)):
        parts = np.array_split(rows, n)
        if not {len(part) for part in parts} & set(lengths):
            return parts
    return np.array_split(rows, n_parts)


def tensor_dataset(inputs: Sequence[Tensor], score: ScoreFunction) -> EvalDataset:
    """Make a dataset from tensors whose first axis counts the examples, and from a function that scores outputs."""
    n = {len(each) for each in inputs}
    if len(n) != 1 or 0 in n:
        raise InputError(
            f"the inputs have different numbers of rows: {sorted(n)}",
            "give tensors whose first axis counts the same examples",
        )
    metric, sizes = find_metric(score, ()), {size for each in inputs for size in each.shape[1:]}

    def encode(rows: Rows) -> EvalBatch:
        is_run, own = len(rows) == rows[-1] + 1 - rows[0], _bound(score, rows)
        part = slice(rows[0], rows[-1] + 1) if is_run else torch.from_numpy(rows)  # a slice makes no copy
        return EvalBatch(rows, tuple(each[part] for each in inputs), {metric.name: own}, negative(own))

    def in_order(dataset: EvalDataset, rows: Rows, at_once: int) -> Iterator[Rows]:
        yield from split_evenly(np.arange(len(rows)), at_once, sizes)

    return EvalDataset("given examples", (metric,), np.zeros(n.pop(), dtype=np.int64), encode, split=in_order)


def split_in_half(dataset: EvalDataset, n: int | None = None) -> tuple[Rows, Rows]:
    """Return the rows to select heads on and the rows to measure the selected heads on, `n` rows in all.

    Rows are drawn at random. Of a running text, the first half is for selection and the second for measurement, because
    neighbouring windows are so similar that a random split would not give independent halves.
    """
    order = stream(0, "halves of an exam").permutation(len(dataset))
    order = order if n is None else order[: max(0, n)]
    if len(order) < 4:
        raise InputError(f"{len(order)} examples are too few to choose on some and measure on others", "at least 4")
    if dataset.clusters is not None:
        order = np.sort(order)
    middle = len(order) // 2
    if dataset.clusters is not None:  # no cluster is in both halves, unless it is larger than a half
        middle = int(np.searchsorted(dataset.clusters[order], dataset.clusters[order[middle]])) or middle
    return np.sort(order[:middle]), np.sort(order[middle:])


def subsample(dataset: EvalDataset, n: int | None) -> Rows:
    """Return `n` rows, drawn at random and sorted, or all rows if there are no more than `n`."""
    if n is None or n >= len(dataset):
        return np.arange(len(dataset))
    return np.sort(stream(0, "some of an exam").permutation(len(dataset))[: max(0, n)])


def token_scores(labels: Tensor) -> dict[str, Score]:
    """Return two scores for sequences: whether all labelled tokens of a row are right, and minus their mean loss."""

    def all_right(logits: Tensor) -> Tensor:
        _require_logits(logits, labels)
        return ((logits.argmax(dim=-1) == labels) | (labels == IGNORE)).all(dim=1)

    def loss(logits: Tensor) -> Tensor:
        _require_logits(logits, labels)
        each = F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORE, reduction="none")
        return -each.sum(dim=1) / (labels != IGNORE).sum(dim=1).clamp(min=1)

    return {FORCED.name: all_right, LOSS.name: loss}


def class_scores(
    labels: Tensor, n_classes: int | None = None, advice: str = "forward(): [row, class]"
) -> dict[str, Score]:
    """Return two scores for classifiers: whether the predicted class of a row is right, and minus its loss.

    If the model does not output logits for `n_classes` classes, scoring raises an error with this advice.
    """

    def checked(logits: Tensor) -> Tensor:
        if logits.dim() != 2 or n_classes not in (None, logits.shape[1]):
            raise InputError(
                f"the model outputs a tensor of shape {tuple(logits.shape)}, not one row of logits for each example",
                advice,
            )
        return logits

    def is_right(logits: Tensor) -> Tensor:
        return checked(logits).argmax(dim=-1) == labels

    def loss(logits: Tensor) -> Tensor:
        return -F.cross_entropy(checked(logits), labels, reduction="none")

    return {ACCURACY.name: is_right, LOSS.name: loss}


def negative(score: Score) -> Score:
    """Return a loss function that computes minus this score in double precision."""
    return lambda output: -score(output).cpu().double()


def _require_logits(logits: Tensor, labels: Tensor) -> None:
    """Raise an error unless the model outputs a row of logits for each token."""
    if logits.dim() != 3 or logits.shape[:2] != labels.shape:
        raise InputError(
            f"the model outputs a tensor of shape {tuple(logits.shape)}, not one row of logits for each of "
            f"{tuple(labels.shape)} tokens",
            "load it with its language-modelling head (AutoModelForMaskedLM, AutoModelForCausalLM, ...)",
        )


def _bound(score: ScoreFunction, rows: Rows) -> Score:
    return lambda output: score(output, rows)
