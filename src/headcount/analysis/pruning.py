"""How many heads can go, and which? Removed together, not one at a time.

Six answers to that, drawn as one figure. Orders are chosen on one set of examples and measured on another:

    alone      each head's own drop by zero, added up: what "individually harmless" promises
    together   the same order, the heads really removed together
    every way  in the order of the largest drop that any replacement caused: misleading others counts too
    greedy     at each step the head whose removal costs least, measured again after every removal
    gradient   in the order of gradient importance
    random     random orders: what no search at all finds; and the best of as many random sets as greedy tried, chosen
               as greedy chooses: what a search finds that does not look where it goes
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headcount.analysis.ablation import Ablation, AblationRun, Measurement, ablate, measure
from headcount.analysis.contradictions import pruning_contradictions
from headcount.analysis.greedy import Clock, best_set, greedy_order
from headcount.bands import IMPORTANT, band_of
from headcount.data.dataset import EvalBatch, Score
from headcount.experiments.experiment import Experiment
from headcount.experiments.interventions import Progress, compare, interval_of, run_interventions
from headcount.experiments.removal import scores_along
from headcount.heads import HeadId
from headcount.hooks import REPLACEMENTS
from headcount.hooks.replay import Intervention
from headcount.limits import BATCH, DONORS, ORDERS
from headcount.results import Contradiction, Count, HeadName, Positive, Result, Size
from headcount.seeds import stream
from headcount.stats import PairedDifference

NAMES = ("alone", "together", "every way", "greedy", "gradient")
"""Of curves, in their order."""
MOST_SIZES = 16
"""Numbers of removed heads at which random orders are measured."""
TIE = 1e-4
"""How much the loss counts where hits are equal: less than one hit in ten thousand."""
SEARCH, RANDOM = 0.5, 0.6
"""Shares of a budget at which greedy removal, and the search among random sets, come to an end."""
SETS = 16
"""The fewest random sets that are worth a try."""
LIMITS = (0.01, 0.05)
"""Losses for which the share of heads that can be removed is counted, each alone and together."""


@dataclass(frozen=True)
class Point:
    """Some heads removed."""

    n_removed: Count
    head: HeadName | None
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

    n_removed: Positive
    low: float
    """Tenth percentile."""
    median: float
    high: float
    """Ninetieth percentile."""


@dataclass(frozen=True)
class PrunableShare:
    """How many heads can be removed for at most one loss."""

    loss: float
    n_alone: int
    """Heads that cost less than this when they are removed alone, by their whole 95 % interval."""
    n_together: int
    """Heads that greedy removal takes for at most this, on the examples that it chooses on."""
    left: Point
    """What is left without those together, on the other examples."""


@dataclass(frozen=True)
class Pruning(Result):
    """What is left of a model as its heads go."""

    ROWS: ClassVar[tuple[str, ...]] = ("curves.points",)
    SCHEMA: ClassVar[int] = 5
    name: str
    weights_sha256: str
    metric: str
    unit: str
    chosen_on: str
    """The examples that orders were chosen on."""
    measured_on: str
    """And those that every figure here comes from."""
    n: Positive
    n_heads: Positive
    replacements: tuple[str, ...]
    """With which heads were ablated, one at a time."""
    loss: Size
    clean: float
    harmless: tuple[HeadName, ...]
    """Heads that cost under 1 point alone with every replacement, by the interval; `alone_on` names the examples."""
    harmless_left: Point
    """All of those removed together."""
    harmless_means: Point
    """All of those replaced by their means together; intervals are for these means."""
    by_zero: tuple[HeadName, ...]
    """Heads that cost under 1 point alone by zero, by the interval."""
    by_zero_left: Point
    """All of those removed together."""
    n_under_1_point: Count
    """Heads whose drop alone by zero is under 1 point, by the point estimate: what reports count."""
    chosen: tuple[HeadName, ...]
    """What greedy removal takes before it loses more than `loss` on the examples it chooses on, or until `share` of
    the heads is gone, in order."""
    kept: Point
    """What is left after that, on the other examples."""
    n_tried: Count
    """Sets that greedy measured until then, on some of the examples at least."""
    n_random: Count
    """Random sets of that size that were tried: as many, unless time was up."""
    best_random: Point
    """The best of those, chosen as greedy chose."""
    curves: tuple[Curve, ...]
    chance: tuple[RandomBaseline, ...]
    n_orders: Count
    n_chance: Positive
    """Examples per random order."""
    is_accuracy: bool = True
    """Whether each example is right or wrong; else scores are in the metric's own unit, larger being better."""
    budget: Size | None = None
    """Seconds that the search was given; None for as long as it takes."""
    not_measured: tuple[str, ...] = ()
    """What there was no time for, in words; nothing without a budget."""
    prunable: tuple[PrunableShare, ...] = ()
    """The share of heads that can be removed for 1 point and for 5; none for a metric without points."""
    alone_on: str = ""
    """The examples that heads were ablated alone on, by a stored ablation; empty: those that orders were chosen on."""
    audit: str = ""
    """What is at the bottom of what quick checks of the whole model found; empty if none fails."""
    share: float | None = None
    """Share of the heads that was to be removed, whatever that loses; None if `loss` was the limit."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Compare the points with the lists of heads and with the number of examples."""
        return pruning_contradictions(self)


