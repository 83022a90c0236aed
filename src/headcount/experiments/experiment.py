"""A model, batches of examples to try it on, and a metric: what every experiment on heads begins with."""

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
"""Examples of one batch: their activations, and those of a few ablations beside them, stay in a processor's cache."""
ROOM = 2**25
"""Numbers of one forward pass' outputs: 128 MB in single precision; what modules keep meanwhile is some times that."""
N_REFERENCE = 16_384
"""Most examples that means are taken over."""
WORK = 2**40
"""Multiplications that they may cost, or as much as ablating every head costs: about a minute of one core."""
REFERENCE_BYTES = 2**28
"""And what their inputs may take of memory."""


@dataclass(frozen=True)
class Experiment:
    """A model on some examples."""

    model: nn.Module
    sites: Sites
    batches: tuple[EvalBatch, ...]
    metric: Metric
    data: str  # from here on, as `EvalDataset` has it, of these examples
    task: Task | None = None
    examples: Examples | None = None
    majority_baseline: float = 0.0
    """What the best constant answer scores: hits up to here prove nothing."""
    aggregator: Aggregator = mean_score
    """What the scores of all examples come to."""
    most_rows: int | None = None
    """Rows of one forward pass that memory has room for."""
    decode: Callable[[Rows], NDArray[np.bool_]] | None = None
    generate: Callable[[Rows], Sequence[str]] | None = None
    answers: ShowAnswers | None = None
    reference: tuple[EvalBatch, ...] = ()
    """Inputs that means are taken over, more than are measured; empty for those that are measured."""
    clusters: Rows | None = None
    """Which of these belong together, such as neighbouring windows of one text; intervals resample them whole."""
    is_all: bool = False
    largest_loss: float | None = None

    def score(self, batch: EvalBatch, output: Tensor) -> Tensor:
        """One number for each example of a batch, by the metric."""
        return batch.scores[self.metric.name](output)

    def aggregate(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """What scores of all examples, [..., example], come to."""
        return self.aggregator(scores, np.broadcast_to(np.arange(self.n), scores.shape))

    @property
    def n(self) -> int:
        """How many examples."""
        return sum(len(batch.rows) for batch in self.batches)

    @property
    def n_reference(self) -> int:
        """How many examples means are taken over."""
        return sum(len(batch.rows) for batch in self.reference or self.batches)

    def some(self, n: int) -> Experiment:
        """About `n` examples, in batches from everywhere, for batches stand in the order of their length."""
        n_batches = max(1, min(len(self.batches), round(len(self.batches) * n / max(self.n, 1))))
        return self.part(np.linspace(0, len(self.batches) - 1, n_batches).round().astype(int).tolist())

    def part(self, numbers: Sequence[int]) -> Experiment:
        """The examples of these batches."""
        batches = [self.batches[i] for i in numbers]
        kept, aggregator = np.sort(np.concatenate([batch.rows for batch in batches])), self.aggregator
        return replace(
            self,
            batches=tuple(replace(batch, rows=np.searchsorted(kept, batch.rows)) for batch in batches),
            examples=None if self.examples is None else self.examples[kept],
            aggregator=aggregator if aggregator is mean_score else lambda scores, rows: aggregator(scores, kept[rows]),
            clusters=None if self.clusters is None else self.clusters[kept],
            decode=None,
            generate=None,
            is_all=False,
        )

    def scored_by(self, change: Callable[[EvalBatch, Score], Score]) -> Experiment:
        """The same with another score, made of each batch and its own."""
        name = self.metric.name
        batches = (replace(each, scores={name: change(each, each.scores[name])}) for each in self.batches)
        return replace(self, batches=tuple(batches))


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
    """A model on some examples of a dataset, or all; a metric is a name, or a function of output and numbers."""
    rows = np.arange(len(dataset)) if rows is None else rows
    if len(rows) < 2 and dataset.width:
        raise InputError(f"{len(rows)} examples are too few", "at least 2")
    chosen, function = find_metric(metric, dataset.metrics), metric if callable(metric) else None

    def batches_of(source: EvalDataset, some: Rows) -> tuple[EvalBatch, ...]:
        most = _most_rows(sites, source, some)
        size = at_once or most or AT_ONCE
        limit = size if most is None else max(1, min(size, most // source.n_rows))
        return tuple(source.batches(some, chosen, function, limit))

    batches = batches_of(dataset, rows)
    aggregator, decode = mean_score if function else dataset.aggregator(chosen), dataset.decode
    generate = dataset.generate
    answers = dataset.answers
    return Experiment(
        model=model,
        sites=sites,
        batches=batches,
        metric=chosen,
        data=data or dataset.data,
        task=dataset.task,
        examples=None if dataset.examples is None else dataset.examples[rows],
        majority_baseline=dataset.majority_baseline(rows) if chosen is dataset.metrics[0] else 0.0,
        aggregator=aggregator if aggregator is mean_score else (lambda scores, some: aggregator(scores, rows[some])),
        most_rows=_most_rows(sites, dataset, rows),
        decode=None if decode is None else (lambda some: decode(rows[some])),
        generate=None if generate is None else (lambda some: generate(rows[some])),
        answers=None if answers is None else (lambda some, *given: answers(rows[some], *given)),
        reference=_reference(model, sites, dataset, rows, batches, batches_of),
        clusters=None if dataset.clusters is None else dataset.clusters[rows],
        is_all=dataset.is_all,
        largest_loss=dataset.largest_loss,
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
    """A run on examples of its task."""
    device = next(run.model.parameters()).device
    more = None if reference is None else lambda: reference
    dataset = task_dataset(run.task, examples, data, device, reference=more, is_all=is_all)
    return experiment_on(run.model, Sites.of(run.model), dataset, metric=metric, at_once=at_once)


def _most_rows(sites: Sites, dataset: EvalDataset, rows: Rows) -> int | None:
    """Of one forward pass."""
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
    """Further inputs to take means over: fresh ones, or what is left of the dataset with the measured ones.

    None if there are no more than those that are measured, or no more can be afforded: about a minute of work, or as
    much as ablating every head takes.
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
