"""How many heads can go, and which? Removed together, not one at a time; and what a model costs without them.

Six answers to that, drawn as one figure. Orders are chosen on one set of examples and measured on another:

    alone      each head's own drop by zero, added up: what "individually harmless" promises
    together   the same order, the heads really removed together
    every way  in the order of the largest drop that any replacement caused: misleading others counts too
    greedy     at each step the head whose removal costs least, measured again after every removal
    gradient   in the order of gradient importance
    random     random orders: what no search at all finds; and the best of as many random sets as greedy tried, chosen
               as greedy chooses: what a search finds that does not look where it goes
"""

import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headcount.analysis.ablation import AblationRun, ablate
from headcount.bands import IMPORTANT, band_of
from headcount.data.dataset import EvalBatch, Score
from headcount.experiments.experiment import Experiment
from headcount.experiments.interventions import Outcome, Progress, compare, interval_of, run_interventions
from headcount.experiments.models import OpenModel
from headcount.heads import HeadId
from headcount.hooks import REPLACEMENTS
from headcount.hooks.gates import eval_mode
from headcount.hooks.replay import Intervention
from headcount.limits import BATCH, ORDERS
from headcount.results import Result
from headcount.seeds import stream
from headcount.stats import PairedDifference
from headcount.surgery.cutting import Cut
from headcount.training.device import n_threads

MOST_SIZES = 32
"""Numbers of removed heads at which random orders are measured."""
TIE = 1e-4
"""How much the loss counts where hits are equal: less than one hit in ten thousand."""
ROUNDS = 9
"""In which the time of a forward pass is measured."""
TIMED = 4
"""Batches of examples in each round."""
Run = Callable[..., Outcome]
"""`run_interventions`, on a model on which the hooks were proven."""


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
    """With which heads were ablated, one at a time."""
    loss: float
    clean: float
    harmless: tuple[str, ...]
    """Heads that cost under 1 point alone with every replacement, by the interval."""
    harmless_left: Point
    """All of those removed together."""
    harmless_means: Point
    """All of those replaced by their means together; intervals are for these means."""
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