def prune_curves(
    name: str,
    weights_sha256: str,
    selection_set: Experiment,
    test_set: Experiment,
    null_set: Experiment,
    loss: float,
    *,
    share: float | None = None,
    n_orders: int = ORDERS,
    batch_size: int = BATCH,
    budget: float | None = None,
    ablation: Ablation | None = None,
    progress: Progress | None = None,
) -> Pruning:
    """All six, chosen on one set and measured on another; random orders on a third, which may be smaller.

    Where an `ablation` of this model is given, it says which heads are harmless alone: one question, one answer. With a
    `share`, heads are removed until that share of them is gone, whatever that loses. With a `budget` in seconds, what
    there is no time for is left out, the most important being measured first.
    """
    clock = Clock(budget)
    selection_set = clock.affordable(selection_set)
    part = _parts(progress, selection_set, test_set, null_set, n_orders)
    found = _choose(selection_set, loss, share, batch_size, clock, part, ablation)
    whole, points = _points(test_set, found, batch_size, clock, part)
    chance, n_orders = _chance(null_set, n_orders, batch_size, clock, part("chance"))
    metric = test_set.metric
    return Pruning(
        name=name,
        weights_sha256=weights_sha256,
        metric=metric.name,
        unit=metric.unit,
        chosen_on=selection_set.data,
        measured_on=test_set.data,
        n=test_set.n,
        n_heads=len(test_set.sites.heads),
        replacements=found.replacements,
        loss=loss,
        clean=whole.score,
        harmless=tuple(map(str, found.harmless)),
        harmless_left=points.get(("harmless", 0), whole),
        harmless_means=points.get(("means", 0), whole),
        by_zero=tuple(map(str, found.by_zero)),
        by_zero_left=points.get(("by zero", 0), whole),
        n_under_1_point=found.n_under_1_point,
        chosen=tuple(map(str, found.chosen)),
        kept=points.get(("chosen", 0), whole),
        n_tried=found.n_tried,
        n_random=found.n_random,
        best_random=points.get(("lucky", 0), whole),
        curves=_curves(found, whole, points, is_accuracy=metric.is_accuracy),
        chance=chance,
        n_orders=n_orders,
        n_chance=null_set.n,
        is_accuracy=metric.is_accuracy,
        budget=budget,
        not_measured=tuple(clock.skipped),
        prunable=tuple(
            PrunableShare(limit, n_alone, len(heads), points.get(("share", i), whole))
            for i, (limit, n_alone, heads) in enumerate(found.prunable if metric.in_points else ())
        ),
        alone_on=_named_examples(ablation),
        share=share,
    )


def _parts(
    progress: Progress | None, selection_set: Experiment, test_set: Experiment, null_set: Experiment, n_orders: int
) -> Callable[[str], Progress | None]:
    """Progress of each part of the whole, by how many passes over examples it is expected to take."""
    n, chosen, tested = len(selection_set.sites.heads), selection_set.n, test_set.n
    work = {
        "alone": n * chosen,
        "finer": n * chosen,
        "greedy": 2 * n * chosen,
        "luck": 4 * n * chosen,
        "every way": (1 + DONORS) * n * chosen,
        "sets": n * tested,
        "curves": 4 * n * tested,
        "chance": 2 * n_orders * min(n, MOST_SIZES) * null_set.n,
    }
    ends = np.cumsum([0, *work.values()]) / sum(work.values())
    spans = dict(zip(work, pairwise(ends), strict=True))
    return lambda name: _part(progress, *spans[name])


