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
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headcount.analysis.ablation import Ablated, ablate, compare, interval_of
from headcount.analysis.bands import IMPORTANT, band_of
from headcount.analysis.subjects import Block, Score, Subject
from headcount.analysis.trials import Progress, Trial, run_trials
from headcount.heads import HeadId
from headcount.instruments.kinds import KINDS, all_kinds
from headcount.instruments.sweep import BATCH
from headcount.results import Result
from headcount.seeds import stream
from headcount.statistics import Paired

ORDERS = 20
"""Random orders."""
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
    drop: Paired | None = None
    """What was lost on the same examples, with the interval of that; None where drops are only added up."""


@dataclass(frozen=True)
class Curve:
    """One order of removal."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Chance:
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

    SCHEMA: ClassVar[int] = 3
    """In version 2, heads were called harmless that are so by zero alone."""
    run: str
    model: str
    """The digest of the weights."""
    metric: str
    unit: str
    chosen_on: str
    """The examples that orders were chosen on."""
    measured_on: str
    """And those that every figure here comes from."""
    n: int
    n_heads: int
    kinds: tuple[str, ...]
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
    under: int
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
    chance: tuple[Chance, ...]
    n_orders: int
    n_chance: int
    """Examples per random order."""
    is_share: bool = True
    """Whether each example is right or wrong; else scores are in the metric's own unit, larger being better."""


def prune_curves(
    run: str,
    digest: str,
    choosing: Subject,
    measuring: Subject,
    chancing: Subject,
    loss: float,
    *,
    n_orders: int = ORDERS,
    batch_size: int = BATCH,
    progress: Progress | None = None,
) -> Pruning:
    """All six, chosen on one subject and measured on another; random orders on a third, which may be smaller."""
    heads, steps = choosing.sites.heads, _Steps(progress)
    kinds = _possible(choosing)
    alone = ablate(choosing, kinds, batch_size=batch_size, progress=steps.part(0.15))
    by_zero, in_every_way = _redundant(alone, {"zero"}), _redundant(alone, kinds)
    finer = _with_ties_broken(choosing)
    own = _in_order(finer, batch_size)
    worst = {head: max(look.drop.mean for look in alone.looks if look.head == head) for head in heads}
    gradient = [each.head for each in sorted(alone.condition.importances, key=lambda each: each.importance)]
    greedy, chosen, n_tried = _greedy(finer, loss, batch_size, steps)
    orders = {
        "together": own,
        "every way": sorted(own, key=lambda head: worst[head]),
        "greedy": greedy,
        "gradient": [HeadId.parse(head) for head in gradient],
    }
    trials = {(name, k): Trial(tuple(order[:k])) for name, order in orders.items() for k in range(1, len(order) + 1)}
    trials |= {("alone", k): Trial((head,)) for k, head in enumerate(own, start=1)}
    lucky = _best_random(finer, len(chosen), n_tried, batch_size, steps)
    sets = {"harmless": in_every_way, "by zero": by_zero, "chosen": chosen, "lucky": lucky}
    trials |= {(name, 0): Trial(some) for name, some in sets.items() if some}
    trials |= {("means", 0): Trial(in_every_way, "mean")} if in_every_way else {}
    points = _measured(measuring, trials, batch_size, steps)
    whole = points["whole", 0]
    curves = [
        Curve(name, (whole, *(points[name, k] for k in range(1, len(heads) + 1))))
        for name, order in orders.items()
        if order
    ]
    promise = _promise(whole, [points["alone", k] for k in range(1, len(heads) + 1)], *_range(measuring))
    return Pruning(
        run=run,
        model=digest,
        metric=measuring.metric.name,
        unit=measuring.metric.unit,
        chosen_on=choosing.data,
        measured_on=measuring.data,
        n=measuring.n,
        n_heads=len(heads),
        kinds=kinds,
        loss=loss,
        clean=whole.score,
        harmless=tuple(map(str, in_every_way)),
        harmless_left=points.get(("harmless", 0), whole),
        harmless_means=points.get(("means", 0), whole),
        by_zero=tuple(map(str, by_zero)),
        by_zero_left=points.get(("by zero", 0), whole),
        under=sum(look.drop.mean < IMPORTANT for look in alone.looks if look.kind == "zero"),
        chosen=tuple(map(str, chosen)),
        kept=points.get(("chosen", 0), whole),
        n_tried=n_tried,
        best_random=points.get(("lucky", 0), whole),
        curves=(Curve("alone", promise), *curves),
        chance=_chance(chancing, n_orders, batch_size, steps),
        n_orders=n_orders,
        n_chance=chancing.n,
        is_share=measuring.metric.is_share,
    )


def _measured(
    subject: Subject, trials: Mapping[tuple[str, int], Trial], batch_size: int, steps: _Steps
) -> dict[tuple[str, int], Point]:
    """What is left without these heads, and what was lost with them; and the whole model."""
    found = run_trials(subject, list(trials.values()), batch_size=batch_size, proven=True, progress=steps.part(0.1))
    drops = compare(subject, found.clean, list(found.scores), "sets")
    points = {("whole", 0): _point(subject, (), found.clean, Paired(0.0, 0.0, 0.0, 1.0), "whole")}
    for (name, trial), scores, drop in zip(trials.items(), found.scores, drops, strict=True):
        points[name] = _point(subject, trial.heads, scores, drop, f"{name}")
    return points


