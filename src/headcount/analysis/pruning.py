"""How many heads can go, and which? Removed together, not one at a time.

Six answers to that, drawn as one figure. Orders are chosen on one set of examples and measured on another:

    alone      each head's own drop by zero, added up: what "individually harmless" promises
    together   the same order, the heads really removed together
    every way  in the order of the worst that silencing did, of all kinds of silencing: misleading others counts too
    greedy     at each step the head whose removal costs least, measured again after every removal
    gradient   in the order of gradient importance
    random     random orders: what no search at all finds; and the best of as many random sets as greedy tried, chosen
               as greedy chooses: what a search finds that does not look where it goes
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headcount.analysis.ablation import AblationRun, ablate
from headcount.data.dataset import EvalBatch, Score
from headcount.experiments.experiment import Experiment
from headcount.experiments.interventions import Progress, compare, interval_of, run_interventions
from headcount.heads import HeadId
from headcount.hooks import REPLACEMENTS
from headcount.hooks.replay import Intervention
from headcount.limits import BATCH, ORDERS
from headcount.results import Result
from headcount.seeds import stream
from headcount.stats import IMPORTANT, PairedDifference, band_of

MOST_SIZES = 32
"""Numbers of removed heads at which random orders are measured."""
TIE = 1e-4
"""How much the loss counts where hits are equal: less than one hit in ten thousand."""


@dataclass(frozen=True)
class Point:
    """Some heads removed."""

    n_removed: int
    head: str | None
    """The one that was removed last."""
    score: float
    low: float
    high: float
    """95 % interval of this score by itself; where drops are only added up, there is none but the score."""
    drop: PairedDifference | None = None
    """What was lost on the same examples, with the interval of that; None where drops are only added up."""


@dataclass(frozen=True)
class Curve:
    """One order of removal."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class RandomBaseline:
    """Random removal of so many heads: quantiles over orders."""

    n_removed: int
    low: float
    """Tenth percentile."""
    median: float
    high: float
    """Ninetieth percentile."""


@dataclass(frozen=True)
class Pruning(Result):
    """What is left of a model as its heads go."""

    SCHEMA: ClassVar[int] = 4
    FORMER: ClassVar[Mapping[str, str]] = {
        "run": "name",
        "model": "weights_sha256",
        "kinds": "replacements",
        "under": "n_under_1_point",
        "is_share": "is_accuracy",
    }
    name: str
    weights_sha256: str
    metric: str
    unit: str
    chosen_on: str
    """The examples that orders were chosen on."""
    measured_on: str
    """And those that every figure here comes from."""
    n: int
    n_heads: int
    replacements: tuple[str, ...]
    """Ways of silencing that heads were tried in, one at a time."""
    loss: float
    clean: float
    harmless: tuple[str, ...]
    """Heads that cost under 1 point alone in every way of silencing, by the interval."""
    harmless_left: Point
    """All of those removed together."""
    harmless_means: Point
    """All of those silenced together, each saying its mean; intervals are for these means."""
    by_zero: tuple[str, ...]
    """Heads that cost under 1 point alone by zero, by the interval."""
    by_zero_left: Point
    """All of those removed together."""
    n_under_1_point: int
    """Heads whose drop alone by zero is under 1 point, by the point estimate: what reports count."""
    chosen: tuple[str, ...]
    """What greedy removal takes before it loses more than `loss` on the examples it chooses on, in order."""
    kept: Point
    """What is left after that, on the other examples."""
    n_tried: int
    """Sets that greedy tried until then."""
    best_random: Point
    """The best of as many random sets of that size, chosen as greedy chose."""
    curves: tuple[Curve, ...]
    chance: tuple[RandomBaseline, ...]
    n_orders: int
    n_chance: int
    """Examples per random order."""
    is_accuracy: bool = True
    """Whether each example is right or wrong; else scores are in the metric's own unit, larger being better."""


