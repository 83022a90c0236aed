"""How many heads can be removed together, and which?

Six ways to choose heads are compared. Orders of removal are chosen on one set of examples (pruning_orders.py), and the
scores without the heads are measured on another:

    alone      sum of the drops of single heads under zero ablation: the prediction if heads were independent
    together   the same order, with the heads removed together
    every way  order of the largest drop of each head under any kind of ablation (zero, mean or resample)
    greedy     at each step, the head whose removal costs least, measured again after every removal
    gradient   order of gradient importance
    random     random orders: the baseline without a search; and the best of as many random sets as greedy tried, chosen
               on the same examples: the baseline of an uninformed search
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from headcount.analysis.ablation import Ablation
from headcount.analysis.contradictions import pruning_contradictions
from headcount.analysis.greedy_pruning import Clock
from headcount.analysis.pruning_orders import HeadChoice, choose_heads, one_by_one
from headcount.experiments.drops import compare, interval_of
from headcount.experiments.experiment import Experiment
from headcount.experiments.interventions import Progress, run_interventions
from headcount.experiments.removal import scores_along
from headcount.heads import HeadId
from headcount.hooks.replay import Intervention
from headcount.limits import BATCH, DONORS, ORDERS
from headcount.results import Contradiction, Count, HeadName, Positive, Result, Size
from headcount.seeds import stream
from headcount.stats import PairedDifference

NAMES = ("alone", "together", "every way", "greedy", "gradient")
"""Names of the pruning curves, in the order in which they are drawn."""
MOST_SIZES = 16
"""Largest number of points (numbers of removed heads) at which random orders are measured."""


@dataclass(frozen=True)
class Point:
    """The score of a model after the removal of some heads: one point of a pruning curve."""

    n_removed: Count
    head: HeadName | None
    """The head that was removed last; None if no head was removed."""
    score: float
    low: float
    """Lower end of the 95 % CI of the score; equal to the score if it is only predicted from drops of single heads."""
    high: float
    """Upper end of the 95 % CI of the score; equal to the score if it is only predicted from drops of single heads."""
    drop: PairedDifference | None = None
    """Drop from the score with all heads, paired on the same examples; None if the score is only predicted."""


@dataclass(frozen=True)
class PruningCurve:
    """The scores of a model as heads are removed in one order."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class RandomBaseline:
    """Score after the removal of random heads: quantiles over random orders of removal."""

    n_removed: Positive
    low: float
    """10th percentile of the score over random orders."""
    median: float
    high: float
    """90th percentile of the score over random orders."""


@dataclass(frozen=True)
class PrunableShare:
    """How many heads can be removed for at most a given loss of score."""

    loss: float
    n_alone: int
    """Number of heads that cost less than the loss when removed alone, by the whole 95 % CI of their drop."""
    n_together: int
    """Number of heads that greedy removal can remove together for at most the loss, on the examples for choosing."""
    left: Point
    """Score on held-out examples without the heads that greedy removal removes together for at most the loss."""


