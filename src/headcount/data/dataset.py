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
"""Row numbers of examples."""
Score = Callable[[Tensor], Float[Tensor, " row"]]
"""From a model's output to one number per example; larger is better."""
ScoreFunction = Callable[[Tensor, Rows], Tensor]
"""A metric that the user gives: from the output and the row numbers of the examples to one number for each."""


@dataclass(frozen=True)
class TokenizedText:
    """One text as a model takes it: a row of inputs and, for each stack, the names of its positions."""

    inputs: tuple[Tensor, ...]
    tokens: Mapping[str, Sequence[str]]
    special: Mapping[str, Sequence[bool]] = field(default_factory=dict)
    note: str = ""
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
    """The right tokens, which one pass is compared with."""
    one_pass: tuple[str, ...]
    generated: str


ShowAnswers = Callable[[Rows, Rows, Tensor], Sequence[Answers]]
"""From the rows of a batch, places of some rows, and the logits of all, to the answers to these rows."""


@dataclass(frozen=True)
class Metric:
    """What a score measures."""

    name: str
    is_accuracy: bool
    """Whether each example is right or wrong; otherwise the score is any number, and larger is better."""
    unit: str
    """Unit of a drop; points are hundredths."""

    @property
    def in_points(self) -> bool:
        """Whether a drop is in percentage points, for which bands are known."""
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
    """Return the metric of that name, or the first; a function becomes a metric."""
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
    """Some examples as inputs of the model, with functions that score its output."""

    rows: Rows
    """The examples of the batch."""
    inputs: tuple[Tensor, ...]
    """Tensors, rows first; an example may have several rows, one after another."""
    scores: Mapping[str, Score]
    """Scores by the name of the metric."""
    loss: Score | None
    """The loss of each row, for gradients."""
    token_mask: Mapping[str, Tensor] = field(default_factory=dict)
    """[input row, position] by stack: which positions hold tokens and no padding; all, if a stack is missing."""
    order: Rows | None = None
    """Places of the examples in a running text, where neighbours are similar; None if they are independent."""

    @classmethod
    def scored(
        cls, rows: Rows, inputs: Iterable[Tensor], scores: dict[str, Score], masks: Mapping[str, Tensor] | None = None
    ) -> EvalBatch:
        """Make a batch whose gradients are those of the loss; `masks` as in `token_mask`."""
        return cls(rows, tuple(inputs), scores, negative(scores[LOSS.name]), masks or {})

    @property
    def n_inputs(self) -> int:
        """Rows of the inputs, of which an example may have several."""
        return len(self.inputs[0])


def mean_score(scores: NDArray[np.float64], rows: Rows) -> NDArray[np.float64]:
    """Aggregate scores by their mean, as most metrics do."""
    return scores.mean(axis=-1)


@dataclass(frozen=True)
class EvalDataset:
    """Examples, and how outputs for them are scored."""

    data: str
    """What the examples are, in words."""
    metrics: tuple[Metric, ...]
    """Metrics by which the examples can be scored; the first is the default."""
    lengths: Rows
    """Length of every example in tokens; examples of similar length share a batch."""
    encode: Callable[[Rows], EvalBatch]
    """The function that makes a batch of these examples."""
    width: int = 0
    """Numbers in the output at each position, which limit batches by memory; 0 for no limit."""
    aggregators: Mapping[str, Aggregator] = field(default_factory=dict)
    """Aggregators of metrics that are not a mean over examples."""
    majority_baseline: Callable[[Rows], float] = lambda rows: 0.0
    """The function that scores the best constant answer by the first metric."""
    n_rows: int = 1
    """Rows of each example."""
    decode: Callable[[Rows], NDArray[np.bool_]] | None = None
    """The function that decodes answers by the model's own code and returns which are right."""
    generate: Callable[[Rows], Sequence[str]] | None = None
    """The function that returns these answers as texts."""
    answers: ShowAnswers | None = None
    """The function that shows these answers beside those of one pass."""
    clusters: Rows | None = None
    """Clusters of neighbours in a running text; None if the examples are independent."""
    fresh: Callable[[int], EvalDataset] | None = None
    """The function that draws about so many new examples as in training, to take means over."""
    split: Callable[[EvalDataset, Rows, int], Iterator[Rows]] | None = None
    """The function that splits rows into batches, as places; None for batches of similar length."""
    task: Task | None = None
    examples: Examples | None = None
    """The examples of the task, which can describe what broke."""
    is_all: bool = False
    """Whether there are no other examples, so that figures have no sampling error."""
    largest_loss: float | None = None
    """Loss that an example which breaks may have at least, for examples that are right or wrong: even odds."""

    def __post_init__(self) -> None:
        if self.largest_loss is None and any(metric.is_accuracy for metric in self.metrics):
            object.__setattr__(self, "largest_loss", 0.0)

    def __len__(self) -> int:
        return len(self.lengths)

    def aggregator(self, metric: Metric) -> Aggregator:
        """Return the function that turns the scores of all examples into the metric's one number, such as the mean."""
        return self.aggregators.get(metric.name, mean_score)

    def batches(self, rows: Rows, metric: Metric, score: ScoreFunction | None, at_once: int) -> Iterator[EvalBatch]:
        """Yield batches of these examples, whose rows are places among them; `score` replaces the dataset's scores."""
        for some in (self.split or like_lengths)(self, rows, at_once):
            for places, batch in self._encoded(rows, some):
                if score is not None:
                    batch = replace(batch, scores={metric.name: _bound(score, rows[places])})
                yield replace(batch, rows=places, order=None if self.clusters is None else rows[places])

    def _encoded(self, rows: Rows, places: Rows) -> Iterator[tuple[Rows, EvalBatch]]:
        """Yield batches with another number of rows than positions, if possible: hooks tell rows by their number."""
        batch = self.encode(rows[places])
        sizes = {size for each in batch.inputs for size in each.shape[1:]}
        if self.split is None and batch.n_inputs in sizes and len(places) >= 4:
            for part in np.array_split(places, 2):
                yield from self._encoded(rows, part)
        else:
            yield places, batch