def prune_curves(
    name: str,
    weights_sha256: str,
    selection_set: Experiment,
    test_set: Experiment,
    null_set: Experiment,
    loss: float,
    *,
    n_orders: int = ORDERS,
    batch_size: int = BATCH,
    progress: Progress | None = None,
) -> Pruning:
    """All six, chosen on one subject and measured on another; random orders on a third, which may be smaller."""
    heads, steps = selection_set.sites.heads, _Steps(progress)
    replacements = _possible(selection_set)
    alone = ablate(selection_set, replacements, batch_size=batch_size, progress=steps.part(0.15))
    by_zero, in_every_way = _redundant(alone, {"zero"}), _redundant(alone, replacements)
    finer = _with_ties_broken(selection_set)
    own = _in_order(finer, batch_size)
    worst = {
        head: max(measurement.drop.mean for measurement in alone.measurements if measurement.head == head)
        for head in heads
    }
    gradient = [each.head for each in sorted(alone.condition.importances, key=lambda each: each.importance)]
    greedy, chosen, n_tried = _greedy(finer, loss, batch_size, steps)
    orders = {
        "together": own,
        "every way": sorted(own, key=lambda head: worst[head]),
        "greedy": greedy,
        "gradient": [HeadId.parse(head) for head in gradient],
    }
    interventions = {
        (name, k): Intervention(tuple(order[:k])) for name, order in orders.items() for k in range(1, len(order) + 1)
    }
    interventions |= {("alone", k): Intervention((head,)) for k, head in enumerate(own, start=1)}
    lucky = _best_random(finer, len(chosen), n_tried, batch_size, steps)
    sets = {"harmless": in_every_way, "by zero": by_zero, "chosen": chosen, "lucky": lucky}
    interventions |= {(name, 0): Intervention(some) for name, some in sets.items() if some}
    interventions |= {("means", 0): Intervention(in_every_way, "mean")} if in_every_way else {}
    points = _measured(test_set, interventions, batch_size, steps)
    whole = points["whole", 0]
    curves = [
        Curve(name, (whole, *(points[name, k] for k in range(1, len(heads) + 1))))
        for name, order in orders.items()
        if order
    ]
    additive = _additive_prediction(whole, [points["alone", k] for k in range(1, len(heads) + 1)], *_range(test_set))
    return Pruning(
        name=name,
        weights_sha256=weights_sha256,
        metric=test_set.metric.name,
        unit=test_set.metric.unit,
        chosen_on=selection_set.data,
        measured_on=test_set.data,
        n=test_set.n,
        n_heads=len(heads),
        replacements=replacements,
        loss=loss,
        clean=whole.score,
        harmless=tuple(map(str, in_every_way)),
        harmless_left=points.get(("harmless", 0), whole),
        harmless_means=points.get(("means", 0), whole),
        by_zero=tuple(map(str, by_zero)),
        by_zero_left=points.get(("by zero", 0), whole),
        n_under_1_point=sum(
            measurement.drop.mean < IMPORTANT for measurement in alone.measurements if measurement.replacement == "zero"
        ),
        chosen=tuple(map(str, chosen)),
        kept=points.get(("chosen", 0), whole),
        n_tried=n_tried,
        best_random=points.get(("lucky", 0), whole),
        curves=(Curve("alone", additive), *curves),
        chance=_chance(null_set, n_orders, batch_size, steps),
        n_orders=n_orders,
        n_chance=null_set.n,
        is_accuracy=test_set.metric.is_accuracy,
    )


def _measured(
    experiment: Experiment, interventions: Mapping[tuple[str, int], Intervention], batch_size: int, steps: _Steps
) -> dict[tuple[str, int], Point]:
    """What is left without these heads, and what was lost with them; and the whole model."""
    found = run_interventions(
        experiment, list(interventions.values()), batch_size=batch_size, proven=True, progress=steps.part(0.1)
    )
    drops = compare(experiment, found.clean, list(found.scores), "sets")
    points = {("whole", 0): _point(experiment, (), found.clean, PairedDifference(0.0, 0.0, 0.0, 1.0), "whole")}
    for (name, intervention), scores, drop in zip(interventions.items(), found.scores, drops, strict=True):
        points[name] = _point(experiment, intervention.heads, scores, drop, f"{name}")
    return points


def _point(
    experiment: Experiment, removed: Sequence[HeadId], scores: NDArray[np.float64], drop: PairedDifference, name: str
) -> Point:
    last = str(removed[-1]) if removed else None
    return Point(len(removed), last, float(experiment.aggregate(scores)), *interval_of(experiment, scores, name), drop)


def _range(experiment: Experiment) -> tuple[float, float]:
    """What a score can be."""
    return (0.0, 1.0) if experiment.metric.is_accuracy else (-math.inf, math.inf)


def _possible(experiment: Experiment) -> tuple[str, ...]:
    """Ways of silencing; another example cannot stand in for one that is alone in its length."""
    alone = min(batch.n_inputs for batch in experiment.batches) < 2
    replacements = sorted(
        REPLACEMENTS.names(), key=lambda replacement: replacement != "zero"
    )  # which is what cutting does
    return tuple(
        replacement for replacement in replacements if not (alone and REPLACEMENTS.get(replacement).needs_donors)
    )


def _redundant(alone: AblationRun, replacements: Collection[str]) -> tuple[HeadId, ...]:
    """Heads whose whole interval lies under 1 point by each of these kinds."""
    costly = {
        measurement.head
        for measurement in alone.measurements
        if measurement.replacement in replacements and band_of(measurement.drop) != "redundant"
    }
    return tuple(
        head for head in dict.fromkeys(measurement.head for measurement in alone.measurements) if head not in costly
    )


