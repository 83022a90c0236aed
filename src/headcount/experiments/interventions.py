"""Scores of a model on each example with some heads ablated, for many interventions in one job.

The hooks are proven on the model first; then each batch of examples is passed once and cached, and all interventions
are replayed from where they begin to differ (hooks/replay.py).

What replaces a head's output is itself a draw: another example that happened to be next, or a mean over some inputs. An
intervention says which `draw`, so that its noise can be measured: another donor, or the mean over one part of the
inputs.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from headcount.data.dataset import EvalBatch, mean_score
from headcount.errors import InputError, InstrumentError, ReplayError
from headcount.experiments.experiment import Experiment
from headcount.heads import HeadId, HeadSite
from headcount.hooks import REPLACEMENTS
from headcount.hooks.gates import eval_mode
from headcount.hooks.proof import difference, first_tensor, prove, tolerance
from headcount.hooks.replacements import Replacement, ReplacementInputs
from headcount.hooks.replay import CachedPass, Intervention, plain_pass, sweep
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

Means = Sequence[Mapping[HeadSite, Tensor]]
"""Mean outputs of heads: over all inputs, then over each of `PARTS` parts of them."""
PARTS = 8
Scores = NDArray[np.float64]
Donors = NDArray[np.int64]
"""[draw, example]: the row whose output replaced that of the example."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class BatchOutcome:
    """One batch with the scores of every intervention, for functions that look closer."""

    batch: EvalBatch
    cached: CachedPass
    interventions: Sequence[Intervention]
    """Interventions, with the values that replace outputs in this batch."""
    clean: Scores
    scores: Scores
    """[intervention, row]."""


@dataclass(frozen=True)
class Outcome:
    """Scores of all examples."""

    clean: Scores
    scores: Scores
    """[intervention, example]."""
    majority_baseline: float
    """Score of the best constant answer; for a loss, that of even odds over all tokens or classes."""
    is_plain: bool = False
    """Whether each intervention was a whole forward pass: slower, for models whose modules keep state."""


def run_interventions(
    experiment: Experiment,
    interventions: Sequence[Intervention],
    *,
    base: Sequence[HeadId] = (),
    batch_size: int = BATCH,
    proven: bool = False,
    means: Means | None = None,
    progress: Progress | None = None,
    on_batch: Callable[[BatchOutcome], None] | None = None,
) -> Outcome:
    """Score every intervention on every example, the heads of `base` being ablated throughout.

    The hooks are proven to act first, unless they were `proven` on this model already. `means` are taken if they are
    needed and not given. Passed again at the end, the first batch must have the output that it had at the beginning.
    Where a cached pass cannot stand for a whole one, because modules keep state, all passes are whole ones.
    """
    if not all(each.heads for each in interventions):
        raise InputError("an intervention without heads", "name at least one head to ablate")
    replacements = [REPLACEMENTS.get(name) for name in dict.fromkeys(each.replacement for each in interventions)]
    what = f"scores of {experiment.n:,} examples, {len(interventions):,} times"
    require_room(8 * len(interventions) * experiment.n, what, "lower --n")
    clean, scores = np.empty(experiment.n), np.empty((len(interventions), experiment.n))
    batch_size = min(batch_size, experiment.most_rows or batch_size)
    if interventions and not proven:
        prove(experiment.model, experiment.sites, experiment.batches[0].inputs)
    with eval_mode(experiment.model), torch.no_grad():
        first: Tensor | None = None
        is_plain = False
        if means is None:
            means = means_of(experiment, base) if any(each.needs_mean for each in replacements) else ()
        for i, batch in enumerate(experiment.batches):
            cached = CachedPass(experiment.model, experiment.sites, batch.inputs, base)
            if first is None:
                first = first_tensor(cached.output).clone()
            here = _with_values(cached, interventions, means, i, batch)
            clean[batch.rows] = scores_of(experiment, batch, cached.output)
            if not is_plain:
                try:
                    for j, output in sweep(cached, here, batch_size=batch_size, checked=i == 0):
                        scores[j, batch.rows] = scores_of(experiment, batch, output)
                except ReplayError:
                    is_plain = True
            if is_plain:
                scores[:, batch.rows] = plain_scores(experiment, batch, here, base)
            if on_batch:
                on_batch(BatchOutcome(batch, cached, here, clean[batch.rows], scores[:, batch.rows]))
            if progress:
                progress(i + 1, len(experiment.batches))
        assert first is not None, "every experiment has a batch"
        _require_same(experiment, base, first)
    baseline = -math.log(first.shape[-1]) if experiment.metric.is_loss else experiment.majority_baseline
    return Outcome(clean, scores, baseline, is_plain)