@dataclass(frozen=True)
class Cost(Result):
    """One model beside the one it was cut from."""

    SCHEMA: ClassVar[int] = 4
    FORMER: ClassVar[Mapping[str, str]] = {"run": "name", "is_share": "is_accuracy"}
    parent: str
    name: str
    heads: tuple[str, ...]
    """Those that were cut out."""
    n_heads: tuple[int, int]
    lost_blocks: tuple[str, ...]
    """Attention blocks that are gone as a whole."""
    parameters: tuple[int, int]
    n_bytes: tuple[int, int]
    microseconds: tuple[float, float]
    """Per example in a forward pass of 128, one thread on a CPU: median of rounds that alternate."""
    faster: float
    """Median of the rounds' ratios."""
    difference: float
    """From the parent with those heads ablated or, if they were folded, at their means: as a share of the largest
    logit, before any fine-tuning."""
    score: tuple[float, float]
    score_intervals: tuple[tuple[float, float], tuple[float, float]]
    """95 % interval of each of the two by itself."""
    drop: PairedDifference
    """Of the two on the same examples."""
    data: str
    fine_tuned: int
    metric: str = ""
    unit: str = "points"
    is_accuracy: bool = True
    folded_over: int = 0
    """Unlabelled examples over which the means were taken that stayed in the biases; 0 if nothing stayed."""


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
    """All six, chosen on one set and measured on another; random orders on a third, which may be smaller."""
    run = partial(run_interventions, batch_size=batch_size, proven=True)
    heads, metric = selection_set.sites.heads, test_set.metric
    is_alone = min(batch.n_inputs for batch in selection_set.batches) < 2  # in its length, so that it has no donor
    replacements = tuple(
        replacement
        for replacement in sorted(REPLACEMENTS.names(), key=lambda name: name != "zero")  # which is what cutting does
        if not (is_alone and REPLACEMENTS.get(replacement).needs_donors)
    )
    alone = ablate(selection_set, replacements, batch_size=batch_size, progress=_part(progress, 0, 15))
    by_zero, harmless = _redundant(alone, {"zero"}), _redundant(alone, replacements)
    worst = {head: max(each.drop.mean for each in alone.measurements if each.head == head) for head in heads}
    importance = {each.head: each.importance for each in alone.condition.importances}
    finer = _with_ties_broken(selection_set)
    found = run(finer, [Intervention((head,)) for head in heads])
    own = [heads[i] for i in np.argsort(-finer.aggregate(found.scores), kind="stable")]
    greedy, chosen, n_tried = _greedy(finer, loss, run, _part(progress, 15, 55))
    orders = {
        "together": own,
        "every way": sorted(own, key=lambda head: worst[head]),
        "greedy": greedy,
        "gradient": sorted(heads, key=lambda head: importance[str(head)]) if importance else [],
    }
    interventions = {
        (name, k): Intervention(tuple(order[:k])) for name, order in orders.items() for k in range(1, len(order) + 1)
    }
    interventions |= {("alone", k): Intervention((head,)) for k, head in enumerate(own, start=1)}
    lucky = _best_random(finer, len(chosen), n_tried, run, _part(progress, 55, 75))
    sets = {"harmless": harmless, "by zero": by_zero, "chosen": chosen, "lucky": lucky}
    interventions |= {(name, 0): Intervention(some) for name, some in sets.items() if some}
    interventions |= {("means", 0): Intervention(harmless, "mean")} if harmless else {}
    whole, points = _points(test_set, interventions, run, _part(progress, 75, 85))
    sizes = range(1, len(heads) + 1)
    added_up = whole.score - np.cumsum([whole.score - points["alone", k].score for k in sizes])
    if metric.is_accuracy:
        added_up = added_up.clip(0, 1)
    promised = [Point(k, str(own[k - 1]), left, left, left) for k, left in zip(sizes, added_up.tolist(), strict=True)]
    measured = {name: [points[name, k] for k in sizes] for name, order in orders.items() if order}
    return Pruning(
        name=name,
        weights_sha256=weights_sha256,
        metric=metric.name,
        unit=metric.unit,
        chosen_on=selection_set.data,
        measured_on=test_set.data,
        n=test_set.n,
        n_heads=len(heads),
        replacements=replacements,
        loss=loss,
        clean=whole.score,
        harmless=tuple(map(str, harmless)),
        harmless_left=points.get(("harmless", 0), whole),
        harmless_means=points.get(("means", 0), whole),
        by_zero=tuple(map(str, by_zero)),
        by_zero_left=points.get(("by zero", 0), whole),
        n_under_1_point=sum(each.drop.mean < IMPORTANT for each in alone.measurements if each.replacement == "zero"),
        chosen=tuple(map(str, chosen)),
        kept=points.get(("chosen", 0), whole),
        n_tried=n_tried,
        best_random=points.get(("lucky", 0), whole),
        curves=tuple(Curve(name, (whole, *some)) for name, some in {"alone": promised, **measured}.items()),
        chance=_chance(null_set, n_orders, run, _part(progress, 85, 100)),
        n_orders=n_orders,
        n_chance=null_set.n,
        is_accuracy=metric.is_accuracy,
    )


def _part(progress: Progress | None, start: int, end: int) -> Progress | None:
    """Progress of a part that takes from `start` to `end` of the whole, in percent."""
    return progress and (lambda done, total: progress(max(1, round(start + (end - start) * done / total)), 100))


def _redundant(alone: AblationRun, replacements: Collection[str]) -> tuple[HeadId, ...]:
    """Heads whose whole interval lies under 1 point with each of these replacements."""
    asked = [each for each in alone.measurements if each.replacement in replacements]
    costly = {each.head for each in asked if band_of(each.drop) != "redundant"}
    return tuple(head for head in dict.fromkeys(each.head for each in asked) if head not in costly)


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


def _greedy(
    experiment: Experiment, loss: float, run: Run, progress: Progress | None
) -> tuple[list[HeadId], tuple[HeadId, ...], int]:
    """All heads in the order of greedy removal, those that go for at most `loss`, and how many sets were tried."""
    left, removed = list(experiment.sites.heads), list[HeadId]()
    total, done, n_within, n_tried = len(left) * (len(left) + 1) // 2, 0, 0, 0
    clean, within = None, True
    while left:
        found = run(experiment, [Intervention((head,)) for head in left], base=removed)
        clean = float(experiment.aggregate(found.clean)) if clean is None else clean
        left_over = experiment.aggregate(found.scores)
        best = int(left_over.argmax())
        done += len(left)
        within = within and bool(clean - left_over[best] <= loss + TIE)
        n_within, n_tried = n_within + within, n_tried + within * len(left)
        removed.append(left.pop(best))
        if progress:
            progress(done, total)
    return removed, tuple(removed[:n_within]), n_tried


def _best_random(
    experiment: Experiment, size: int, n_tried: int, run: Run, progress: Progress | None
) -> tuple[HeadId, ...]:
    """Of so many random sets of this size, the one that leaves most."""
    heads, rng = experiment.sites.heads, stream(0, "random sets")
    if not 0 < size < len(heads):
        return ()
    interventions = [Intervention(tuple(heads[i] for i in rng.permutation(len(heads))[:size])) for _ in range(n_tried)]
    found = run(experiment, interventions, progress=progress)
    return interventions[int(experiment.aggregate(found.scores).argmax())].heads


