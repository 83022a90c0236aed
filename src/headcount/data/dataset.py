"""The type of every dataset: examples, how they become batches of model inputs, and how model outputs are scored.

A dataset knows no heads and runs no experiment. It decides how its examples are batched: examples of a task come in
batches of one length, so that no row is padded and a head's mean output at a position is a mean over tokens. Texts come
in padded batches of similar length.
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
from headcount.seeds import stream
from headcount.stats import Aggregator
from headcount.suggestions import suggestion
from headcount.tasks.base import IGNORE, Examples, Task

Rows = NDArray[np.int64]
"""An array with the indices of some examples in a dataset."""
Score = Callable[[Tensor], Float[Tensor, " row"]]
"""A function that takes a model's output on a batch and returns one score per example; larger is better."""
ScoreFunction = Callable[[Tensor, Rows], Tensor]
"""A user's own metric: a function of the model's output and the indices of the examples that returns their scores."""


@dataclass(frozen=True)
class TokenizedText:
    """One text, image or question as the input tensors of a model, with a name for each position."""

    inputs: tuple[Tensor, ...]
    """The model's input tensors, each with a single row."""
    tokens: Mapping[str, Sequence[str]]
    """For each stack (`encoder` and `decoder`, or `layer` if there is only one), the name of each position."""
    special: Mapping[str, Sequence[bool]] = field(default_factory=dict)
    """For each stack, whether each position holds a special token such as [CLS]; a missing stack has none."""
    note: str = ""
    """A note for the reader of a figure, such as that the text was cut; empty without a note."""
    predicted: str | None = None
    """The model's own answer; None if its adapter generates none."""
    right: str | None = None
    """The right answer; None if it is not known from the adapter's task or data."""
    separators: frozenset[str] = frozenset()
    """The separator tokens of the tokenizer, such as [SEP]."""


class Answers(NamedTuple):
    """A model's two answers to one example: from one teacher-forced pass, and from the model's own decoding."""

    question: str
    right: str
    labels: tuple[str, ...]
    """The right answer as tokens, with which the tokens of the teacher-forced pass (`one_pass`) are compared."""
    one_pass: tuple[str, ...]
    generated: str


ShowAnswers = Callable[[Rows, Rows, Tensor], Sequence[Answers]]
"""A function that returns the two answers (`Answers`) to some examples of a batch.

It takes the indices of the examples in the batch, the places of some of these in the batch, and the batch's logits.
"""


@dataclass(frozen=True)
class Metric:
    """The name of a score, such as "accuracy", and the unit of its differences."""

    name: str
    is_accuracy: bool
    """Whether the score says only right or wrong; otherwise it is any number, and larger is better."""
    unit: str
    """The unit of a drop of the score: `points` (percentage points) or `nats` (of a loss); empty if unknown."""

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
    """Return the metric in `known` with this name (for None, the first), or a new metric for a user's own function."""
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
    """The indices of the batch's examples."""
    inputs: tuple[Tensor, ...]
    """Input tensors whose first axis counts rows; an example may have several consecutive rows."""
    scores: Mapping[str, Score]
    """Maps the name of each metric to a function that takes the model's output and returns a score per example."""
    loss: Score | None
    """A function that takes the model's output and returns the loss per example, for gradients; None without a loss."""
    token_mask: Mapping[str, Tensor] = field(default_factory=dict)
    """A mask [input row, position] for each stack, True for tokens and False for padding; a missing stack has none."""
    order: Rows | None = None
    """The position of each example in a running text, where neighbours are similar; None for independent examples."""

    @classmethod
    def scored(
        cls, rows: Rows, inputs: Iterable[Tensor], scores: dict[str, Score], masks: Mapping[str, Tensor] | None = None
    ) -> EvalBatch:
        """Return a batch with these scores; the loss for gradients is minus the score called "loss", if there is one.

        `masks` becomes `token_mask`.
        """
        return cls(rows, tuple(inputs), scores, negative(scores[LOSS.name]), masks or {})

    @property
    def n_inputs(self) -> int:
        """The number of rows of the input tensors; an example may have several rows."""
        return len(self.inputs[0])


