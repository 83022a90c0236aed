"""In which order can heads go? Greedily: at each step the head that costs least, found without measuring all of them.

To measure every head that is left after every removal takes n (n + 1) / 2 measurements. Two things spare most of them:

    lazy    harm mostly grows as heads go, so what a head cost before is mostly less than what it costs now. Heads stand
            in a queue by what they last cost, and the first is measured again, until the first one is up to date
            (accelerated greedy search: Minoux 1978), or a few were measured. Mostly is not always, so all heads have
            their turn now and then
    races   a head is measured on a quarter of the examples, then on half, then on all of them. What it costs on a part
            is a difference on the same examples, and it is taken to cost `DOUBT` standard errors less: a head that is
            clearly worse than another is out of the race early (Maron and Moore 1994)

A head that is removed was measured on all examples. Sets of heads that are drawn at random race likewise.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from headcount.data.dataset import mean_score
from headcount.experiments.experiment import Experiment
from headcount.experiments.interventions import Progress, Scores, run_interventions
from headcount.experiments.removal import Removal
from headcount.heads import HeadId
from headcount.hooks.gates import eval_mode
from headcount.hooks.proof import first_tensor
from headcount.hooks.replay import Intervention
from headcount.limits import BATCH
from headcount.seeds import stream
from headcount.stats import jackknife

Pair = tuple[Scores, Scores]
"""Scores of the same examples, before and after."""
SHARES = (0.25, 0.5, 1.0)
"""Of the examples, on which a head is measured one after the other."""
DOUBT = 0.25
"""Standard errors by which a head may be better than it seemed on part of the examples."""
LOOKS, IN_FULL = 6, 3
"""Heads that are measured after a removal at most, and of those on all examples: where many cost nearly the same, it
does not matter which of them goes first."""
OLDEST = 1
"""Heads whose turn it is after each removal: those that were not measured for the longest time."""
AT_ONCE = 64
"""Sets that are measured between looks at the clock."""


@dataclass(frozen=True)
class GreedyOrder:
    """Heads in the order of their removal."""

    order: tuple[HeadId, ...]
    """All of them, unless time was up."""
    scores: tuple[float, ...]
    """What was left after each removal, on the examples that heads were chosen on."""
    n_tried: tuple[int, ...]
    """How many sets had been measured by then, each on some of the examples at least."""
    clean: float

    def within(self, loss: float) -> int:
        """How many go before more than that is lost."""
        lost = np.array([self.clean - score > loss for score in self.scores])
        return int(lost.argmax()) if lost.any() else len(lost)


class Race:
    """Nested parts of an experiment's batches, and what scores on one of them tell about all."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        n, shuffled = len(experiment.batches), stream(0, "race").permutation(len(experiment.batches)).tolist()
        sizes = sorted({max(1, round(share * n)) for share in SHARES})
        self.added: list[list[int]] = [shuffled[i:j] for i, j in zip([0, *sizes], sizes, strict=False)]
        """Batches that each stage adds."""
        self.rows = [np.sort(np.concatenate([experiment.batches[i].rows for i in shuffled[:j]])) for j in sizes]
        """Examples of each stage."""

    @property
    def last(self) -> int:
        """The stage that has all examples."""
        return len(self.added) - 1

    def cost(self, now: Pair, stage: int, earlier: Pair | None = None) -> tuple[float, float]:
        """What is lost from one to the other, and its standard error as an estimate for all examples.

        If an earlier loss is known on all examples, what has changed since is estimated, which differs less.
        """
        rows = self.rows[stage]
        if stage == self.last:
            return float(self._lost(now, rows)), 0.0

        def change(places: NDArray[np.int64]) -> NDArray[np.float64]:
            return self._lost(now, rows[places]) - (self._lost(earlier, rows[places]) if earlier else 0.0)

        known, n = float(self._lost(earlier, self.rows[self.last])) if earlier else 0.0, len(rows)
        if n < 3:
            se = math.inf
        elif self.experiment.aggregator is mean_score:  # the jackknife comes to the same, and takes longer
            each = now[0] - now[1] - (earlier[0] - earlier[1] if earlier else 0.0)
            se = float(each[rows].std(ddof=1)) / math.sqrt(n)
        else:
            se = jackknife(change, n)[0]
        return known + float(change(np.arange(n))), se * math.sqrt(1 - n / self.experiment.n)

    def _lost(self, pair: Pair, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        before, after = (self.experiment.aggregator(scores[rows], rows) for scores in pair)
        return np.asarray(before - after)


def greedy_order(
    experiment: Experiment,
    *,
    alone: Scores | None = None,
    batch_size: int = BATCH,
    is_time_up: Callable[[], bool] = lambda: False,
    progress: Progress | None = None,
) -> GreedyOrder:
    """Remove heads one by one, the cheapest first, until none is left or time is up; hooks must have been proven.

    If it is known what every example scores without each head `alone`, [head, example], that is not measured again.
    """
    left, queue = list(experiment.sites.heads), Queue(Removal(experiment, batch_size), Race(experiment))
    if alone is None:
        alone = queue.removal.scores(left, range(len(experiment.batches)))
    queue.take(left, alone, queue.race.last)
    clean = float(experiment.aggregate(queue.before))
    order, scores, tried = list[HeadId](), list[float](), list[int]()
    while left:
        best = queue.cheapest(left, is_time_up)
        if best is None:
            break
        left.remove(best)
        queue.remove(best)
        order.append(best)
        scores.append(float(experiment.aggregate(queue.before)))
        tried.append(queue.n_tried)
        if progress:
            progress(len(order), len(experiment.sites.heads))
    return GreedyOrder(tuple(order), tuple(scores), tuple(tried), clean)


class Queue:
    """Heads by what they cost when they were last measured."""

    def __init__(self, removal: Removal, race: Race) -> None:
        self.removal, self.race = removal, race
        self.before = removal.clean()
        """Scores without the heads that were removed."""
        self.n_tried = 0
        self._cost: dict[HeadId, float] = {}
        """At least that, as far as is known."""
        self._seen: dict[HeadId, int] = {}
        """How many heads had been removed when each was last measured."""
        self._stage: dict[HeadId, int] = {}
        """Of heads that were measured since the last removal."""
        self._scores: dict[HeadId, Scores] = {}
        self._known: dict[HeadId, Pair] = {}
        """Scores with and without a head, when it was last measured on all examples."""

    def cheapest(self, left: Sequence[HeadId], is_time_up: Callable[[], bool]) -> HeadId | None:
        """Which of them costs least, measured on all examples; None if time is up before that is known."""
        if not self._stage:
            self._measure(sorted(left, key=self._seen.__getitem__)[:OLDEST])
        while not is_time_up():
            first = min(left if len(self._stage) < LOOKS else self._stage, key=self._cost.__getitem__)
            measured = [head for head, stage in self._stage.items() if stage == self.race.last]
            if first in measured or len(measured) >= IN_FULL:
                return min(measured, key=self._cost.__getitem__)
            self._measure([first])
        return None

    def remove(self, head: HeadId) -> None:
        """What others cost was measured with this head in place."""
        self.removal.remove(head)
        self.before = self._scores[head]
        self._stage.clear()
        self._scores.clear()

    def _measure(self, heads: Sequence[HeadId]) -> None:
        """On the examples of the next stage, which is the same for all of them."""
        stage = self._stage.get(heads[0], -1) + 1
        self.take(heads, self.removal.scores(heads, self.race.added[stage], keep=stage > 0), stage)

    def take(self, heads: Sequence[HeadId], found: Scores, stage: int) -> None:
        """Scores [head, example] of the examples that a stage adds; nan for others."""
        for head, scores in zip(heads, found, strict=True):
            self.n_tried += head not in self._stage
            known = self._scores.get(head, scores)
            self._scores[head] = np.where(np.isnan(scores), known, scores)
            self._stage[head], self._seen[head] = stage, len(self.removal.removed)
            now = self.before, self._scores[head]
            cost, se = self.race.cost(now, stage, self._known.get(head))
            self._cost[head] = cost - DOUBT * se
            if stage == self.race.last:
                self._known[head] = now


def best_set(
    experiment: Experiment,
    sets: Sequence[tuple[HeadId, ...]],
    *,
    batch_size: int = BATCH,
    is_time_up: Callable[[], bool] = lambda: False,
    progress: Progress | None = None,
) -> tuple[tuple[HeadId, ...], int]:
    """Which of these sets leaves most when it is removed, by a race; and how many were measured before time was up."""
    race, scores, racing = Race(experiment), np.full((len(sets), experiment.n), np.nan), np.arange(len(sets))
    best, n_measured = 0, 0
    for stage, numbers in enumerate(race.added):
        part, done = experiment.part(numbers), 0
        rows = np.sort(np.concatenate([experiment.batches[i].rows for i in numbers]))
        while done < len(racing) and not (done and is_time_up()):
            some = racing[done : done + AT_ONCE]
            interventions = [Intervention(sets[i]) for i in some]
            found = run_interventions(part, interventions, batch_size=batch_size, proven=True)
            scores[np.ix_(some, rows)] = found.scores
            done += len(some)
            if progress:
                progress(stage * len(sets) + done, len(race.added) * len(sets))
        n_measured = n_measured or done
        if stage and done < len(racing):
            break  # the best of the stage before is the answer
        racing = racing[:done]
        of_stage = race.rows[stage]
        left = experiment.aggregator(scores[np.ix_(racing, of_stage)], np.broadcast_to(of_stage, (done, len(of_stage))))
        best = int(racing[left.argmax()])
        costs = [race.cost((scores[best], scores[i]), stage) for i in racing]
        racing = racing[[cost - DOUBT * se <= 0 for cost, se in costs]]
    return sets[best], n_measured


class Clock:
    """What is left of a budget, and what there was no time for."""

    def __init__(self, budget: float | None) -> None:
        self.budget, self.skipped = budget, list[str]()
        self._started, self._pace = time.monotonic(), 0.0

    def is_over(self, share: float = 1.0) -> bool:
        """Whether so much of the budget is gone."""
        return self.budget is not None and time.monotonic() - self._started >= share * self.budget

    def learn(self, n_sets: int, n: int) -> None:
        """All the time so far went into so many sets of heads, on so many examples each."""
        self._pace = (time.monotonic() - self._started) / (n_sets * n)

    def fits(self, what: str, n_sets: int, n: int) -> bool:
        """Whether there is time for so many sets, at the pace so far; else it is noted that there was not."""
        took = time.monotonic() - self._started
        fits = self.budget is None or took + self._pace * n_sets * n <= self.budget
        self.skipped += [] if fits else [what]
        return fits

    def affordable(self, experiment: Experiment) -> Experiment:
        """As many of the examples as every head can be ablated on in a fifth of the budget."""
        if self.budget is None:
            return experiment
        batch, n_rows = experiment.batches[0], sum(batch.n_inputs for batch in experiment.batches)
        with eval_mode(experiment.model), torch.no_grad():
            started = time.perf_counter()
            first_tensor(experiment.model(*batch.inputs)).flatten()[0].item()  # waits until the device is done
        sweep = (time.perf_counter() - started) / batch.n_inputs * n_rows * len(experiment.sites.heads)
        if sweep <= self.budget / 5:
            return experiment
        some = experiment.some(int(experiment.n * self.budget / 5 / sweep))
        if some.n < experiment.n:
            self.skipped.append(f"{experiment.n - some.n:,} of the {experiment.n:,} examples to choose heads on")
        return some