def _part(progress: Progress | None, start: float, end: float) -> Progress | None:
    """Progress of a part that takes from `start` to `end` of the whole."""
    return progress and (lambda done, total: progress(max(1, round(100 * (start + (end - start) * done / total))), 100))


# --- heads are chosen -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Choice:
    """Sets and orders of heads, found on the examples to choose on."""

    by_zero: tuple[HeadId, ...]
    harmless: tuple[HeadId, ...]
    n_under_1_point: int
    replacements: tuple[str, ...]
    chosen: tuple[HeadId, ...]
    n_tried: int
    n_random: int
    lucky: tuple[HeadId, ...]
    prunable: tuple[tuple[float, int, tuple[HeadId, ...]], ...]
    """A loss, how many heads cost less than that alone, and those that greedy removal takes for it."""
    orders: Mapping[str, Sequence[HeadId]]
    """By the names of their curves."""


def _choose(
    experiment: Experiment,
    loss: float,
    share: float | None,
    batch_size: int,
    clock: Clock,
    part: Callable[[str], Progress | None],
    ablation: Ablation | None,
) -> _Choice:
    heads = experiment.sites.heads
    alone = ablate(experiment, ("zero",), batch_size=batch_size, progress=part("alone"))
    clock.learn(len(heads), experiment.n)
    finer = _with_ties_broken(experiment)
    each = run_interventions(finer, _one_by_one(heads), batch_size=batch_size, proven=True, progress=part("finer"))
    own = [heads[i] for i in np.argsort(-finer.aggregate(each.scores), kind="stable")]
    greedy = greedy_order(
        finer,
        alone=each.scores,
        batch_size=batch_size,
        is_time_up=partial(clock.is_over, SEARCH),
        progress=part("greedy"),
    )
    if len(greedy.order) < len(heads):
        clock.skipped.append(f"greedy removal beyond {len(greedy.order)} of {len(heads)} heads")
    chosen = greedy.order[: greedy.within(loss + TIE) if share is None else n_in_share(share, len(heads))]
    n_tried = greedy.n_tried[len(chosen) - 1] if chosen else 0
    lucky, n_random = _best_random(finer, len(chosen), n_tried, batch_size, clock, part("luck"))
    every_way = _every_way(experiment, alone, batch_size, clock, part("every way"))
    worst = {head: max(each.drop.mean for each in every_way if each.head == head) for head in heads}
    importance = {each.head: each.importance for each in alone.condition.importances}
    replacements = tuple(dict.fromkeys(each.replacement for each in every_way))
    orders = {
        "together": own,
        "every way": sorted(own, key=lambda head: worst[head]) if len(replacements) > 1 else (),
        "greedy": greedy.order,
        "gradient": sorted(heads, key=lambda head: importance[str(head)]) if importance else (),
    }
    drops, harmless = _alone(alone.measurements, every_way, ablation)
    return _Choice(
        by_zero=tuple(head for head in heads if band_of(drops[str(head)]) == "redundant"),
        harmless=harmless,
        n_under_1_point=sum(each.mean < IMPORTANT for each in drops.values()),
        prunable=tuple(
            (limit, sum(each.high < limit for each in drops.values()), greedy.order[: greedy.within(limit + TIE)])
            for limit in LIMITS
        ),
        replacements=replacements,
        chosen=chosen,
        n_tried=n_tried,
        n_random=n_random,
        lucky=lucky,
        orders={name: order for name, order in orders.items() if order},
    )


def _alone(
    by_zero: Sequence[Measurement], every_way: Sequence[Measurement], ablation: Ablation | None
) -> tuple[dict[str, PairedDifference], tuple[HeadId, ...]]:
    """Return what removing each head alone costs, and which heads no replacement harms: by the ablation, if given."""
    if ablation is None:
        return {str(each.head): each.drop for each in by_zero}, _redundant(every_way)
    length = ablation.conditions[0].length
    removed = ablation.effects("zero", length)
    drops = {each.head: PairedDifference(each.drop, each.low, each.high, each.p) for each in removed}
    return drops, tuple(HeadId.parse(head) for head in ablation.harmless(length))


def _named_examples(ablation: Ablation | None) -> str:
    """Name the examples that an ablation rests on."""
    if ablation is None:
        return ""
    condition = ablation.conditions[0]
    return f"{condition.data} and fresh examples" if condition.decided_on else condition.data