def mean_score(scores: NDArray[np.float64], rows: Rows) -> NDArray[np.float64]:
    """Return the mean score over examples; `rows`, their indices, are not used (other metrics need them)."""
    return scores.mean(axis=-1)


@dataclass(frozen=True)
class EvalDataset:
    """Examples for evaluation, with functions that encode them as batches and score the model's outputs."""

    data: str
    """A description of the examples, which results contain, such as "the test set of addition"."""
    metrics: tuple[Metric, ...]
    """The metrics by which the examples can be scored; the first one is the default."""
    lengths: Rows
    """The length of every example in tokens; examples of similar length share a batch."""
    encode: Callable[[Rows], EvalBatch]
    """A function that takes indices of examples and returns them as one batch."""
    width: int = 0
    """The number of output values per position, such as the vocabulary size, which limits batches; 0 for no limit."""
    aggregators: Mapping[str, Aggregator] = field(default_factory=dict)
    """For metrics that are not a mean over examples: the function that computes the metric from all scores, by name."""
    majority_baseline: Callable[[Rows], float] = lambda rows: 0.0
    """A function that takes indices and returns the score of the best constant answer, by the first metric."""
    n_rows: int = 1
    """The number of input rows per example, such as 2 if an example is a pair of sentences."""
    decode: Callable[[Rows], NDArray[np.bool_]] | None = None
    """A function that takes indices, decodes answers with the model's own code and returns which are right, or None."""
    generate: Callable[[Rows], Sequence[str]] | None = None
    """A function that takes indices and returns the answers decoded by the model's own code as texts, or None."""
    answers: ShowAnswers | None = None
    """A function that returns decoded answers together with those of one forward pass; None without decoding."""
    clusters: Rows | None = None
    """For each example, the number of its cluster of dependent examples (neighbours in a text); None if independent."""
    fresh: Callable[[int], EvalDataset] | None = None
    """A function that draws about n new examples, as in training, over which mean ablation averages; or None."""
    split: Callable[[EvalDataset, Rows, int], Iterator[Rows]] | None = None
    """A function of (dataset, rows, batch size) that yields batches as indices into `rows`.

    None for batches of similar length.
    """
    task: Task | None = None
    examples: Examples | None = None
    """The examples as the task represents them, so that the task can describe wrong answers; None without a task."""
    is_all: bool = False
    """Whether the dataset has all examples that exist, so that scores have no sampling error."""
    largest_loss: float | None = None
    """A loss that confidence intervals assume for a rare bad example which the sample may have missed.

    The largest observed loss is used if it is larger. For tasks, it is the loss of guessing. None assumes that there is
    no such example.
    """

    def __post_init__(self) -> None:
        if self.largest_loss is None and any(metric.is_accuracy for metric in self.metrics):
            object.__setattr__(self, "largest_loss", 0.0)

    def __len__(self) -> int:
        return len(self.lengths)

    def aggregator(self, metric: Metric) -> Aggregator:
        """Return the function that computes a metric from the scores of all examples; for most metrics, their mean."""
        return self.aggregators.get(metric.name, mean_score)

    def batches(self, rows: Rows, metric: Metric, score: ScoreFunction | None, at_once: int) -> Iterator[EvalBatch]:
        """Yield batches of the examples `rows`, of at most `at_once` examples; a batch's own `rows` index this array.

        A user's own function `score` replaces the scores by `metric`.
        """
        for some in (self.split or like_lengths)(self, rows, at_once):
            for places, batch in self._encoded(rows, some):
                if score is not None:
                    batch = replace(batch, scores={metric.name: _bound(score, rows[places])})
                yield replace(batch, rows=places, order=None if self.clusters is None else rows[places])

    def _encoded(self, rows: Rows, places: Rows) -> Iterator[tuple[Rows, EvalBatch]]:
        """Yield a batch, split in two if it has as many rows as positions.

        Hooks recognise the axis of rows by its size, so the two sizes must differ.
        """
        batch = self.encode(rows[places])
        sizes = {size for each in batch.inputs for size in each.shape[1:]}
        if self.split is None and batch.n_inputs in sizes and len(places) >= 4:
            for part in np.array_split(places, 2):
                yield from self._encoded(rows, part)
        else:
            yield places, batch