@dataclass(frozen=True)
class Pruning(Result):
    """The scores of a model as heads are removed together in several orders, which were chosen on other examples."""

    ROWS: ClassVar[tuple[str, ...]] = ("curves.points",)
    SCHEMA: ClassVar[int] = 5
    name: str
    weights_sha256: str
    metric: str
    unit: str
    chosen_on: str
    """Description of the examples on which orders of removal were chosen."""
    measured_on: str
    """Description of the held-out examples on which all scores were measured."""
    n: Positive
    """Number of held-out examples on which all scores were measured."""
    n_heads: Positive
    replacements: tuple[str, ...]
    """Kinds of ablation with which single heads were ablated: zero, mean, resample."""
    loss: Size
    """Largest drop in score that greedy removal may cause on the examples for choosing."""
    clean: float
    """Score of the model with all heads."""
    harmless: tuple[HeadName, ...]
    """Heads that are harmless alone: under every kind of ablation, the whole 95 % CI of the drop lies below 1 point.

    `alone_on` describes the examples.
    """
    harmless_left: Point
    """Score with all harmless heads removed together (set to zero)."""
    harmless_means: Point
    """Score with all harmless heads replaced by their mean outputs; the CI ignores the uncertainty of the means."""
    by_zero: tuple[HeadName, ...]
    """Heads whose drop under zero ablation, when removed alone, lies below 1 point with its whole 95 % CI."""
    by_zero_left: Point
    """Score with all heads of `by_zero` removed together."""
    n_under_1_point: Count
    """Number of heads whose drop under zero ablation, when removed alone, is estimated below 1 point."""
    chosen: tuple[HeadName, ...]
    """Heads that greedy removal removed, in order: as many as `loss` (on the examples for choosing) or `share` allows.
    """
    kept: Point
    """Score with the chosen heads removed."""
    n_tried: Count
    """Number of sets of heads that greedy removal measured, on some or all examples, to choose these heads."""
    n_random: Count
    """Number of random sets of as many heads that were tried: equal to n_tried, unless the time ran out."""
    best_random: Point
    """Score without the best of the random sets, which was chosen on the same examples as the greedy one."""
    curves: tuple[PruningCurve, ...]
    chance: tuple[RandomBaseline, ...]
    """Quantiles of the score as heads are removed in random orders."""
    n_orders: Count
    """Number of random orders in which heads were removed."""
    n_chance: Positive
    """Number of examples on which each random order was measured."""
    is_accuracy: bool = True
    """Whether each example is right or wrong. If not, scores are in the metric's unit, and larger is better."""
    budget: Size | None = None
    """Time limit of the search for heads in seconds; None without a limit."""
    not_measured: tuple[str, ...] = ()
    """Descriptions of the steps that were skipped because the time limit did not allow them."""
    prunable: tuple[PrunableShare, ...] = ()
    """How many heads can be removed for a loss of 1 and of 5 points; empty for a metric without points."""
    alone_on: str = ""
    """Description of the examples of a stored ablation of single heads; empty if they are those of `chosen_on`."""
    audit: str = ""
    """Root cause reported by the quick audit; empty if every check passed."""
    share: float | None = None
    """Share of all heads that was to be removed whatever the loss; None if `loss` was the limit."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if the points of curves, the lists of heads and the number of examples disagree."""
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
    """Choose orders of removing heads on `selection_set`, and measure the scores without them on `test_set`.

    Random orders are measured on `null_set`. If an `ablation` of this model is given, its harmless heads are used, so
    that both results agree. With a `share`, heads are removed until that share of them is gone, whatever the loss. With
    a `budget` in seconds, steps that do not fit are skipped; the most important steps come first.
    """
    clock = Clock(budget)
    selection_set = clock.affordable(selection_set)
    part = _parts(progress, selection_set, test_set, null_set, n_orders)
    choice = choose_heads(selection_set, loss, share, batch_size, clock, part, ablation)
    whole, points = _points(test_set, choice, batch_size, clock, part)
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
        replacements=choice.replacements,
        loss=loss,
        clean=whole.score,
        harmless=tuple(map(str, choice.harmless)),
        harmless_left=points.get(("harmless", 0), whole),
        harmless_means=points.get(("means", 0), whole),
        by_zero=tuple(map(str, choice.by_zero)),
        by_zero_left=points.get(("by zero", 0), whole),
        n_under_1_point=choice.n_under_1_point,
        chosen=tuple(map(str, choice.chosen)),
        kept=points.get(("chosen", 0), whole),
        n_tried=choice.n_tried,
        n_random=choice.n_random,
        best_random=points.get(("lucky", 0), whole),
        curves=_curves(choice, whole, points, is_accuracy=metric.is_accuracy),
        chance=chance,
        n_orders=n_orders,
        n_chance=null_set.n,
        is_accuracy=metric.is_accuracy,
        budget=budget,
        not_measured=tuple(clock.skipped),
        prunable=tuple(
            PrunableShare(limit, n_alone, len(heads), points.get(("share", i), whole))
            for i, (limit, n_alone, heads) in enumerate(choice.prunable if metric.in_points else ())
        ),
        alone_on=_named_examples(ablation),
        share=share,
    )


def _named_examples(ablation: Ablation | None) -> str:
    """Describe the examples on which a stored ablation was measured; return an empty text if there is none."""
    if ablation is None:
        return ""
    condition = ablation.conditions[0]
    return f"{condition.data} and new examples" if condition.decided_on else condition.data


def _parts(
    progress: Progress | None, selection_set: Experiment, test_set: Experiment, null_set: Experiment, n_orders: int
) -> Callable[[str], Progress | None]:
    """Return a function that gives each step of pruning its own progress callback, by the step's name.

    A step gets a part of the progress bar that is proportional to its expected number of forward passes.
    """
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
    """Return a progress callback for one step, which covers the fractions `start` to `end` of the whole progress."""
    return progress and (lambda done, total: progress(max(1, round(100 * (start + (end - start) * done / total))), 100))


