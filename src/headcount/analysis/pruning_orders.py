"""Choose which heads to remove, and in which order, on one set of examples.

The orders are described in pruning.py, which measures the scores without the heads on other examples.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from torch import Tensor

from headcount.analysis.ablation import Ablation, AblationRun, Measurement, ablate, measure
from headcount.analysis.ablation_stopping import StoppingRule
from headcount.analysis.greedy_pruning import Clock, best_set, greedy_order
from headcount.analysis.sequential_ablation import SweepState, ablate_until_decided, can_stop_early, first_look
from headcount.bands import IMPORTANT, band_of
from headcount.data.dataset import EvalBatch, Score
from headcount.experiments.experiment import Experiment
from headcount.experiments.interventions import Progress, run_interventions
from headcount.heads import HeadId
from headcount.hooks import REPLACEMENTS
from headcount.hooks.replay import Intervention
from headcount.limits import DONORS, LOSS
from headcount.seeds import stream
from headcount.stats import PairedDifference

PRECISION_OF_CHOICE = 0.05
"""Precision of the drops by which heads are chosen: the largest half-width of a CI, 5 points.

A low precision is enough, as only the order of the heads counts, and whether a head is, say, redundant.
"""
TIE = 1e-4
"""Weight of the loss in the score that breaks ties between equal accuracies; less than one example in 10,000."""
SEARCH, RANDOM = 0.5, 0.6
"""Fractions of the time limit at which greedy removal ends, and at which the search among random sets ends."""
SETS = 16
"""Smallest number of random sets of heads that is worth measuring as a baseline of greedy removal."""
REPORTED_LOSSES = (LOSS, 0.05)
"""Losses of score (0.01 is 1 point) for which the number of removable heads is reported, alone and together."""


@dataclass(frozen=True)
class HeadChoice:
    """Sets and orders of heads to remove, chosen on one set of examples; the fields are those of `Pruning`."""

    by_zero: tuple[HeadId, ...]
    harmless: tuple[HeadId, ...]
    n_under_1_point: int
    replacements: tuple[str, ...]
    chosen: tuple[HeadId, ...]
    n_tried: int
    n_random: int
    best_random: tuple[HeadId, ...]
    prunable: tuple[tuple[float, int, tuple[HeadId, ...]], ...]
    """For each loss in `REPORTED_LOSSES`: the loss, the number of heads that cost less when removed alone, and the
    heads that greedy removal removes within this loss."""
    orders: Mapping[str, Sequence[HeadId]]
    """For each pruning curve, by name: all heads in the order of their removal."""


def choose_heads(
    experiment: Experiment,
    loss: float,
    share: float | None,
    batch_size: int,
    clock: Clock,
    part: Callable[[str], Progress | None],
    ablation: Ablation | None,
) -> HeadChoice:
    """Choose which heads to remove, and in which order, on the examples of an experiment.

    `part` returns the progress callback of a step, given the step's name. With a `share`, that share of the heads is
    chosen, whatever the `loss`. A stored `ablation` says which heads are harmless.
    """
    heads = experiment.sites.heads
    alone = _each_alone(experiment, ("zero",), batch_size, part("alone"))
    clock.learn(len(heads), experiment.n)
    finer = with_ties_broken(experiment)
    single = run_interventions(finer, one_by_one(heads), batch_size=batch_size, proven=True, progress=part("finer"))
    by_drop = [heads[i] for i in np.argsort(-finer.aggregate(single.scores), kind="stable")]
    greedy = greedy_order(
        finer,
        alone=single.scores,
        batch_size=batch_size,
        is_time_up=partial(clock.is_over, SEARCH),
        progress=part("greedy"),
    )
    if len(greedy.order) < len(heads):
        clock.skipped.append(f"greedy removal of more than {len(greedy.order)} of {len(heads)} heads")
    chosen = greedy.order[: greedy.within(loss + TIE) if share is None else n_in_share(share, len(heads))]
    n_tried = greedy.n_tried[len(chosen) - 1] if chosen else 0
    best_random, n_random = _best_random(finer, len(chosen), n_tried, batch_size, clock, part("luck"))
    every_way = _every_way(experiment, alone, batch_size, clock, part("every way"))
    largest = {head: max(one.drop.mean for one in every_way if one.head == head) for head in heads}
    importance = {row.head: row.importance for row in alone.condition.importances}
    replacements = tuple(dict.fromkeys(measurement.replacement for measurement in every_way))
    orders = {
        "together": by_drop,
        "every way": sorted(by_drop, key=lambda head: largest[head]) if len(replacements) > 1 else (),
        "greedy": greedy.order,
        "gradient": sorted(heads, key=lambda head: importance[str(head)]) if importance else (),
    }
    drops, harmless = _alone(alone.measurements, every_way, ablation)
    return HeadChoice(
        by_zero=tuple(head for head in heads if band_of(drops[str(head)]) == "redundant"),
        harmless=harmless,
        n_under_1_point=sum(drop.mean < IMPORTANT for drop in drops.values()),
        prunable=tuple(
            (limit, sum(drop.high < limit for drop in drops.values()), greedy.order[: greedy.within(limit + TIE)])
            for limit in REPORTED_LOSSES
        ),
        replacements=replacements,
        chosen=chosen,
        n_tried=n_tried,
        n_random=n_random,
        best_random=best_random,
        orders={name: order for name, order in orders.items() if order},
    )


def _alone(
    by_zero: Sequence[Measurement], every_way: Sequence[Measurement], ablation: Ablation | None
) -> tuple[dict[str, PairedDifference], tuple[HeadId, ...]]:
    """Return the drop of each head under zero ablation, and the heads that are harmless under every kind of ablation.

    The stored `ablation` provides both if it is given, otherwise the measurements do.
    """
    if ablation is None:
        return {str(measurement.head): measurement.drop for measurement in by_zero}, _redundant(every_way)
    length = ablation.conditions[0].length
    effects = ablation.effects("zero", length)
    drops = {effect.head: PairedDifference(effect.drop, effect.low, effect.high, effect.p) for effect in effects}
    return drops, tuple(HeadId.parse(head) for head in ablation.harmless(length))


def _each_alone(
    experiment: Experiment, replacements: Sequence[str], batch_size: int, progress: Progress | None
) -> AblationRun:
    """Ablate each head alone on as many examples as it takes to decide its band, such as redundant.

    If the metric does not allow stopping early, use all examples. The noise of mean ablation is left out.
    """
    if not can_stop_early(experiment):
        return ablate(experiment, replacements, noise={}, batch_size=batch_size, progress=progress)
    rule = StoppingRule(PRECISION_OF_CHOICE, first_look(experiment))

    def show(state: SweepState) -> None:
        if progress:
            progress(state.n_settled, len(state.run.measurements))

    return ablate_until_decided(
        experiment, None, rule, replacements, donors=DONORS, batch_size=batch_size, noise={}, on_block=show
    )


def n_in_share(share: float, n_heads: int) -> int:
    """Return the number of heads that is the given share of all heads, rounded up.

    >>> n_in_share(0.2, 24), n_in_share(0.25, 24), n_in_share(0.01, 24)
    (5, 6, 1)
    """
    return math.ceil(share * n_heads - 1e-9)


def one_by_one(heads: Sequence[HeadId]) -> list[Intervention]:
    """Return one intervention per head that removes (zero-ablates) this head alone."""
    return [Intervention((head,)) for head in heads]


def _every_way(
    experiment: Experiment, by_zero: AblationRun, batch_size: int, clock: Clock, progress: Progress | None
) -> tuple[Measurement, ...]:
    """Measure every head alone under every kind of ablation, or return those of zero ablation if time is short."""
    has_donors = min(batch.n_inputs for batch in experiment.batches) > 1  # donors have the same length
    others = [name for name in REPLACEMENTS.names() if name != "zero"]
    others = [name for name in others if has_donors or not REPLACEMENTS.get(name).needs_donors]
    n_sets = len(experiment.sites.heads) * sum(DONORS if REPLACEMENTS.get(name).needs_donors else 1 for name in others)
    if not others or not clock.fits(f"{' and '.join(others)} ablation of single heads", n_sets, experiment.n):
        return by_zero.measurements
    more = _each_alone(experiment, others, batch_size, progress)
    measurements = (*by_zero.measurements, *more.measurements)
    # The noise of mean ablation widens CIs, which matters only for heads that are harmless without the noise.
    harmless = set(_redundant(measurements))
    pairs = [(one.head, one.replacement) for one in measurements if one.head in harmless]
    pairs = [(head, name) for head, name in pairs if REPLACEMENTS.get(name).needs_mean]
    again = measure(experiment, pairs, more.means, batch_size=batch_size)[1] if pairs else ()
    wider = {(one.head, one.replacement): one for one in again}
    return tuple(wider.get((one.head, one.replacement), one) for one in measurements)


def _redundant(measurements: Sequence[Measurement]) -> tuple[HeadId, ...]:
    """Return the heads whose drop lies below 1 point, with its whole CI, in all of their measurements."""
    costly = {one.head for one in measurements if band_of(one.drop) != "redundant"}
    return tuple(head for head in dict.fromkeys(one.head for one in measurements) if head not in costly)


def with_ties_broken(experiment: Experiment) -> Experiment:
    """Return the experiment with a tiny part of the loss subtracted from each example's accuracy, to break ties."""

    def finer(batch: EvalBatch, hits: Score) -> Score:
        assert batch.loss is not None, "an accuracy comes with a loss"
        loss: Score = batch.loss

        def score(output: Tensor) -> Tensor:
            losses = loss(output).cpu().double()  # single precision would round small differences away
            return hits(output).cpu().double() - TIE * losses / (1 + losses)

        return score

    return experiment.scored_by(finer) if experiment.metric.is_accuracy else experiment


def _best_random(
    experiment: Experiment, size: int, n_tried: int, batch_size: int, clock: Clock, progress: Progress | None
) -> tuple[tuple[HeadId, ...], int]:
    """Find the random set of `size` heads whose removal leaves the highest score.

    Return the set, and how many of the `n_tried` random sets were measured before the time was up.
    """
    heads, rng = experiment.sites.heads, stream(0, "random sets")
    if not 0 < size < len(heads):
        return (), 0
    if not clock.fits("random sets of as many heads", min(n_tried, SETS), experiment.n):
        return (), 0
    sets = [tuple(heads[i] for i in rng.permutation(len(heads))[:size]) for _ in range(n_tried)]
    is_time_up = partial(clock.is_over, RANDOM)
    best, n = best_set(experiment, sets, batch_size=batch_size, is_time_up=is_time_up, progress=progress)
    if n < n_tried:
        clock.skipped.append(f"{n_tried - n:,} of {n_tried:,} random sets")
    return best, n
