"""Score a model on each example with some heads ablated, for many interventions (ablations) at once.

First, the hooks are proven to act on the model. Then one forward pass over each batch is cached, and every intervention
is computed from this pass, starting at the first attention block that it changes (hooks/replay.py).

The values that replace outputs are random (donors_and_means.py). The `draw` of an intervention selects another donor,
or another part of the inputs for the mean, so that this noise can be measured.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headcount.data.dataset import EvalBatch
from headcount.errors import InputError, InstrumentError, ReplayError
from headcount.experiments.donors_and_means import Means, means_of, with_values
from headcount.experiments.experiment import Experiment, Scores
from headcount.heads import HeadId
from headcount.hooks import REPLACEMENTS
from headcount.hooks.gates import eval_mode
from headcount.hooks.intervention_proof import difference, first_tensor, prove, tolerance
from headcount.hooks.replay import CachedPass, Intervention, plain_pass, sweep
from headcount.hooks.sites import Sites
from headcount.limits import BATCH, require_room
from headcount.models.finite import require_numbers
from headcount.training.device import Copies, n_processes, n_threads

SAME_ROWS = 16
"""Number of rows that are passed through the model again at the end, to check that its output has not changed."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class BatchOutcome:
    """The scores of one batch under every intervention (ablation), as callbacks receive them."""

    batch: EvalBatch
    cached: CachedPass
    interventions: Sequence[Intervention]
    """The interventions, with the values that replace head outputs in this batch."""
    clean: Scores
    """The scores with all heads, one per example of the batch."""
    scores: Scores
    """The scores under each intervention, [intervention, example of the batch]."""


@dataclass(frozen=True)
class Outcome:
    """The scores of all examples, with all heads and under each intervention (ablation)."""

    clean: Scores
    """The scores with all heads, one per example."""
    scores: Scores
    """The scores under each intervention, [intervention, example]."""
    majority_baseline: float
    """The score of the best constant answer; for a loss, the score of a uniform prediction over tokens or classes."""
    is_plain: bool = False
    """Whether each intervention took a full forward pass, without a cache, because the model's modules keep state."""


def run_interventions(
    experiment: Experiment,
    interventions: Sequence[Intervention],
    *,
    batch_size: int = BATCH,
    proven: bool = False,
    means: Means | None = None,
    only: Sequence[int] | None = None,
    progress: Progress | None = None,
    on_batch: Callable[[BatchOutcome], None] | None = None,
) -> Outcome:
    """Return the scores of every example with all heads and under each intervention (ablation).

    The hooks are first proven to act on the model, unless `proven` says that this was done. Mean head outputs are
    computed if they are needed and not given as `means`. At the end, the model runs on rows of the first batch again,
    and must give the same output as at the beginning. If the model's modules keep state, every intervention takes a
    full pass instead of a cached one. `on_batch` is called with the scores of each batch. `only` has the indices of the
    batches to measure (default: all); the scores of the other examples stay undefined.
    """
    if not all(each.heads for each in interventions):
        raise InputError("an intervention names no heads", "name at least one head to ablate")
    replacements = [REPLACEMENTS.get(name) for name in dict.fromkeys(each.replacement for each in interventions)]
    what = f"scores of {experiment.n:,} examples, {len(interventions):,} times"
    require_room(8 * len(interventions) * experiment.n, what, "lower --n")
    clean, scores = np.empty(experiment.n), np.empty((len(interventions), experiment.n))
    batch_size = min(batch_size, experiment.most_rows or batch_size)
    if interventions and not proven:
        prove(experiment.model, experiment.sites, experiment.batches[0].inputs)
    with eval_mode(experiment.model), torch.no_grad():
        first: Tensor | None = None
        numbers = range(len(experiment.batches)) if only is None else only
        is_plain = False
        if means is None:
            means = means_of(experiment) if any(part.needs_mean for part in replacements) else ()
        for n_done, i in enumerate(numbers, start=1):
            batch = experiment.batches[i]
            cached = CachedPass(experiment.model, experiment.sites, batch.inputs)
            if first is None:
                first = first_tensor(cached.output).clone()
            in_batch = with_values(cached, interventions, means, i, batch)
            clean[batch.rows] = scores_of(experiment, batch, cached.output)
            if not is_plain:
                try:
                    for j, output in sweep(cached, in_batch, batch_size=batch_size, checked=n_done == 1):
                        scores[j, batch.rows] = scores_of(experiment, batch, output)
                except ReplayError:
                    is_plain = True
            if is_plain:
                scores[:, batch.rows] = plain_scores(experiment, batch, in_batch)
            if on_batch:
                on_batch(BatchOutcome(batch, cached, in_batch, clean[batch.rows], scores[:, batch.rows]))
            if progress:
                progress(n_done, len(numbers))
        assert first is not None, "every experiment has a batch"
        _require_same(experiment.model, experiment.sites, experiment.batches[numbers[0]], first)
    baseline = -math.log(first.shape[-1]) if experiment.metric.is_loss else experiment.majority_baseline
    return Outcome(clean, scores, baseline, is_plain)