def _in_order(experiment: Experiment, batch_size: int) -> list[HeadId]:
    """Heads in the order of what they cost alone by zero."""
    heads = experiment.sites.heads
    found = run_interventions(experiment, [Intervention((head,)) for head in heads], batch_size=batch_size, proven=True)
    return [heads[i] for i in np.argsort(-experiment.aggregate(found.scores), kind="stable")]


def _greedy(
    experiment: Experiment, loss: float, batch_size: int, steps: _Steps
) -> tuple[list[HeadId], tuple[HeadId, ...], int]:
    """All heads in the order of greedy removal, those that go for at most `loss`, and how many sets were tried."""
    removed, n_within, n_tried = list[HeadId](), 0, 0
    left, clean = list(experiment.sites.heads), None
    total = len(left) * (len(left) + 1) // 2
    report, done, within = steps.part(0.4), 0, True
    while left:
        found = run_interventions(
            experiment, [Intervention((head,)) for head in left], base=removed, batch_size=batch_size, proven=True
        )
        clean = float(experiment.aggregate(found.clean)) if clean is None else clean
        left_over = experiment.aggregate(found.scores)
        best = int(left_over.argmax())
        done += len(left)
        within = within and bool(clean - left_over[best] <= loss + TIE)
        n_within, n_tried = n_within + within, n_tried + within * len(left)
        removed.append(left.pop(best))
        report(done, total)
    return removed, tuple(removed[:n_within]), n_tried


def _best_random(experiment: Experiment, size: int, n_tried: int, batch_size: int, steps: _Steps) -> tuple[HeadId, ...]:
    """Of so many random sets of this size, the one that leaves most."""
    heads, rng, report = experiment.sites.heads, stream(0, "random sets"), steps.part(0.2)
    if not 0 < size < len(heads):
        return ()
    interventions = [Intervention(tuple(heads[i] for i in rng.permutation(len(heads))[:size])) for _ in range(n_tried)]
    found = run_interventions(experiment, interventions, batch_size=batch_size, proven=True, progress=report)
    return interventions[int(experiment.aggregate(found.scores).argmax())].heads


def _chance(experiment: Experiment, n_orders: int, batch_size: int, steps: _Steps) -> tuple[RandomBaseline, ...]:
    heads = experiment.sites.heads
    rng = stream(0, "random orders")
    orders = [[heads[i] for i in rng.permutation(len(heads))] for _ in range(n_orders)]
    # All of them is all of them, in any order; and a band needs no more than so many points.
    sizes = sorted({round(k) for k in np.linspace(1, len(heads) - 1, min(len(heads) - 1, MOST_SIZES))})
    interventions = [Intervention(tuple(order[:k])) for k in sizes for order in orders]
    found = run_interventions(experiment, interventions, batch_size=batch_size, proven=True, progress=steps.part(0.15))
    by_size = experiment.aggregate(found.scores).reshape(len(sizes), n_orders)
    quantiles = np.quantile(by_size, [0.1, 0.5, 0.9], axis=1).T
    return tuple(RandomBaseline(k, *map(float, ends)) for k, ends in zip(sizes, quantiles, strict=True))


def _additive_prediction(whole: Point, alone: Sequence[Point], least: float, most: float) -> tuple[Point, ...]:
    """What is left if drops simply added up."""
    points, lost = [whole], 0.0
    for k, point in enumerate(alone, start=1):
        lost += whole.score - point.score
        left = min(most, max(least, whole.score - lost))
        points.append(Point(k, point.head, left, left, left))
    return tuple(points)


def _with_ties_broken(experiment: Experiment) -> Experiment:
    """Where hits are equal, the loss decides: a hit in ten thousand weighs more than any loss."""
    return experiment.scored_by(_finer) if experiment.metric.is_accuracy else experiment


def _finer(batch: EvalBatch, hits: Score) -> Score:
    assert batch.loss is not None, "tasks have a loss"
    loss: Score = batch.loss

    def score(output: Tensor) -> Tensor:
        worse = loss(output).cpu().double()  # in single precision, 1 less a ten-thousandth of a small loss is 1
        return hits(output).cpu().double() - TIE * worse / (1 + worse)

    return score


class _Steps:
    """Progress over several parts of unequal weight, in percent."""

    def __init__(self, progress: Progress | None) -> None:
        self.progress, self.done = progress, 0.0

    def part(self, weight: float) -> Progress:
        """Progress of the next part."""
        start = self.done
        self.done += weight

        def report(done: int, total: int) -> None:
            if self.progress:
                self.progress(max(1, round(100 * (start + weight * done / total))), 100)

        return report
