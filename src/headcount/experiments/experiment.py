"""A model on some examples of a dataset, in batches, scored by a metric: every experiment on heads starts with this."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from headcount.data.dataset import (
    EvalBatch,
    EvalDataset,
    Metric,
    Rows,
    Score,
    ScoreFunction,
    ShowAnswers,
    find_metric,
    mean_score,
)
from headcount.data.from_task import task_dataset
from headcount.errors import InputError
from headcount.hooks.replay import rows_per_pass
from headcount.hooks.sites import Sites
from headcount.runs.run import Run
from headcount.seeds import stream
from headcount.stats import Aggregator
from headcount.tasks.base import Examples, Task

AT_ONCE = 128
"""Examples of one batch: with these, the activations of a few ablations at a time fit into a processor's cache."""
ROOM = 2**25
"""Numbers in the output of one forward pass: 128 MB in single precision. Modules need a few times that meanwhile."""
N_REFERENCE = 16_384
"""Examples that means are taken over, at most."""
WORK = 2**40
"""Multiplications that a pass over the examples for means may take: about a minute of one core."""
REFERENCE_BYTES = 2**28
"""Memory that the inputs of these examples may take."""


@dataclass(frozen=True)
class Experiment:
    """A model on some examples of a dataset, scored by one metric."""

    model: nn.Module
    sites: Sites
    dataset: EvalDataset
    rows: Rows
    """Numbers of the examples in the dataset. Elsewhere, rows are places among these."""
    batches: tuple[EvalBatch, ...]
    metric: Metric
    data: str
    """What the examples are, in words."""
    majority_baseline: float = 0.0
    """Score of the best constant answer: a model that scores no more has learned nothing."""
    most_rows: int | None = None
    """Rows of one forward pass that memory has room for; None for any number."""
    reference: tuple[EvalBatch, ...] = ()
    """Inputs that means are taken over, if these are more than the examples."""
    has_own_score: bool = False
    """Whether the metric is a function that was given, and none of the dataset's."""
    is_part: bool = False
    """Whether it is a part of another experiment: its answers are not decoded."""

    @classmethod
    def of_batches(
        cls,
        model: nn.Module,
        sites: Sites,
        batches: Sequence[EvalBatch],
        metric: Metric,
        data: str,
        clusters: Rows | None = None,
    ) -> Experiment:
        """Run a model on batches that are there already and belong to no dataset."""
        rows = np.arange(sum(len(batch.rows) for batch in batches) if clusters is None else len(clusters))
        dataset = EvalDataset(data, (metric,), np.zeros_like(rows), _no_other_batches, clusters=clusters)
        return cls(model, sites, dataset, rows, tuple(batches), metric, data)

    @property
    def task(self) -> Task | None:
        """The task of the examples, if they have one."""
        return self.dataset.task

    @property
    def examples(self) -> Examples | None:
        """The examples, if they have a task."""
        return None if self.dataset.examples is None else self.dataset.examples[self.rows]

    @property
    def clusters(self) -> Rows | None:
        """Which examples belong together, such as neighbouring windows of a text: intervals resample them whole."""
        return None if self.dataset.clusters is None else self.dataset.clusters[self.rows]

    @property
    def is_all(self) -> bool:
        """Whether there are no other examples."""
        return self.dataset.is_all and not self.is_part

    @property
    def largest_loss(self) -> float | None:
        """The most that a broken example may lose, as in the dataset."""
        return self.dataset.largest_loss

    @property
    def aggregator(self) -> Aggregator:
        """The function from scores and rows to one figure."""
        aggregator = mean_score if self.has_own_score else self.dataset.aggregator(self.metric)
        return aggregator if aggregator is mean_score else (lambda scores, some: aggregator(scores, self.rows[some]))

    @property
    def decode(self) -> Callable[[Rows], NDArray[np.bool_]] | None:
        """The function that decodes examples by the model's own code and returns which are right."""
        decode = self.dataset.decode
        return None if decode is None or self.is_part else (lambda some: decode(self.rows[some]))

    @property
    def generate(self) -> Callable[[Rows], Sequence[str]] | None:
        """The function that returns these decoded answers as texts."""
        generate = self.dataset.generate
        return None if generate is None or self.is_part else (lambda some: generate(self.rows[some]))

    @property
    def answers(self) -> ShowAnswers | None:
        """The function that shows decoded answers beside those of one pass."""
        answers = self.dataset.answers
        return None if answers is None else (lambda some, *given: answers(self.rows[some], *given))

    def score(self, batch: EvalBatch, output: Tensor) -> Tensor:
        """Score each example of a batch by the metric."""
        return batch.scores[self.metric.name](output)

    def aggregate(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Aggregate scores of all examples, [..., example]."""
        return self.aggregator(scores, np.broadcast_to(np.arange(self.n), scores.shape))

    @property
    def n(self) -> int:
        """The number of examples."""
        return sum(len(batch.rows) for batch in self.batches)

    @property
    def n_reference(self) -> int:
        """The number of examples that means are taken over."""
        return sum(len(batch.rows) for batch in self.reference or self.batches)

    def some(self, n: int) -> Experiment:
        """Return about `n` of the examples, in batches spread evenly, because batches are in the order of length."""
        n_batches = max(1, min(len(self.batches), round(len(self.batches) * n / max(self.n, 1))))
        return self.part(np.linspace(0, len(self.batches) - 1, n_batches).round().astype(int).tolist())

    def part(self, numbers: Sequence[int]) -> Experiment:
        """Return the examples of these batches."""
        batches = [self.batches[i] for i in numbers]
        kept = np.sort(np.concatenate([batch.rows for batch in batches]))
        renumbered = tuple(replace(batch, rows=np.searchsorted(kept, batch.rows)) for batch in batches)
        return replace(self, rows=self.rows[kept], batches=renumbered, is_part=True)

    def scored_by(self, change: Callable[[EvalBatch, Score], Score]) -> Experiment:
        """Replace the score of each batch by a function of the batch and its score."""
        name = self.metric.name
        batches = (replace(batch, scores={name: change(batch, batch.scores[name])}) for batch in self.batches)
        return replace(self, batches=tuple(batches))


def _no_other_batches(rows: Rows) -> EvalBatch:
    raise AssertionError("these examples are in batches already")


def experiment_on(
    model: nn.Module,
    sites: Sites,
    dataset: EvalDataset,
    rows: Rows | None = None,
    metric: str | ScoreFunction | None = None,
    *,
    data: str | None = None,
    at_once: int | None = None,
) -> Experiment:
    """Run a model on some examples of a dataset, or all; a metric is a name, or a function of output and rows."""
    rows = np.arange(len(dataset)) if rows is None else rows
    if len(rows) < 2 and dataset.width:
        raise InputError(f"{len(rows)} examples are too few", "at least 2")
    chosen, function = find_metric(metric, dataset.metrics), metric if callable(metric) else None

    def batches_of(source: EvalDataset, numbers: Rows) -> tuple[EvalBatch, ...]:
        most = _most_rows(sites, source, numbers)
        size = at_once or most or AT_ONCE
        limit = size if most is None else max(1, min(size, most // source.n_rows))
        return tuple(source.batches(numbers, chosen, function, limit))

    batches = batches_of(dataset, rows)
    return Experiment(
        model,
        sites,
        dataset,
        rows,
        batches,
        chosen,
        data or dataset.data,
        majority_baseline=dataset.majority_baseline(rows) if chosen is dataset.metrics[0] else 0.0,
        most_rows=_most_rows(sites, dataset, rows),
        reference=_reference(model, sites, dataset, rows, batches, batches_of),
        has_own_score=function is not None,
    )


def task_experiment(
    run: Run,
    examples: Examples,
    data: str,
    metric: str | ScoreFunction | None = None,
    *,
    at_once: int = AT_ONCE,
    reference: Examples | None = None,
    is_all: bool = False,
) -> Experiment:
    """Run a trained run's model on examples of its task."""
    device = next(run.model.parameters()).device
    more = None if reference is None else lambda: reference
    dataset = task_dataset(run.task, examples, data, device, reference=more, is_all=is_all)
    return experiment_on(run.model, Sites.of(run.model), dataset, metric=metric, at_once=at_once)


def _most_rows(sites: Sites, dataset: EvalDataset, rows: Rows) -> int | None:
    """Return the number of rows of one forward pass that memory has room for; None for any number."""
    if not dataset.width:
        return None
    longest = int(dataset.lengths[rows].max())
    return max(2, min(ROOM // (longest * dataset.width), rows_per_pass(sites, longest)))


def _reference(
    model: nn.Module,
    sites: Sites,
    dataset: EvalDataset,
    rows: Rows,
    measured: tuple[EvalBatch, ...],
    batches_of: Callable[[EvalDataset, Rows], tuple[EvalBatch, ...]],
) -> tuple[EvalBatch, ...]:
    """Return more inputs to take means over: fresh ones, or the whole dataset.

    The tuple is empty if there are no others, or if a pass over them takes more than about a minute and more than
    ablating every head.
    """
    most = N_REFERENCE
    if dataset.width:
        longest = int(dataset.lengths.argmax())
        work = sum(each.numel() for each in model.parameters()) * dataset.n_rows * max(1, int(dataset.lengths[longest]))
        size = sum(each.numel() * each.element_size() for each in dataset.encode(np.array([longest])).inputs)
        most = min(most, max(WORK // work, len(rows) * len(sites.heads)), REFERENCE_BYTES // size)
        if most <= len(rows):
            return ()
    if dataset.fresh is not None:
        fresh = dataset.fresh(most)
        return batches_of(fresh, np.arange(len(fresh)))
    if not dataset.width or len(rows) == len(dataset):
        return ()
    spare = np.setdiff1d(np.arange(len(dataset)), rows)
    spare = np.sort(stream(0, "reference").permutation(spare)[: most - len(rows)])
    return (*batches_of(dataset, spare), *measured)