def n_in_share(share: float, n_heads: int) -> int:
    """Return how many heads have to go until this share of them is gone.

    >>> n_in_share(0.2, 24), n_in_share(0.25, 24), n_in_share(0.01, 24)
    (5, 6, 1)
    """
    return math.ceil(share * n_heads - 1e-9)


def _one_by_one(heads: Sequence[HeadId]) -> list[Intervention]:
    return [Intervention((head,)) for head in heads]


def _every_way(
    experiment: Experiment, by_zero: AblationRun, batch_size: int, clock: Clock, progress: Progress | None
) -> tuple[Measurement, ...]:
    """Every head alone with every replacement, zero being known; or by zero alone, if there is no time for more."""
    is_alone = min(batch.n_inputs for batch in experiment.batches) < 2  # in its length, so that it has no donor
    others = [name for name in REPLACEMENTS.names() if name != "zero"]
    others = [name for name in others if not (is_alone and REPLACEMENTS.get(name).needs_donors)]
    n_sets = len(experiment.sites.heads) * sum(DONORS if REPLACEMENTS.get(name).needs_donors else 1 for name in others)
    if not others or not clock.fits(f"heads ablated by {' and '.join(others)}", n_sets, experiment.n):
        return by_zero.measurements
    more = ablate(experiment, others, noise={}, batch_size=batch_size, progress=progress)
    every = (*by_zero.measurements, *more.measurements)
    # The noise of a mean makes intervals wider: it matters to heads alone that are harmless without it.
    harmless = set(_redundant(every))
    asked = [(each.head, each.replacement) for each in every if each.head in harmless]
    asked = [(head, name) for head, name in asked if REPLACEMENTS.get(name).needs_mean]
    again = measure(experiment, asked, more.means, batch_size=batch_size)[1] if asked else ()
    wider = {(each.head, each.replacement): each for each in again}
    return tuple(wider.get((each.head, each.replacement), each) for each in every)


def _redundant(measurements: Sequence[Measurement]) -> tuple[HeadId, ...]:
    """Heads whose whole interval lies under 1 point in each of these measurements."""
    costly = {each.head for each in measurements if band_of(each.drop) != "redundant"}
    return tuple(head for head in dict.fromkeys(each.head for each in measurements) if head not in costly)


def _with_ties_broken(experiment: Experiment) -> Experiment:
    """Where hits are equal, the loss decides: a hit in ten thousand weighs more than any loss."""

    def finer(batch: EvalBatch, hits: Score) -> Score:
        assert batch.loss is not None, "tasks have a loss"
        loss: Score = batch.loss

        def score(output: Tensor) -> Tensor:
            worse = loss(output).cpu().double()  # in single precision, 1 less a ten-thousandth of a small loss is 1
            return hits(output).cpu().double() - TIE * worse / (1 + worse)

        return score

    return experiment.scored_by(finer) if experiment.metric.is_accuracy else experiment


def _best_random(
    experiment: Experiment, size: int, n_tried: int, batch_size: int, clock: Clock, progress: Progress | None
) -> tuple[tuple[HeadId, ...], int]:
    """Of so many random sets of this size, or of as many as there is time for, the one that leaves most."""
    heads, rng = experiment.sites.heads, stream(0, "random sets")
    if not 0 < size < len(heads):
        return (), 0
    if not clock.fits("random sets of as many heads", min(n_tried, SETS), experiment.n):
        return (), 0
    sets = [tuple(heads[i] for i in rng.permutation(len(heads))[:size]) for _ in range(n_tried)]
    time_is_up = partial(clock.is_over, RANDOM)
    best, n = best_set(experiment, sets, batch_size=batch_size, is_time_up=time_is_up, progress=progress)
    if n < n_tried:
        clock.skipped.append(f"{n_tried - n:,} of {n_tried:,} random sets")
    return best, n


# --- and measured on other examples -----------------------------------------------------------------------------------