def like_lengths(dataset: EvalDataset, rows: Rows, at_once: int) -> Iterator[Rows]:
    """Yield batches of examples of similar length, as indices into `rows`, in random order.

    Resample ablation takes a head's outputs from other examples of the same batch, the donors. These should be neither
    neighbours in a text nor examples of one class only.
    """
    order = stream(0, "blocks of an exam").permutation(len(rows))
    by_length = order[np.argsort(dataset.lengths[rows[order]], kind="stable")]
    yield from split_evenly(by_length, at_once)


def one_length(dataset: EvalDataset, rows: Rows, at_once: int) -> Iterator[Rows]:
    """Yield batches of examples of equal length, as indices into `rows`, in random order.

    Examples are shuffled because a split may be sorted by class.
    """
    lengths = dataset.lengths[rows]
    for length in np.unique(lengths):
        shuffled = stream(0, "blocks", int(length)).permutation(np.flatnonzero(lengths == length))
        yield from split_evenly(shuffled, at_once)


def split_evenly(rows: Rows, at_once: int, lengths: Collection[int] = ()) -> list[Rows]:
    """Split rows into parts of at most `at_once`, of nearly equal size; avoid sizes that are in `lengths`."""
    n_parts = max(1, min(-(-len(rows) // at_once), len(rows) // 2))  # no part of one row: resampling needs another
    for n in range(n_parts, min(n_parts + 4, len(rows) // 2 + 1)):
        parts = np.array_split(rows, n)
        if not {len(part) for part in parts} & set(lengths):
            return parts
    return np.array_split(rows, n_parts)


def tensor_dataset(inputs: Sequence[Tensor], score: ScoreFunction) -> EvalDataset:
    """Return a dataset of tensors whose first axis counts the examples, scored by a user's function."""
    n = {len(each) for each in inputs}
    if len(n) != 1 or 0 in n:
        raise InputError(
            f"the input tensors must have equally many rows and at least one, got the numbers of rows {sorted(n)}",
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
    """Return two sets of rows: one to select heads on, and one to measure the selected heads on; `n` rows in all.

    Rows are drawn at random. Of a running text, the first half is for selection and the second half for measurement,
    because neighbouring pieces are so similar that a random split would not give independent halves.
    """
    order = stream(0, "halves of an exam").permutation(len(dataset))
    order = order if n is None else order[: max(0, n)]
    if len(order) < 4:
        raise InputError(
            f"{len(order)} examples are too few to select heads on some and measure on others", "give at least 4"
        )
    if dataset.clusters is not None:
        order = np.sort(order)
    middle = len(order) // 2
    if dataset.clusters is not None:  # no cluster is in both halves, unless it is larger than a half
        middle = int(np.searchsorted(dataset.clusters[order], dataset.clusters[order[middle]])) or middle
    return np.sort(order[:middle]), np.sort(order[middle:])


def subsample(dataset: EvalDataset, n: int | None) -> Rows:
    """Return the indices of `n` random examples of a dataset, sorted; of all examples if there are no more than `n`."""
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
    labels: Tensor, n_classes: int | None = None, advice: str = "forward() must return logits [row, class]"
) -> dict[str, Score]:
    """Return two scores for classifiers by name: whether the predicted class of a row is right, and minus its loss.

    If the model does not output logits for `n_classes` classes, scoring raises an error that ends with `advice`.
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
    """Return a loss function: minus this score, in double precision."""
    return lambda output: -score(output).cpu().double()


def _require_logits(logits: Tensor, labels: Tensor) -> None:
    """Raise an error unless the model outputs one row of logits per labelled token."""
    if logits.dim() != 3 or logits.shape[:2] != labels.shape:
        raise InputError(
            f"the model outputs a tensor of shape {tuple(logits.shape)}, not logits of shape "
            f"({', '.join(map(str, labels.shape))}, size of the vocabulary)",
            "load it with its language-modelling head (AutoModelForMaskedLM, AutoModelForCausalLM, ...)",
        )


def _bound(score: ScoreFunction, rows: Rows) -> Score:
    return lambda output: score(output, rows)