def _require_same(experiment: Experiment, base: Sequence[HeadId], first: Tensor) -> None:
    """Raise an error if two passes differ: every head would seem to have an effect."""
    again = first_tensor(CachedPass(experiment.model, experiment.sites, experiment.batches[0].inputs, base).output)
    if torch.equal(first, again):
        return
    apart = difference(first, again) if first.shape == again.shape else math.inf
    if not apart <= tolerance(first.dtype):
        raise InstrumentError(
            f"passed again, the same inputs gave another output (by {apart:.1e} of the largest value)",
            "it changes from call to call, so a difference is no head's doing: does it keep state, or draw noise?",
        )


def plain_scores(
    experiment: Experiment, batch: EvalBatch, interventions: Sequence[Intervention], base: Sequence[HeadId]
) -> Scores:
    """Score each intervention on a batch by whole passes, [intervention, example]."""
    model, sites = experiment.model, experiment.sites
    outputs = (plain_pass(model, sites, batch.inputs, each, base) for each in interventions)
    found = [scores_of(experiment, batch, output) for output in outputs]
    return np.array(found).reshape(len(interventions), len(batch.rows))


def scores_of(experiment: Experiment, batch: EvalBatch, outputs: Any) -> Scores:
    """Score each example of a batch by the model's output."""
    output = first_tensor(outputs)
    require_numbers(output, f"example {int(batch.rows[0])} and those beside it")
    score = experiment.score(batch, output)
    if not isinstance(score, Tensor) or score.shape != (len(batch.rows),):
        what = f"a tensor of shape {tuple(score.shape)}" if isinstance(score, Tensor) else type(score).__name__
        raise InputError(
            f"the metric gave {what} for {len(batch.rows)} examples",
            "it should give a tensor with one number per example: metric(output, rows) -> [row]",
        )
    scores = score.cpu().double().numpy()
    if not np.isfinite(scores).all():
        first = int(batch.rows[np.flatnonzero(~np.isfinite(scores))[0]])
        raise InputError(
            f"the metric gave {scores[~np.isfinite(scores)][0]} for example {first}",
            "it should give a finite number for every example",
        )
    return scores


def means_of(experiment: Experiment, base: Sequence[HeadId] = ()) -> Means:
    """Return the mean output of heads at each position, over the inputs that have that position."""
    sums: dict[HeadSite, tuple[Tensor, Tensor]] = {}
    blocks = experiment.reference or experiment.batches
    with eval_mode(experiment.model), torch.no_grad():
        for batch, part in zip(blocks, parts_of(blocks), strict=True):
            cached = CachedPass(experiment.model, experiment.sites, batch.inputs, base)
            for site in experiment.sites:
                found = _summed(cached.z(site).cpu().double(), batch, site, part)
                sums[site] = _added(sums[site], found) if site in sums else found
    return [{site: _mean(*sums[site], part) for site in sums} for part in range(PARTS + 1)]


