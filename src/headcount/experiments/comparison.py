"""What was lost on the same examples, with an interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from headcount.data.dataset import mean_score
from headcount.experiments.experiment import Experiment
from headcount.experiments.interventions import PARTS, Donors
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


def compare(
    experiment: Experiment,
    clean: NDArray[np.float64],
    silenced: Sequence[NDArray[np.float64]],
    name: str,
    noise: Sequence[float] = (),
    confidence: float = 0.95,
    donors: Sequence[Donors | None] = (),
    family: int = 1,
) -> list[PairedDifference]:
    """What was lost by each, example by example; scores are [example] or [donor, example].

    `name` is that of the random stream; `noise` is the standard error of whatever stood in; `donors` are those of each
    comparison, if others' outputs did; `family` is over how many tests p is corrected, so that it can become small
    enough. Only hits can be compared at another `confidence` than 95 %.
    """
    rng, tries = stream(0, f"compare {name}"), [np.atleast_2d(scores) for scores in silenced]
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


def _clustered(experiment: Experiment, values_KN: NDArray[np.float64]) -> NDArray[np.float64]:
    """Examples that belong together count as one; the mean stays what it is."""
    if experiment.clusters is None:
        return values_KN
    _, place = np.unique(experiment.clusters, return_inverse=True)
    n_clusters = int(place.max()) + 1
    means, sizes = values_KN.mean(axis=1, keepdims=True), np.bincount(place)
    sums = np.array([np.bincount(place, values, n_clusters) for values in values_KN - means])
    return means + sums / sizes.mean()


def interval_of(experiment: Experiment, scores: NDArray[np.float64], name: str) -> tuple[float, float]:
    """95 % interval of what these scores come to by themselves: Wilson's for hits, bootstrap-t for other means."""
    if experiment.aggregator is not mean_score:
        return correlation_interval(scores, experiment.aggregator)
    if experiment.metric.is_accuracy:
        share = Proportion.count(scores > 0.5)
        return share.low, share.high
    losses = _clustered(experiment, -scores[None])
    broken = None if experiment.largest_loss is None else max(experiment.largest_loss, float(np.ptp(scores)))
    (found,) = paired_differences(losses, stream(0, f"interval {name}"), broken)
    return -found.high, -found.low