def _point(subject: Subject, removed: Sequence[HeadId], scores: NDArray[np.float64], drop: Paired, name: str) -> Point:
    last = str(removed[-1]) if removed else None
    return Point(len(removed), last, float(subject.figure(scores)), *interval_of(subject, scores, name), drop)


def _range(subject: Subject) -> tuple[float, float]:
    """What a score can be."""
    return (0.0, 1.0) if subject.metric.is_share else (-math.inf, math.inf)


def _possible(subject: Subject) -> tuple[str, ...]:
    """Ways of silencing; another example cannot stand in for one that is alone in its length."""
    alone = min(block.n_inputs for block in subject.blocks) < 2
    kinds = sorted(all_kinds(), key=lambda kind: kind != "zero")  # which is what cutting does
    return tuple(kind for kind in kinds if not (alone and KINDS.get(kind).needs_others))


def _redundant(alone: Ablated, kinds: Collection[str]) -> tuple[HeadId, ...]:
    """Heads whose whole interval lies under 1 point by each of these kinds."""
    costly = {look.head for look in alone.looks if look.kind in kinds and band_of(look.drop) != "redundant"}
    return tuple(head for head in dict.fromkeys(look.head for look in alone.looks) if head not in costly)


def _in_order(subject: Subject, batch_size: int) -> list[HeadId]:
    """Heads in the order of what they cost alone by zero."""
    heads = subject.sites.heads
    found = run_trials(subject, [Trial((head,)) for head in heads], batch_size=batch_size, proven=True)
    return [heads[i] for i in np.argsort(-subject.figure(found.scores), kind="stable")]


def _greedy(
    subject: Subject, loss: float, batch_size: int, steps: _Steps
) -> tuple[list[HeadId], tuple[HeadId, ...], int]:
    """All heads in the order of greedy removal, those that go for at most `loss`, and how many sets were tried."""
    removed, n_within, n_tried = list[HeadId](), 0, 0
    left, clean = list(subject.sites.heads), None
    total = len(left) * (len(left) + 1) // 2
    report, done, within = steps.part(0.4), 0, True
    while left:
        found = run_trials(subject, [Trial((head,)) for head in left], base=removed, batch_size=batch_size, proven=True)
        clean = float(subject.figure(found.clean)) if clean is None else clean
        left_over = subject.figure(found.scores)
        best = int(left_over.argmax())
        done += len(left)
        within = within and bool(clean - left_over[best] <= loss + TIE)
        n_within, n_tried = n_within + within, n_tried + within * len(left)
        removed.append(left.pop(best))
        report(done, total)
    return removed, tuple(removed[:n_within]), n_tried


def _best_random(subject: Subject, size: int, n_tried: int, batch_size: int, steps: _Steps) -> tuple[HeadId, ...]:
    """Of so many random sets of this size, the one that leaves most."""
    heads, rng, report = subject.sites.heads, stream(0, "random sets"), steps.part(0.2)
    if not 0 < size < len(heads):
        return ()
    trials = [Trial(tuple(heads[i] for i in rng.permutation(len(heads))[:size])) for _ in range(n_tried)]
    found = run_trials(subject, trials, batch_size=batch_size, proven=True, progress=report)
    return trials[int(subject.figure(found.scores).argmax())].heads


def _chance(subject: Subject, n_orders: int, batch_size: int, steps: _Steps) -> tuple[Chance, ...]:
    heads = subject.sites.heads
    rng = stream(0, "random orders")
    orders = [[heads[i] for i in rng.permutation(len(heads))] for _ in range(n_orders)]
    # All of them is all of them, in any order; and a band needs no more than so many points.
    sizes = sorted({round(k) for k in np.linspace(1, len(heads) - 1, min(len(heads) - 1, MOST_SIZES))})
    trials = [Trial(tuple(order[:k])) for k in sizes for order in orders]
    found = run_trials(subject, trials, batch_size=batch_size, proven=True, progress=steps.part(0.15))
    by_size = subject.figure(found.scores).reshape(len(sizes), n_orders)
    quantiles = np.quantile(by_size, [0.1, 0.5, 0.9], axis=1).T
    return tuple(Chance(k, *map(float, ends)) for k, ends in zip(sizes, quantiles, strict=True))


def _promise(whole: Point, alone: Sequence[Point], least: float, most: float) -> tuple[Point, ...]:
    """What is left if drops simply added up."""
    points, lost = [whole], 0.0
    for k, point in enumerate(alone, start=1):
        lost += whole.score - point.score
        left = min(most, max(least, whole.score - lost))
        points.append(Point(k, point.head, left, left, left))
    return tuple(points)


def _with_ties_broken(subject: Subject) -> Subject:
    """Where hits are equal, the loss decides: a hit in ten thousand weighs more than any loss."""
    if not subject.metric.is_share:
        return subject
    return replace(subject, blocks=tuple(replace(block, score=_finer(block)) for block in subject.blocks))


def _finer(block: Block) -> Score:
    assert block.loss is not None, "tasks have a loss"
    loss: Callable[[Tensor], Tensor] = block.loss

    def score(output: Tensor) -> Tensor:
        worse = loss(output).cpu().double()  # in single precision, 1 less a ten-thousandth of a small loss is 1
        return block.score(output).cpu().double() - TIE * worse / (1 + worse)

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