def _points(
    experiment: Experiment, found: _Choice, batch_size: int, clock: Clock, part: Callable[[str], Progress | None]
) -> tuple[Point, dict[tuple[str, int], Point]]:
    """The whole model; and what is left without these sets, and along these orders, and what was lost with them."""
    named = {"harmless": found.harmless, "by zero": found.by_zero, "chosen": found.chosen, "lucky": found.lucky}
    sets = {(name, 0): Intervention(some) for name, some in named.items() if some}
    sets |= {("share", i): Intervention(heads) for i, (_, _, heads) in enumerate(found.prunable) if heads}
    if found.harmless and "mean" in found.replacements:
        sets["means", 0] = Intervention(found.harmless, "mean")
    own = found.orders["together"]
    if clock.fits("each head's own drop, added up", len(own), experiment.n):
        sets |= {("alone", k): each for k, each in enumerate(_one_by_one(own), start=1)}
    outcome = run_interventions(
        experiment, list(sets.values()), batch_size=batch_size, proven=True, progress=part("sets")
    )
    scores, report, done = list(outcome.scores), part("curves"), 0.0
    for name, order in sorted(found.orders.items(), key=lambda each: each[0] != "greedy"):
        if clock.fits(f"what is left in the order of '{name}'", len(order), experiment.n):
            here = _part(report, done, done + 1 / len(found.orders))
            steps = [[head] for head in order]
            scores.extend(scores_along(experiment, [steps], batch_size=batch_size, progress=here)[0])
            sets |= {(name, k): Intervention(tuple(order[:k])) for k in range(1, len(order) + 1)}
        done += 1 / len(found.orders)
    drops = compare(experiment, outcome.clean, scores, "sets")

    def point(heads: Sequence[HeadId], scores: NDArray[np.float64], drop: PairedDifference, name: str) -> Point:
        last, ends = str(heads[-1]) if heads else None, interval_of(experiment, scores, name)
        return Point(len(heads), last, float(experiment.aggregate(scores)), *ends, drop)

    return point((), outcome.clean, PairedDifference(0.0, 0.0, 0.0, 1.0), "whole"), {
        name: point(each.heads, its, drop, f"{name}")
        for (name, each), its, drop in zip(sets.items(), scores, drops, strict=True)
    }


def _curves(
    found: _Choice, whole: Point, points: Mapping[tuple[str, int], Point], *, is_accuracy: bool
) -> tuple[Curve, ...]:
    """Those that there was time for; of greedy removal, at least what is left in the end."""
    curves = []
    own = [points["alone", k] for k in range(1, len(found.orders["together"]) + 1) if ("alone", k) in points]
    if own:
        left = whole.score - np.cumsum([whole.score - each.score for each in own])
        left = left.clip(0, 1) if is_accuracy else left
        promised = [
            Point(k, each.head, at, at, at) for k, (each, at) in enumerate(zip(own, left.tolist(), strict=True), 1)
        ]
        curves.append(Curve("alone", (whole, *promised)))
    for name, order in {"greedy": (), **found.orders}.items():
        measured = [points[name, k] for k in range(1, len(order) + 1) if (name, k) in points]
        if name == "greedy" and not measured and found.chosen:
            measured = [points["chosen", 0]]
        if measured or name == "greedy":
            curves.append(Curve(name, (whole, *measured)))
    return tuple(sorted(curves, key=lambda curve: NAMES.index(curve.name)))


def _chance(
    experiment: Experiment, n_orders: int, batch_size: int, clock: Clock, progress: Progress | None
) -> tuple[tuple[RandomBaseline, ...], int]:
    """Quantiles of random orders, and of how many."""
    heads, rng = experiment.sites.heads, stream(0, "random orders")
    orders = [[heads[i] for i in rng.permutation(len(heads))] for _ in range(n_orders)]
    # All of them is all of them, in any order; and a band needs no more than so many points.
    sizes = sorted({round(k) for k in np.linspace(1, len(heads) - 1, min(len(heads) - 1, MOST_SIZES))})
    figures = list[NDArray[np.float64]]()
    for order in orders if sizes else ():
        if not clock.fits(f"{n_orders - len(figures):,} of {n_orders:,} random orders", len(sizes), experiment.n):
            break
        steps = [order[i:j] for i, j in zip([0, *sizes], sizes, strict=False)]
        figures.append(experiment.aggregate(scores_along(experiment, [steps], batch_size=batch_size)[0]))
        if progress:
            progress(len(figures), n_orders)
    if progress:
        progress(1, 1)
    if not figures:
        return (), n_orders if not sizes else 0
    quantiles = np.quantile(figures, [0.1, 0.5, 0.9], axis=0).T
    return tuple(RandomBaseline(k, *map(float, ends)) for k, ends in zip(sizes, quantiles, strict=True)), len(figures)
