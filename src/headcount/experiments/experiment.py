"""The type `Experiment`: a model, batches of examples, and a metric that scores the model's outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

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
from headcount.limits import N_MEANS
from headcount.runs.run import Run
from headcount.seeds import stream
from headcount.stats import Aggregator
from headcount.tasks.base import Examples, Task

Scores = NDArray[np.float64]
"""One score per example."""
AT_ONCE = 128
"""Default number of examples per batch; the activations of a few ablations then fit into a processor's cache."""
ROOM = 2**25
"""Largest number of values in the output of one forward pass: 128 MB in single precision.

The pass itself needs a few times as much memory.
"""
WORK = 2**40
"""Largest number of multiplications for computing the mean outputs of heads: about a minute on one core."""
REFERENCE_BYTES = 2**28
"""Largest size in bytes of the input tensors over which mean head outputs are computed."""


@dataclass(frozen=True)
class Experiment:
    """A model, some examples of a dataset in batches, and one metric that scores the model's outputs."""

    model: nn.Module
    sites: Sites
    dataset: EvalDataset
    rows: Rows
    """The indices of the examples in the dataset; the rows of a batch are indices into this array."""
    batches: tuple[EvalBatch, ...]
    metric: Metric
    data: str
    """A description of the examples, which results contain, such as "the test set of addition"."""
    majority_baseline: float = 0.0
    """The score of the best constant answer; a model that scores no more has learned nothing."""
    most_rows: int | None = None
    """The largest number of rows (examples) per forward pass that fits into memory; None for any number."""
    reference: tuple[EvalBatch, ...] = ()
    """The batches over which mean head outputs are computed; empty to use the batches of the experiment."""
    has_own_score: bool = False
    """Whether the metric is a user's own function; otherwise it is one of the dataset's metrics."""
    is_part: bool = False
    """Whether the experiment has only some batches of another experiment; then no answers are decoded."""
    make_batches: Callable[[Rows], tuple[EvalBatch, ...]] | None = None
    """The function that puts examples of the dataset, given by their indices, into batches; None for given batches."""

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
        """Return an experiment on given batches, which belong to no dataset.

        `data` describes the examples, and `clusters` groups dependent ones.
        """
        rows = np.arange(sum(len(batch.rows) for batch in batches) if clusters is None else len(clusters))
        dataset = EvalDataset(data, (metric,), np.zeros_like(rows), _no_other_batches, clusters=clusters)
        return cls(model, sites, dataset, rows, tuple(batches), metric, data)

    @property
    def task(self) -> Task | None:
        """The task of the examples; None if they have no task."""
        return self.dataset.task

    @property
    def examples(self) -> Examples | None:
        """The examples as their task represents them; None if they have no task."""
        return None if self.dataset.examples is None else self.dataset.examples[self.rows]

    @property
    def clusters(self) -> Rows | None:
        """For each example, the number of its cluster of dependent examples, such as pieces of one text; None without.

        Confidence intervals resample whole clusters.
        """
        return None if self.dataset.clusters is None else self.dataset.clusters[self.rows]

    @property
    def is_all(self) -> bool:
        """Whether the experiment measures all examples that the task has, so that there is no sampling error."""
        return self.dataset.is_all and not self.is_part

    @property
    def largest_loss(self) -> float | None:
        """The loss of a rare bad example that the sample may have missed; confidence intervals allow for it.

        The largest observed loss is used if it is larger. None means that no such example is assumed.
        """
        return self.dataset.largest_loss

    @property
    def aggregator(self) -> Aggregator:
        """A function that computes the metric from the scores of all examples, [..., example]; mostly their mean."""
        aggregator = mean_score if self.has_own_score else self.dataset.aggregator(self.metric)
        return aggregator if aggregator is mean_score else (lambda scores, some: aggregator(scores, self.rows[some]))

    @property
    def decode(self) -> Callable[[Rows], NDArray[np.bool_]] | None:
        """A function that decodes answers to examples given by index, and returns which are right; None without one."""
        decode = self.dataset.decode
        return None if decode is None or self.is_part else (lambda some: decode(self.rows[some]))

    @property
    def generate(self) -> Callable[[Rows], Sequence[str]] | None:
        """A function that returns the texts that the model's own code decodes for examples given by index, or None."""
        generate = self.dataset.generate
        return None if generate is None or self.is_part else (lambda some: generate(self.rows[some]))

    @property
    def answers(self) -> ShowAnswers | None:
        """A function that returns decoded answers together with those of one forward pass; None without decoding."""
        answers = self.dataset.answers
        return None if answers is None else (lambda some, *given: answers(self.rows[some], *given))

    def score(self, batch: EvalBatch, output: Tensor) -> Tensor:
        """Return the score of each example of a batch by this experiment's metric, given the model's output."""
        return batch.scores[self.metric.name](output)

    def aggregate(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the metric over all examples, [...], from their scores [..., example]; for most metrics the mean."""
        return self.aggregator(scores, np.broadcast_to(np.arange(scores.shape[-1]), scores.shape))

    @property
    def n(self) -> int:
        """The number of examples in all batches."""
        return sum(len(batch.rows) for batch in self.batches)

    @property
    def n_reference(self) -> int:
        """The number of examples over which mean head outputs are computed."""
        return sum(len(batch.rows) for batch in self.reference or self.batches)

    def some(self, n: int) -> Experiment:
        """Return an experiment on about `n` of the examples: some batches, evenly spaced because they are ordered."""
        n_batches = max(1, min(len(self.batches), round(len(self.batches) * n / max(self.n, 1))))
        return self.part(np.linspace(0, len(self.batches) - 1, n_batches).round().astype(int).tolist())

    def part(self, indices: Sequence[int]) -> Experiment:
        """Return an experiment on the batches of this experiment that have the given indices."""
        batches = [self.batches[i] for i in indices]
        kept = np.sort(np.concatenate([batch.rows for batch in batches]))
        renumbered = tuple(replace(batch, rows=np.searchsorted(kept, batch.rows)) for batch in batches)
        return replace(self, rows=self.rows[kept], batches=renumbered, is_part=True)

    def block(self, places: Rows) -> Experiment:
        """Return an experiment on the examples with these indices in `rows`, in new batches."""
        assert self.make_batches is not None, "only an experiment on a dataset can be measured block by block"
        rows = self.rows[places]
        return replace(self, rows=rows, batches=self.make_batches(rows))

    def scored_by(self, change: Callable[[EvalBatch, Score], Score]) -> Experiment:
        """Return this experiment with another score: `change(batch, score)` returns a batch's new score function."""
        name = self.metric.name
        batches = (replace(batch, scores={name: change(batch, batch.scores[name])}) for batch in self.batches)
        return replace(self, batches=tuple(batches))


def _no_other_batches(rows: Rows) -> EvalBatch:
    raise AssertionError(
        "this experiment was built from ready-made batches, so it cannot build batches of other examples"
    )


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
    """Return an experiment with a model on some rows of a dataset (default: all).

    `metric` is the name of a metric, or a function of the output and the rows. `data` describes the examples in
    results, and `at_once` is the number of examples per batch.
    """
    rows = np.arange(len(dataset)) if rows is None else rows
    if len(rows) < 2 and dataset.width:
        raise InputError(f"{len(rows)} examples are too few for a confidence interval", "give at least 2")
    chosen, function = find_metric(metric, dataset.metrics), metric if callable(metric) else None

    def batches_of(source: EvalDataset, indices: Rows) -> tuple[EvalBatch, ...]:
        most = _most_rows(sites, source, indices)
        size = at_once or most or AT_ONCE
        limit = size if most is None else max(1, min(size, most // source.n_rows))
        return tuple(source.batches(indices, chosen, function, limit))

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
        make_batches=partial(batches_of, dataset),
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
    """Return an experiment with the model of a run on examples of its task; `data` describes them in results.

    `reference` are the examples over which mean ablation averages (default: new ones). `is_all` states that `examples`
    are all examples of the task.
    """
    device = next(run.model.parameters()).device
    more = None if reference is None else lambda: reference
    dataset = task_dataset(run.task, examples, data, device, reference=more, is_all=is_all)
    return experiment_on(run.model, Sites.of(run.model), dataset, metric=metric, at_once=at_once)


def _most_rows(sites: Sites, dataset: EvalDataset, rows: Rows) -> int | None:
    """Return the largest number of rows (examples) per forward pass that fits into memory; None for any number."""
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
    """Return the batches over which mean head outputs are computed: new examples, or the whole dataset.

    Return an empty tuple, which means the batches `measured`, if there are no other examples. Do so also if a forward
    pass over the others would take more than about a minute, and longer than ablating every head.
    """
    most = N_MEANS
    if dataset.width:
        longest = int(dataset.lengths.argmax())
        n_weights, length = sum(weight.numel() for weight in model.parameters()), int(dataset.lengths[longest])
        work = n_weights * dataset.n_rows * max(1, length)
        size = sum(tensor.numel() * tensor.element_size() for tensor in dataset.encode(np.array([longest])).inputs)
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