def _points(
    experiment: Experiment, interventions: Mapping[tuple[str, int], Intervention], run: Run, progress: Progress | None
) -> tuple[Point, dict[tuple[str, int], Point]]:
    """The whole model; and what is left without these heads, and what was lost with them."""
    found = run(experiment, list(interventions.values()), progress=progress)
    drops = compare(experiment, found.clean, list(found.scores), "sets")

    def point(heads: Sequence[HeadId], scores: NDArray[np.float64], drop: PairedDifference, name: str) -> Point:
        last, ends = str(heads[-1]) if heads else None, interval_of(experiment, scores, name)
        return Point(len(heads), last, float(experiment.aggregate(scores)), *ends, drop)

    return point((), found.clean, PairedDifference(0.0, 0.0, 0.0, 1.0), "whole"), {
        name: point(each.heads, scores, drop, f"{name}")
        for (name, each), scores, drop in zip(interventions.items(), found.scores, drops, strict=True)
    }


def _chance(experiment: Experiment, n_orders: int, run: Run, progress: Progress | None) -> tuple[RandomBaseline, ...]:
    heads, rng = experiment.sites.heads, stream(0, "random orders")
    orders = [[heads[i] for i in rng.permutation(len(heads))] for _ in range(n_orders)]
    # All of them is all of them, in any order; and a band needs no more than so many points.
    sizes = sorted({round(k) for k in np.linspace(1, len(heads) - 1, min(len(heads) - 1, MOST_SIZES))})
    interventions = [Intervention(tuple(order[:k])) for k in sizes for order in orders]
    found = run(experiment, interventions, progress=progress)
    by_size = experiment.aggregate(found.scores).reshape(len(sizes), n_orders)
    quantiles = np.quantile(by_size, [0.1, 0.5, 0.9], axis=1).T
    return tuple(RandomBaseline(k, *map(float, ends)) for k, ends in zip(sizes, quantiles, strict=True))


def compare_cost(parent: OpenModel, cut: Cut[OpenModel], experiment: Experiment, fine_tuned: int = 0) -> Cost:
    """Side by side on the examples of an experiment."""
    after, heads = cut.model.module, cut.heads
    scores = np.empty((2, experiment.n))
    for model, its in zip((experiment.model, after), scores, strict=True):
        with eval_mode(model), torch.no_grad():
            for batch in experiment.batches:
                its[batch.rows] = experiment.score(batch, model(*batch.inputs)).cpu().double().numpy()
    times = _times(experiment.model, after, experiment.batches[:TIMED])
    left = set(experiment.sites.heads) - set(heads)
    gone = [site for site in experiment.sites if not left & set(experiment.sites[site].heads)]
    return Cost(
        parent=parent.name,
        name=cut.model.name,
        heads=tuple(map(str, heads)),
        n_heads=(len(experiment.sites.heads), len(left)),
        lost_blocks=tuple(map(str, gone)),
        parameters=(cut.before.parameters, cut.after.parameters),
        n_bytes=(cut.before.n_bytes, cut.after.n_bytes),
        microseconds=(statistics.median(times[0]), statistics.median(times[1])),
        faster=statistics.median(before / after for before, after in zip(*times, strict=True)),
        difference=cut.difference,
        score=(float(experiment.aggregate(scores[0])), float(experiment.aggregate(scores[1]))),
        score_intervals=(interval_of(experiment, scores[0], "before"), interval_of(experiment, scores[1], "after")),
        drop=compare(experiment, scores[0], [scores[1]], "cost")[0],
        data=experiment.data,
        fine_tuned=fine_tuned,
        metric=experiment.metric.name,
        unit=experiment.metric.unit,
        is_accuracy=experiment.metric.is_accuracy,
        folded_over=cut.folded_over,
    )


def _times(before: nn.Module, after: nn.Module, batches: Sequence[EvalBatch]) -> tuple[list[float], list[float]]:
    """Microseconds per example of both, round by round; each round has both side by side."""
    taken: tuple[list[float], list[float]] = ([], [])
    n = sum(len(batch.rows) for batch in batches)
    with n_threads(1), torch.no_grad(), eval_mode(before), eval_mode(after):
        for i in range(ROUNDS + 1):
            for model, times in zip((before, after), taken, strict=True):
                started = time.perf_counter()
                for batch in batches:
                    model(*batch.inputs).flatten()[0].item()  # waits until the device is done
                if i:  # the first round warms up
                    times.append(1e6 * (time.perf_counter() - started) / n)
    return taken