def _points(
    experiment: Experiment, choice: HeadChoice, batch_size: int, clock: Clock, part: Callable[[str], Progress | None]
) -> tuple[Point, dict[tuple[str, int], Point]]:
    """Measure the score of the whole model, without each chosen set of heads, and along each chosen order of removal.

    Points are keyed by a name and a number. The bootstrap of a CI draws from a random stream of that name.
    """
    named = {
        "harmless": choice.harmless,
        "by zero": choice.by_zero,
        "chosen": choice.chosen,
        "lucky": choice.best_random,
    }
    sets = {(name, 0): Intervention(heads) for name, heads in named.items() if heads}
    sets |= {("share", i): Intervention(heads) for i, (_, _, heads) in enumerate(choice.prunable) if heads}
    if choice.harmless and "mean" in choice.replacements:
        sets["means", 0] = Intervention(choice.harmless, "mean")
    by_drop = choice.orders["together"]
    if clock.fits("the sum of the drops of single heads", len(by_drop), experiment.n):
        sets |= {("alone", k): intervention for k, intervention in enumerate(one_by_one(by_drop), start=1)}
    outcome = run_interventions(
        experiment, list(sets.values()), batch_size=batch_size, proven=True, progress=part("sets")
    )
    scores, report, done = list(outcome.scores), part("curves"), 0.0
    for name, order in sorted(choice.orders.items(), key=lambda item: item[0] != "greedy"):
        if clock.fits(f"the scores along the order '{name}'", len(order), experiment.n):
            here = _part(report, done, done + 1 / len(choice.orders))
            steps = [[head] for head in order]
            scores.extend(scores_along(experiment, [steps], batch_size=batch_size, progress=here)[0])
            sets |= {(name, k): Intervention(tuple(order[:k])) for k in range(1, len(order) + 1)}
        done += 1 / len(choice.orders)
    drops = compare(experiment, outcome.clean, scores, "sets")

    def point(heads: Sequence[HeadId], scores: NDArray[np.float64], drop: PairedDifference, name: str) -> Point:
        last, ends = str(heads[-1]) if heads else None, interval_of(experiment, scores, name)
        return Point(len(heads), last, float(experiment.aggregate(scores)), *ends, drop)

    return point((), outcome.clean, PairedDifference(0.0, 0.0, 0.0, 1.0), "whole"), {
        name: point(intervention.heads, of_set, drop, f"{name}")
        for (name, intervention), of_set, drop in zip(sets.items(), scores, drops, strict=True)
    }


def _curves(
    choice: HeadChoice, whole: Point, points: Mapping[tuple[str, int], Point], *, is_accuracy: bool
) -> tuple[PruningCurve, ...]:
    """Return the pruning curves that were measured within the time; the greedy curve has at least its end point."""
    curves = []
    alone = [points["alone", k] for k in range(1, len(choice.orders["together"]) + 1) if ("alone", k) in points]
    if alone:
        left = whole.score - np.cumsum([whole.score - point.score for point in alone])
        left = left.clip(0, 1) if is_accuracy else left
        predicted = (
            Point(k, point.head, score, score, score)
            for k, (point, score) in enumerate(zip(alone, left.tolist(), strict=True), start=1)
        )
        curves.append(PruningCurve("alone", (whole, *predicted)))
    for name, order in {"greedy": (), **choice.orders}.items():
        along = [points[name, k] for k in range(1, len(order) + 1) if (name, k) in points]
        if name == "greedy" and not along and choice.chosen:
            along = [points["chosen", 0]]
        if along or name == "greedy":
            curves.append(PruningCurve(name, (whole, *along)))
    return tuple(sorted(curves, key=lambda curve: NAMES.index(curve.name)))


def _chance(
    experiment: Experiment, n_orders: int, batch_size: int, clock: Clock, progress: Progress | None
) -> tuple[tuple[RandomBaseline, ...], int]:
    """Remove heads in random orders; return quantiles of the score over orders, and the number of orders measured."""
    heads, rng = experiment.sites.heads, stream(0, "random orders")
    orders = [[heads[i] for i in rng.permutation(len(heads))] for _ in range(n_orders)]
    # Without any head, all orders end at the same score, so this size is left out.
    sizes = sorted({round(k) for k in np.linspace(1, len(heads) - 1, min(len(heads) - 1, MOST_SIZES))})
    scores = list[NDArray[np.float64]]()
    for order in orders if sizes else ():
        if not clock.fits(f"{n_orders - len(scores):,} of {n_orders:,} random orders", len(sizes), experiment.n):
            break
        steps = [order[i:j] for i, j in zip([0, *sizes], sizes, strict=False)]
        scores.append(experiment.aggregate(scores_along(experiment, [steps], batch_size=batch_size)[0]))
        if progress:
            progress(len(scores), n_orders)
    if progress:
        progress(1, 1)
    if not scores:
        return (), n_orders if not sizes else 0
    quantiles = np.quantile(scores, [0.1, 0.5, 0.9], axis=0).T
    return tuple(RandomBaseline(k, *map(float, ends)) for k, ends in zip(sizes, quantiles, strict=True)), len(scores)
