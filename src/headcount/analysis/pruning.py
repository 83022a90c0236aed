"""How many heads can go, and which? Removed together, not one at a time.

Five answers to that, drawn as one figure. Orders are chosen on one set of examples and measured on another:

    alone      each head's own drop, added up: what "individually harmless" promises
    together   the same order, the heads really removed together
    greedy     at each step the head whose removal costs least, measured again after every removal
    gradient   in the order of gradient importance
    random     random orders, the null: a method that does no better has found nothing
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headcount.analysis.ablation import compare, interval_of
from headcount.analysis.bands import IMPORTANT, band_of
from headcount.analysis.importance import importances
from headcount.analysis.subjects import Block, Score, Subject
from headcount.analysis.trials import Progress, Trial, run_trials
from headcount.heads import HeadId
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

    SCHEMA: ClassVar[int] = 2
    """In version 1, intervals of scores were those of the drops."""
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
    loss: float
    clean: float
    harmless: tuple[str, ...]
    """Heads that cost under 1 point alone, by the interval."""
    under: int
    """Heads whose drop alone is under 1 point, by the point estimate: what reports count."""
    together: Point
    """All harmless heads removed together."""
    chosen: tuple[str, ...]
    """What greedy removal takes before it loses more than `loss` on the examples it chooses on, in order."""
    kept: Point
    """What is left after that, on the other examples."""
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
    """All five, chosen on one subject and measured on another; random orders on a third, which may be smaller."""
    heads = choosing.sites.heads
    steps = _Steps(progress)
    alone, harmless, under = _alone(choosing, batch_size, steps)
    gradient = [HeadId.parse(each.head) for each in sorted(importances(choosing), key=lambda each: each.importance)]
    greedy, chosen = _greedy(choosing, loss, batch_size, steps)
    orders = {"together": alone, "greedy": greedy, "gradient": gradient}
    sets = [tuple(order[:k]) for order in orders.values() for k in range(1, len(heads) + 1)]
    sets += [(head,) for head in alone] + [harmless or (alone[0],), chosen or (alone[0],)]
    trials = [Trial(each) for each in sets]
    found = run_trials(measuring, trials, batch_size=batch_size, proven=True, progress=steps.part(0.1))
    points = [
        _measured(measuring, found.clean, scores, removed, f"set {i}")
        for i, (removed, scores) in enumerate(zip(sets, found.scores, strict=True))
    ]
    whole = _measured(measuring, found.clean, found.clean, (), "whole")
    n = len(heads)
    curves = [Curve(name, (whole, *points[i * n : (i + 1) * n])) for i, name in enumerate(orders) if orders[name]]
    promise = _promise(whole, points[3 * n : 4 * n], *_range(measuring))
    return Pruning(
        run=run,
        model=digest,
        metric=measuring.metric.name,
        unit=measuring.metric.unit,
        chosen_on=choosing.data,
        measured_on=measuring.data,
        n=measuring.n,
        n_heads=n,
        loss=loss,
        clean=whole.score,
        harmless=tuple(map(str, harmless)),
        under=under,
        together=points[-2] if harmless else whole,
        chosen=tuple(map(str, chosen)),
        kept=points[-1] if chosen else whole,
        curves=(Curve("alone", promise), *curves),
        chance=_chance(chancing, n_orders, batch_size, steps),
        n_orders=n_orders,
        n_chance=chancing.n,
        is_share=measuring.metric.is_share,
    )


def _measured(
    subject: Subject,
    clean: NDArray[np.float64],
    scores: NDArray[np.float64],
    removed: Sequence[HeadId],
    name: str,
) -> Point:
    """What is left without these heads, and what was lost with them."""
    last = str(removed[-1]) if removed else None
    drop = compare(subject, clean, scores, name) if removed else Paired(0.0, 0.0, 0.0, 1.0)
    return Point(len(removed), last, float(subject.figure(scores)), *interval_of(subject, scores, name), drop)


def _range(subject: Subject) -> tuple[float, float]:
    """What a score can be."""
    return (0.0, 1.0) if subject.metric.is_share else (-math.inf, math.inf)


def _alone(subject: Subject, batch_size: int, steps: _Steps) -> tuple[list[HeadId], tuple[HeadId, ...], int]:
    """Heads in the order of what they cost alone; those that are harmless; how many seem to be."""
    heads = subject.sites.heads
    found = run_trials(_with_ties_broken(subject), [Trial((head,)) for head in heads], batch_size=batch_size)
    steps.part(0.05)(1, 1)
    order = [heads[i] for i in np.argsort(-subject.figure(found.scores), kind="stable")]
    clean, *silenced = (_hits(subject, scores) for scores in (found.clean, *found.scores))
    drops = [compare(subject, clean, scores, f"alone {i}") for i, scores in enumerate(silenced)]
    harmless = tuple(head for head, drop in zip(heads, drops, strict=True) if band_of(drop) == "redundant")
    return order, harmless, sum(drop.mean < IMPORTANT for drop in drops)


def _greedy(subject: Subject, loss: float, batch_size: int, steps: _Steps) -> tuple[list[HeadId], tuple[HeadId, ...]]:
    """All heads in the order of greedy removal, and those that go before more than `loss` is lost."""
    subject, removed, n_within = _with_ties_broken(subject), list[HeadId](), 0
    left, clean = list(subject.sites.heads), None
    total = len(left) * (len(left) + 1) // 2
    report, done, within = steps.part(0.6), 0, True
    while left:
        found = run_trials(subject, [Trial((head,)) for head in left], base=removed, batch_size=batch_size, proven=True)
        clean = float(subject.figure(found.clean)) if clean is None else clean
        left_over = subject.figure(found.scores)
        best = int(left_over.argmax())
        done += len(left)
        removed.append(left.pop(best))
        within = within and bool(clean - left_over[best] <= loss + TIE)
        n_within += within
        report(done, total)
    return removed, tuple(removed[:n_within])


def _chance(subject: Subject, n_orders: int, batch_size: int, steps: _Steps) -> tuple[Chance, ...]:
    heads = subject.sites.heads
    rng = stream(0, "random orders")
    orders = [[heads[i] for i in rng.permutation(len(heads))] for _ in range(n_orders)]
    # All of them is all of them, in any order; and a band needs no more than so many points.
    sizes = sorted({round(k) for k in np.linspace(1, len(heads) - 1, min(len(heads) - 1, MOST_SIZES))})
    trials = [Trial(tuple(order[:k])) for k in sizes for order in orders]
    found = run_trials(subject, trials, batch_size=batch_size, proven=True, progress=steps.part(0.25))
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
        worse = loss(output).double()  # in single precision, 1 less a ten-thousandth of a small loss is 1
        return block.score(output).double() - TIE * worse / (1 + worse)

    return score


def _hits(subject: Subject, scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Hits again, from scores whose ties were broken."""
    return np.abs(scores.round()) if subject.metric.is_share else scores


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