def run_on_cores(
    experiment: Experiment,
    interventions: Sequence[Intervention],
    *,
    batch_size: int = BATCH,
    means: Means = (),
    progress: Progress | None = None,
    on_batch: Callable[[BatchOutcome], None] | None = None,
    sees_all: bool = True,
    copies: tuple[Copies, Sequence[int]] | None = None,
) -> Outcome:
    """Run interventions as `run_interventions` does, but divide the batches among one process per core.

    The hooks must have been proven to act on the model. The processes share the model's weights, and results do not
    depend on their number. `on_batch` is called in this process only: if it must get every batch (`sees_all`), this
    process measures all batches; otherwise it gets the first batch and some others. `copies` are processes that are
    already running, with the first numbers to send to them; they compute `scores_of_part` of the same experiment.
    """
    run = partial(run_interventions, experiment, interventions, batch_size=batch_size, proven=True, means=means)
    n_batches = len(experiment.batches)
    n = min(len(copies[0]) + 1, n_batches) if copies else n_processes(experiment.model, n_batches)
    if n == 1 or (on_batch is not None and sees_all):
        return run(progress=progress, on_batch=on_batch)

    def count(done: int, total: int) -> None:
        if progress:
            progress(min(n * done, n_batches), n_batches)

    def own_copies() -> Copies:
        return Copies(lambda numbers: scores_of_part(run, experiment, *numbers), n - 1)

    with nullcontext(copies[0]) if copies else own_copies() as others, n_threads(1):
        for i in range(1, n):
            others.send(i - 1, (*(copies[1] if copies else ()), i, n))
        outcome = run(only=range(0, n_batches, n), progress=count, on_batch=on_batch)
        for i in range(1, n):
            values = others.receive(i - 1)
            if values is None or outcome.is_plain:  # the process failed: its error is raised here, if it is lasting
                values = scores_of_part(run, experiment, i, n)
            rows = _rows_of(experiment, range(i, n_batches, n))
            both = values.reshape(-1, len(rows))
            outcome.clean[rows], outcome.scores[:, rows] = both[0], both[1:]
    return outcome


def scores_of_part(run: Callable[..., Outcome], experiment: Experiment, i: int, n: int) -> Scores:
    """Return the clean and the ablated scores [1 + intervention, example] of every n-th batch, from batch `i` on.

    `run` is `run_interventions` with its experiment and its interventions.
    """
    part = range(i, len(experiment.batches), n)
    outcome, rows = run(only=part), _rows_of(experiment, part)
    return np.concatenate([outcome.clean[None, rows], outcome.scores[:, rows]])


def _rows_of(experiment: Experiment, part: Sequence[int]) -> NDArray[np.int64]:
    return np.concatenate([experiment.batches[i].rows for i in part])


def _require_same(model: nn.Module, sites: Sites, batch: EvalBatch, first: Tensor) -> None:
    """Raise an error if the model's output on a batch is no longer `first`, its output at the beginning.

    For a model that changes from call to call, every head would seem to matter.
    """
    n_rows = len(batch.inputs[0])
    inputs = [tensor[:SAME_ROWS] if len(tensor) == n_rows else tensor for tensor in batch.inputs]
    first, again = first[:SAME_ROWS], first_tensor(CachedPass(model, sites, inputs).output)
    if torch.equal(first, again):
        return
    apart = difference(first, again) if first.shape == again.shape else math.inf
    if not apart <= tolerance(first.dtype):
        raise InstrumentError(
            "the model is not deterministic, so the effect of an ablation cannot be measured: on the same inputs, "
            f"two passes without ablation differ by {apart:.1e} of the largest output",
            "make the model deterministic: does it keep state between calls, or draw random numbers?",
        )


def plain_scores(
    experiment: Experiment, batch: EvalBatch, interventions: Sequence[Intervention], base: Sequence[HeadId] = ()
) -> Scores:
    """Return the scores [intervention, example] of a batch under each intervention, by full passes without a cache.

    The heads in `base` are ablated as well.
    """
    model, sites = experiment.model, experiment.sites
    outputs = (plain_pass(model, sites, batch.inputs, each, base) for each in interventions)
    scores = [scores_of(experiment, batch, output) for output in outputs]
    return np.array(scores).reshape(len(interventions), len(batch.rows))


def scores_of(experiment: Experiment, batch: EvalBatch, outputs: Any) -> Scores:
    """Return the score of each example of a batch, given the model's outputs; raise an error if one is not finite."""
    output = first_tensor(outputs)
    require_numbers(output, f"example {int(batch.rows[0])} and those beside it")
    score = experiment.score(batch, output)
    if not isinstance(score, Tensor) or score.shape != (len(batch.rows),):
        what = f"a tensor of shape {tuple(score.shape)}" if isinstance(score, Tensor) else type(score).__name__
        raise InputError(
            f"the metric returned {what} for a batch of {len(batch.rows)} examples",
            "metric(output, rows) should return a one-dimensional tensor with one score for each example; rows "
            "holds the index of each example of the batch in the data",
        )
    scores = score.cpu().double().numpy()
    if not np.isfinite(scores).all():
        first = int(batch.rows[np.flatnonzero(~np.isfinite(scores))[0]])
        raise InputError(
            f"the metric returned {scores[~np.isfinite(scores)][0]} for example {first}",
            "it should return a finite number for every example",
        )
    return scores
