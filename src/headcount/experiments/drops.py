"""Drops: scores with and without some heads, compared on the same examples, with confidence intervals and p-values."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from headcount.data.dataset import mean_score
from headcount.experiments.donors_and_means import PARTS, Donors
from headcount.experiments.experiment import Experiment, Scores
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