def parts_of(blocks: Sequence[EvalBatch]) -> list[NDArray[np.int64]]:
    """Return the part of each example: at random, or the eighths of a running text in order."""
    orders = [batch.order for batch in blocks if batch.order is not None]
    if len(orders) < len(blocks):
        return [batch.rows % PARTS for batch in blocks]
    every = np.sort(np.concatenate(orders))
    return [np.searchsorted(every, order) * PARTS // len(every) for order in orders]


def _summed(z: Tensor, batch: EvalBatch, site: HeadSite, part: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Return, for each part, the sum over rows at each position and the number of rows, without padding."""
    token_mask, counted = batch.token_mask.get(site.stack), torch.ones_like(z[..., :1, :1])
    if token_mask is not None and token_mask.shape == z.shape[:2]:
        counted = token_mask.to(z)[..., None, None]
    part = np.repeat(part, batch.n_inputs // len(batch.rows))
    parts = [torch.from_numpy(np.flatnonzero(part == i)).to(z.device) for i in range(PARTS)]
    sums = [(z[rows] * counted[rows]).sum(dim=0) for rows in parts]
    return torch.stack(sums), torch.stack([counted[rows].sum(dim=0) for rows in parts])


def _added(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Add sums of rows of another length; a position that only one has is taken from that one."""
    short, long = sorted((one, other), key=lambda each: each[0].shape[1])
    gap = long[0].shape[1] - short[0].shape[1]
    sums, counts = (F.pad(few, (0, 0, 0, 0, 0, gap)) + many for few, many in zip(short, long, strict=True))
    return sums, counts


def _mean(sums: Tensor, counts: Tensor, part: int) -> Tensor:
    """Return the mean over all inputs (0), or over one part if that part has the position."""
    whole = sums.sum(dim=0) / counts.sum(dim=0).clamp(min=1)  # a position that is all padding is asked about by nobody
    if not part:
        return whole
    return torch.where(counts[part - 1] > 0, sums[part - 1] / counts[part - 1].clamp(min=1), whole)


def _with_values(
    cached: CachedPass, interventions: Sequence[Intervention], means: Means, number: int, batch: EvalBatch
) -> list[Intervention]:
    """Give each intervention the values that replace z in the batch of this number."""
    n, replacements = cached.n_rows, {each.replacement for each in interventions}
    if n < 2 and any(REPLACEMENTS.get(name).needs_donors for name in replacements):
        raise InputError("an example is alone in its length, so there is none to resample from", "try more examples")

    @cache
    def values(name: str, site: HeadSite, draw: int) -> Tensor | None:
        z, replacement = cached.z(site), cast(Replacement, REPLACEMENTS.get(name))
        mean = means[draw][site] if replacement.needs_mean else None
        donors = torch.from_numpy(_donors(n, number, draw)).to(z.device)
        return replacement.make(ReplacementInputs(z, mean, donors, batch.token_mask.get(site.stack)))

    made = []
    for each in interventions:
        found = {site: values(each.replacement, site, each.draw) for site in cached.sites.head_slots(each.heads)}
        made.append(replace(each, values={site: value for site, value in found.items() if value is not None}))
    return made


def donors_of(experiment: Experiment, draws: int) -> Donors:
    """Return the donor of each example; for examples of several rows, the donor of the first."""
    donors = np.empty((draws, experiment.n), dtype=np.int64)
    for i, batch in enumerate(experiment.batches):
        times = batch.n_inputs // len(batch.rows)
        for draw in range(draws):
            donors[draw, batch.rows] = batch.rows[_donors(batch.n_inputs, i, draw)[::times] // times]
    return donors


def _donors(n: int, batch: int, draw: int) -> NDArray[np.int64]:
    """Return another row for each row: a ring in random order, so that no row is its own donor."""
    order = stream(0, f"resample {draw}" if draw else "resample", batch).permutation(n)
    donors = np.empty_like(order)
    donors[order] = np.roll(order, 1)
    return donors


# --- what was lost on the same examples, with an interval -------------------------------------------------------------


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
    """Compare scores without and with each intervention, example by example; scores are [example] or [donor, example].

    `name` is that of the random stream; `noise` is the standard error of the replacement; `donors` are those of each
    comparison, if others' outputs were it; `family` is over how many tests p is corrected, so that it can become small
    enough. Only hits can be compared at another `confidence` than 95 %.
    """
    rng, tries = stream(0, f"compare {name}"), [np.atleast_2d(scores) for scores in ablated]
    pairs = list(zip(tries, donors or [None] * len(tries), strict=True))
    if experiment.aggregator is not mean_score:
        draws = max(999, LEAST_P * family)
        drops = [paired_figures(clean, each, experiment.aggregator, rng, draws, own) for each, own in pairs]
    elif experiment.metric.is_accuracy:
        drops = [paired_hits(clean > 0.5, each, confidence, own) for each, own in pairs]
    else:
        most = max((float((clean - each.mean(axis=0)).max()) for each in tries), default=0.0)
        lost = np.array([(clean - each).mean() + influences(clean - each, own) for each, own in pairs])
        broken = None if experiment.largest_loss is None else max(experiment.largest_loss, most)
        values = _clustered(experiment, lost.reshape(len(tries), len(clean)))
        drops = paired_differences(values, rng, broken, LEAST_P * family)
    if experiment.is_all:  # but for donors, which are drawn all the same
        known = [replace(drop, low=drop.mean, high=drop.mean) for drop in drops]
        drops = [exact if own is None else drop for drop, exact, (_, own) in zip(drops, known, pairs, strict=True)]
    if not any(noise):
        return drops
    wider = [drop.widened(se, PARTS - 1, confidence) if se else drop for drop, se in zip(drops, noise, strict=True)]
    if not experiment.metric.is_accuracy:
        return wider
    least = 0.0 if (clean > 0.5).all() else -1.0  # what is all right cannot get better
    return [replace(drop, low=max(drop.low, least), high=min(drop.high, 1.0)) for drop in wider]


def _clustered(experiment: Experiment, values_KN: Scores) -> Scores:
    """Average scores within clusters, which count as one example each; the mean stays the same."""
    if experiment.clusters is None:
        return values_KN
    _, place = np.unique(experiment.clusters, return_inverse=True)
    n_clusters = int(place.max()) + 1
    means, sizes = values_KN.mean(axis=1, keepdims=True), np.bincount(place)
    sums = np.array([np.bincount(place, values, n_clusters) for values in values_KN - means])
    return means + sums / sizes.mean()


def interval_of(experiment: Experiment, scores: Scores, name: str) -> tuple[float, float]:
    """Return the 95 % CI of the aggregate of these scores: Wilson's for hits, bootstrap-t for other means."""
    if experiment.aggregator is not mean_score:
        return correlation_interval(scores, experiment.aggregator)
    if experiment.metric.is_accuracy:
        share = Proportion.count(scores > 0.5)
        return share.low, share.high
    losses = _clustered(experiment, -scores[None])
    broken = None if experiment.largest_loss is None else max(experiment.largest_loss, float(np.ptp(scores)))
    (found,) = paired_differences(losses, stream(0, f"interval {name}"), broken)
    return -found.high, -found.low