def like_lengths(dataset: EvalDataset, rows: Rows, at_once: int) -> Iterator[Rows]:
    """Yield shuffled examples of similar length: a donor should be no neighbour in a text, nor of the same class."""
    order = stream(0, "blocks of an exam").permutation(len(rows))
    by_length = order[np.argsort(dataset.lengths[rows[order]], kind="stable")]
    yield from split_evenly(by_length, at_once)


def one_length(dataset: EvalDataset, rows: Rows, at_once: int) -> Iterator[Rows]:
    """Yield shuffled examples of one length: a split may be in the order of its classes."""
    lengths = dataset.lengths[rows]
    for length in np.unique(lengths):
        shuffled = stream(0, "blocks", int(length)).permutation(np.flatnonzero(lengths == length))
        yield from split_evenly(shuffled, at_once)


def split_evenly(rows: Rows, at_once: int, lengths: Collection[int] = ()) -> list[Rows]:
    """Split rows into parts of nearly equal size, none of them as large as one of `lengths` if possible."""
    n_parts = max(1, min(-(-len(rows) // at_once), len(rows) // 2))  # nobody alone: resampling needs another
    for n in range(n_parts, min(n_parts + 4, len(rows) // 2 + 1)):
        parts = np.array_split(rows, n)
        if not {len(part) for part in parts} & set(lengths):
            return parts
    return np.array_split(rows, n_parts)


def tensor_dataset(inputs: Sequence[Tensor], score: ScoreFunction) -> EvalDataset:
    """Make a dataset of tensors whose first axis counts the examples, and a function that scores outputs."""
    n = {len(each) for each in inputs}
    if len(n) != 1 or 0 in n:
        raise InputError(f"inputs of {sorted(n)} rows", "give tensors whose first axis counts the same examples")
    metric, sizes = find_metric(score, ()), {size for each in inputs for size in each.shape[1:]}

    def encode(rows: Rows) -> EvalBatch:
        is_run, own = len(rows) == rows[-1] + 1 - rows[0], _bound(score, rows)
        part = slice(rows[0], rows[-1] + 1) if is_run else torch.from_numpy(rows)  # a slice is no copy
        return EvalBatch(rows, tuple(each[part] for each in inputs), {metric.name: own}, negative(own))

    def in_order(dataset: EvalDataset, rows: Rows, at_once: int) -> Iterator[Rows]:
        yield from split_evenly(np.arange(len(rows)), at_once, sizes)

    return EvalDataset("given examples", (metric,), np.zeros(n.pop(), dtype=np.int64), encode, split=in_order)


def split_in_half(dataset: EvalDataset, n: int | None = None) -> tuple[Rows, Rows]:
    """Return rows to select heads on, and others to measure on; `n` in all.

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
    """Draw `n` rows at random, or return all."""
    if n is None or n >= len(dataset):
        return np.arange(len(dataset))
    return np.sort(stream(0, "some of an exam").permutation(len(dataset))[: max(0, n)])


def token_scores(labels: Tensor) -> dict[str, Score]:
    """Return scores of sequences: whether all labelled tokens of a row are right, and minus their mean loss."""

    def all_right(logits: Tensor) -> Tensor:
        _require_logits(logits, labels)
        return ((logits.argmax(dim=-1) == labels) | (labels == IGNORE)).all(dim=1)

    def loss(logits: Tensor) -> Tensor:
        _require_logits(logits, labels)
        each = F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORE, reduction="none")
        return -each.sum(dim=1) / (labels != IGNORE).sum(dim=1).clamp(min=1)

    return {FORCED.name: all_right, LOSS.name: loss}


def class_scores(labels: Tensor) -> dict[str, Score]:
    """Return scores of classes: whether the class of a row is right, and minus its loss."""

    def loss(logits: Tensor) -> Tensor:
        if logits.dim() != 2:
            raise InputError(f"logits of shape {tuple(logits.shape)} for one class per row", "forward(): [row, class]")
        return -F.cross_entropy(logits, labels, reduction="none")

    return {ACCURACY.name: lambda logits: torch.eq(logits.argmax(dim=-1), labels), LOSS.name: loss}


def negative(score: Score) -> Score:
    """Turn a score into a loss."""
    return lambda output: -score(output).cpu().double()


def _require_logits(logits: Tensor, labels: Tensor) -> None:
    """Raise an error unless there is a row of logits for each token."""
    if logits.dim() != 3 or logits.shape[:2] != labels.shape:
        raise InputError(
            f"the model outputs a tensor of shape {tuple(logits.shape)}, not one row of logits for each of "
            f"{tuple(labels.shape)} tokens",
            "load it with its language-modelling head (AutoModelForMaskedLM, AutoModelForCausalLM, ...)",
        )


def _bound(score: ScoreFunction, rows: Rows) -> Score:
    return lambda output: score(output, rows)
