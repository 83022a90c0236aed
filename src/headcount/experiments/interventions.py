"""Score a model on each example with some heads ablated, for many interventions (ablations) at once.

First, the hooks are proven to act on the model. Then one forward pass over each batch is cached, and every intervention
is computed from this pass, starting at the first attention block that it changes (hooks/replay.py).

Resample ablation replaces a head's output by its output on another example (the donor), and mean ablation by its mean
over some inputs. Both replacements are random. The `draw` of an intervention selects another donor, or the mean over
one part of the inputs, so that this noise can be measured.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from headcount.data.dataset import EvalBatch, mean_score
from headcount.errors import InputError, InstrumentError, ReplayError
from headcount.experiments.experiment import Experiment
from headcount.heads import HeadId, HeadSite
from headcount.hooks import REPLACEMENTS
from headcount.hooks.gates import Capture, eval_mode
from headcount.hooks.proof import difference, first_tensor, prove, tolerance
from headcount.hooks.replacements import Replacement, ReplacementInputs
from headcount.hooks.replay import CachedPass, Intervention, plain_pass, sweep
from headcount.hooks.sites import Sites
from headcount.limits import BATCH, require_room
from headcount.models.finite import require_numbers
from headcount.seeds import stream
from headcount.stats import (
    LEAST_P,
    PairedDifference,
    Proportion,
    correlation_interval,
    influences,
    paired_differences,
    paired_figures,
    paired_hits,
)
from headcount.training.device import Copies, n_processes, n_threads

Means = Sequence[Mapping[HeadSite, Tensor]]
"""Mean head outputs by attention block: first over all inputs, then over each of `PARTS` parts of the inputs."""
PARTS = 8
"""Number of parts into which inputs are divided, to measure how much a mean head output varies between the parts."""
GROUPS = 8
"""Number of groups into which inputs are divided to compute means; it does not depend on the number of processes."""
Sums = dict[HeadSite, tuple[Tensor, Tensor]]
"""Sums of head outputs and numbers of rows, both by part of the inputs and by position, for each attention block."""
SAME_ROWS = 16
"""Number of rows that are passed through the model again at the end, to check that its output has not changed."""
Scores = NDArray[np.float64]
Donors = NDArray[np.int64]
"""An array [draw, example] of donors: the index of the example whose head output replaces that of each example."""
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
            in_batch = _with_values(cached, interventions, means, i, batch)
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
            "the model's output on the same inputs differs between two passes without ablation (by "
            f"{apart:.1e} of the largest value), so differences under ablation are not caused by heads alone",
            "make the model deterministic: does it keep state between calls, or draw noise?",
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
            f"the metric returned {what} for {len(batch.rows)} examples",
            "it should return a tensor with one number per example: metric(output, rows) -> [row]",
        )
    scores = score.cpu().double().numpy()
    if not np.isfinite(scores).all():
        first = int(batch.rows[np.flatnonzero(~np.isfinite(scores))[0]])
        raise InputError(
            f"the metric returned {scores[~np.isfinite(scores)][0]} for example {first}",
            "it should return a finite number for every example",
        )
    return scores


def means_of(experiment: Experiment) -> Means:
    """Return the mean output of every head at each position, over all inputs that have this position.

    The means over parts of the inputs are returned as well.
    """
    blocks = experiment.reference or experiment.batches
    widths = {tuple(tensor.shape[1:2] for tensor in batch.inputs) for batch in blocks}
    # The sums of one group of blocks have the shape of the others only if all inputs are equally long.
    n_groups = min(GROUPS, len(blocks)) if len(widths) == 1 else 1
    n = n_processes(experiment.model, n_groups)

    def flat(numbers: Sequence[int]) -> NDArray[np.float64]:
        groups = [_sums_of(experiment, blocks, group, n_groups) for group in range(numbers[0], n_groups, n)]
        return np.concatenate([_flat(sums) for sums in groups])

    with Copies(flat, n - 1) as copies, n_threads(1 if n > 1 else torch.get_num_threads()):
        for i in range(1, n):
            copies.send(i - 1, [i])
        by_group = {group: _sums_of(experiment, blocks, group, n_groups) for group in range(0, n_groups, n)}
        size = len(_flat(by_group[0]))
        for i in range(1, n):
            values = copies.receive(i - 1)
            values = flat([i]) if values is None else values
            for group, part in zip(range(i, n_groups, n), values.reshape(-1, size), strict=True):
                by_group[group] = _unflat(part, by_group[0])
    sums = by_group[0]
    for group in range(1, n_groups):  # in one order, so that the number of processes does not change the rounding
        sums = {site: _added(sums[site], by_group[group][site]) for site in sums}
    return [{site: _mean(*sums[site], part) for site in sums} for part in range(PARTS + 1)]


def _sums_of(experiment: Experiment, blocks: Sequence[EvalBatch], group: int, n_groups: int) -> Sums:
    """Return the sums of head outputs over every `n_groups`-th block, from the block `group` on."""
    sums: Sums = {}
    chosen = list(zip(blocks, parts_of(blocks), strict=True))[group::n_groups]
    with eval_mode(experiment.model), torch.no_grad():
        for batch, part in chosen:
            with Capture(experiment.sites) as capture:
                experiment.model(*batch.inputs)
            for site in experiment.sites:
                of_batch = _summed(capture.z(site), batch, site, part)
                sums[site] = _added(sums[site], of_batch) if site in sums else of_batch
    return sums


def _flat(sums: Sums) -> NDArray[np.float64]:
    return np.concatenate([tensor.numpy().ravel() for pair in sums.values() for tensor in pair])


def _unflat(values: NDArray[np.float64], like: Sums) -> Sums:
    """Turn an array of numbers that `_flat` returned back into sums of head outputs, with the shapes of `like`."""
    sums, start = dict[HeadSite, tuple[Tensor, Tensor]](), 0
    for site, pair in like.items():
        parts = []
        for tensor in pair:
            parts.append(torch.from_numpy(values[start : start + tensor.numel()].copy()).view(tensor.shape))
            start += tensor.numel()
        sums[site] = (parts[0], parts[1])
    return sums


def parts_of(blocks: Sequence[EvalBatch]) -> list[NDArray[np.int64]]:
    """Return, for each batch, the number of the part (of `PARTS`) that each example belongs to.

    A running text is divided into consecutive parts.
    """
    orders = [batch.order for batch in blocks if batch.order is not None]
    if len(orders) < len(blocks):
        return [batch.rows % PARTS for batch in blocks]
    whole = np.sort(np.concatenate(orders))
    return [np.searchsorted(whole, order) * PARTS // len(whole) for order in orders]


def _summed(z: Tensor, batch: EvalBatch, site: HeadSite, part: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Return the sums of head outputs z over the rows of each part, and the numbers of rows, at each position.

    Padding does not count. `part` is the number of the part that each row belongs to.
    """
    token_mask, counted = batch.token_mask.get(site.stack), torch.ones_like(z[..., :1, :1])
    if token_mask is not None and token_mask.shape == z.shape[:2]:
        counted = token_mask.to(z)[..., None, None]
    part = np.repeat(part, batch.n_inputs // len(batch.rows))
    is_part = torch.from_numpy(part == np.arange(PARTS)[:, None]).to(z)

    def summed(values: Tensor) -> Tensor:
        return (is_part @ values.flatten(start_dim=1)).unflatten(1, values.shape[1:]).cpu().double()

    return summed(z * counted), summed(counted)


def _added(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Add the (sums, counts) of head outputs of two batches, which may have different lengths."""
    short, long = sorted((one, other), key=lambda sums_counts: sums_counts[0].shape[1])
    gap = long[0].shape[1] - short[0].shape[1]
    sums, counts = (F.pad(few, (0, 0, 0, 0, 0, gap)) + many for few, many in zip(short, long, strict=True))
    return sums, counts


def _mean(sums: Tensor, counts: Tensor, part: int) -> Tensor:
    """Return the mean head output over all inputs (part 0) or over one part of them.

    At positions that no input of the part has, return the mean over all inputs.
    """
    whole = sums.sum(dim=0) / counts.sum(dim=0).clamp(min=1)  # the value at a position that is always padding is unused
    if not part:
        return whole
    return torch.where(counts[part - 1] > 0, sums[part - 1] / counts[part - 1].clamp(min=1), whole)


def _with_values(
    cached: CachedPass, interventions: Sequence[Intervention], means: Means, number: int, batch: EvalBatch
) -> list[Intervention]:
    """Return copies of the interventions with the values that replace head outputs in the batch of index `number`."""
    n, replacements = cached.n_rows, {each.replacement for each in interventions}
    if n < 2 and any(REPLACEMENTS.get(name).needs_donors for name in replacements):
        raise InputError(
            "resample ablation takes head outputs from another example of the same length, but no other example has "
            "the length of one example",
            "give at least two examples of each length",
        )

    @cache
    def values(name: str, site: HeadSite, draw: int) -> Tensor | None:
        z, replacement = cached.z(site), cast(Replacement, REPLACEMENTS.get(name))
        mean = means[draw][site] if replacement.needs_mean else None
        donors = torch.from_numpy(_donors(n, number, draw)).to(z.device)
        return replacement.make(ReplacementInputs(z, mean, donors, batch.token_mask.get(site.stack)))

    with_values = []
    for each in interventions:
        by_site = {site: values(each.replacement, site, each.draw) for site in cached.sites.head_slots(each.heads)}
        with_values.append(replace(each, values={site: z for site, z in by_site.items() if z is not None}))
    return with_values


def donors_of(experiment: Experiment, draws: int) -> Donors:
    """Return [draw, example]: the donor of each example, whose head outputs replace its own in resample ablation.

    If an example has several rows, the donors of its first row are returned.
    """
    donors = np.empty((draws, experiment.n), dtype=np.int64)
    for i, batch in enumerate(experiment.batches):
        times = batch.n_inputs // len(batch.rows)
        for draw in range(draws):
            donors[draw, batch.rows] = batch.rows[_donors(batch.n_inputs, i, draw)[::times] // times]
    return donors


def _donors(n: int, batch: int, draw: int) -> NDArray[np.int64]:
    """Return a donor for each of `n` rows of a batch: the next row in a random circle, so never the row itself."""
    order = stream(0, f"resample {draw}" if draw else "resample", batch).permutation(n)
    donors = np.empty_like(order)
    donors[order] = np.roll(order, 1)
    return donors


# --- drops on the same examples, with confidence intervals ------------------------------------------------------------


def compare(
    experiment: Experiment,
    clean: Scores,
    ablated: Sequence[Scores],
    name: str,
    noise: Sequence[float] = (),
    confidence: float = 0.95,
    donors: Sequence[Donors | None] = (),
    family: int = 1,
) -> list[PairedDifference]:
    """Return, for each ablation, the drop from the scores with all heads, with its confidence interval and p-value.

    * `clean` has the scores with all heads, and `ablated` the scores [example] or [donor, example] of each ablation.
    * `name` is the name of the random stream for the bootstrap.
    * `noise` is the standard error of each drop that comes from an estimated mean output; it widens the CI.
    * `confidence` is the level of the CIs. Only metrics that are means can have another level than 95 %.
    * `donors` are the donors of each resample ablation, and None for other ablations.
    * `family` is the number of tests over which p is corrected; with more tests, p is computed more finely.
    """
    rng, ablations = stream(0, f"compare {name}"), [np.atleast_2d(scores) for scores in ablated]
    pairs = list(zip(ablations, donors or [None] * len(ablations), strict=True))
    if experiment.aggregator is not mean_score:
        draws = max(999, LEAST_P * family)
        drops = [paired_figures(clean, each, experiment.aggregator, rng, draws, own) for each, own in pairs]
    elif experiment.metric.is_accuracy:
        drops = [paired_hits(clean > 0.5, each, confidence, own) for each, own in pairs]
    else:
        most = max((float((clean - each.mean(axis=0)).max()) for each in ablations), default=0.0)
        lost = np.array([(clean - each).mean() + influences(clean - each, own) for each, own in pairs])
        broken = None if experiment.largest_loss is None else max(experiment.largest_loss, most)
        values = _clustered(experiment, lost.reshape(len(ablations), len(clean)))
        drops = paired_differences(values, rng, broken, LEAST_P * family, confidence)
    if experiment.is_all:  # no sampling error, except from donors, which are drawn at random
        known = [replace(drop, low=drop.mean, high=drop.mean) for drop in drops]
        drops = [exact if own is None else drop for drop, exact, (_, own) in zip(drops, known, pairs, strict=True)]
    return widened(experiment, clean, drops, noise, confidence) if any(noise) else drops


def widened(
    experiment: Experiment,
    clean: Scores,
    drops: Sequence[PairedDifference],
    noise: Sequence[float],
    confidence: float = 0.95,
) -> list[PairedDifference]:
    """Widen the CI of each drop by the standard error that comes from an estimated mean output (0: not at all)."""
    wider = [drop.widened(se, PARTS - 1, confidence) if se else drop for drop, se in zip(drops, noise, strict=True)]
    if not experiment.metric.is_accuracy:
        return wider
    least = 0.0 if (clean > 0.5).all() else -1.0  # if every answer is right, none can improve
    return [replace(drop, low=max(drop.low, least), high=min(drop.high, 1.0)) for drop in wider]


def _clustered(experiment: Experiment, values_KN: Scores) -> Scores:
    """Return one value per cluster of dependent examples, so that each cluster counts as one example.

    The mean over all examples stays the same.
    """
    if experiment.clusters is None:
        return values_KN
    _, place = np.unique(experiment.clusters, return_inverse=True)
    n_clusters = int(place.max()) + 1
    means, sizes = values_KN.mean(axis=1, keepdims=True), np.bincount(place)
    sums = np.array([np.bincount(place, values, n_clusters) for values in values_KN - means])
    return means + sums / sizes.mean()


def interval_of(experiment: Experiment, scores: Scores, name: str) -> tuple[float, float]:
    """Return the 95 % CI of the metric over all examples, from their scores: Wilson's for accuracies, else bootstrap-t.

    `name` is the name of the random stream for the bootstrap.
    """
    if experiment.aggregator is not mean_score:
        return correlation_interval(scores, experiment.aggregator)
    if experiment.metric.is_accuracy:
        share = Proportion.count(scores > 0.5)
        return share.low, share.high
    losses = _clustered(experiment, -scores[None])
    broken = None if experiment.largest_loss is None else max(experiment.largest_loss, float(np.ptp(scores)))
    (loss,) = paired_differences(losses, stream(0, f"interval {name}"), broken)
    return -loss.high, -loss.low
