"""Remove heads greedily: at each step, remove the head whose removal costs the least score.

Measuring every remaining head after every removal takes n (n + 1) / 2 measurements. Two methods avoid most of them:

    lazy    A head's cost usually grows as other heads are removed, so its last cost is usually a lower bound. Heads are
            queued by their last cost, and the first head is measured again until the first one is up to date
            (accelerated greedy search, Minoux 1978) or a few heads were measured. As the bound may fail, all heads
            are measured again from time to time.
    races   A head is measured on a quarter of the examples, then on half, then on all. Its cost on a part is a paired
            difference, lowered by `DOUBT` standard errors. A head that is clearly worse than another is not measured
            further (Maron and Moore 1994).

A head is removed only after it was measured on all examples. Random sets of heads are compared by races too.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from headcount.data.dataset import mean_score
from headcount.experiments.experiment import Experiment, Scores
from headcount.experiments.interventions import Progress, run_interventions
from headcount.experiments.removal import Removal
from headcount.heads import HeadId
from headcount.hooks.gates import eval_mode
from headcount.hooks.intervention_proof import first_tensor
from headcount.hooks.replay import Intervention
from headcount.limits import BATCH
from headcount.seeds import stream
from headcount.stats import jackknife

Pair = tuple[Scores, Scores]
"""Scores of the same examples before and after the removal of heads."""
SHARES = (0.25, 0.5, 1.0)
"""Fractions of the examples on which heads are compared in turn; only heads that do well go on to the next one."""
DOUBT = 0.25
"""Number of standard errors by which a cost measured on part of the examples is lowered, to keep good heads."""
LOOKS, IN_FULL = 6, 3
"""After a removal, at most LOOKS heads are measured again, and at most IN_FULL of them on all examples.

More would not help: where many heads cost nearly the same, their order does not matter.
"""
OLDEST = 1
"""Number of heads, those with the oldest measurements, that are measured again after each removal."""
AT_ONCE = 64
"""Number of sets of heads that are measured between two checks of the time limit."""


@dataclass(frozen=True)
class GreedyOrder:
    """The heads in the order in which greedy removal removed them, with the score after each removal."""

    order: tuple[HeadId, ...]
    """Names of the removed heads, in order; all heads, unless the time ran out."""
    scores: tuple[float, ...]
    """Score after each removal, on the examples on which heads were chosen."""
    n_tried: tuple[int, ...]
    """For each removal, the number of sets of heads that were measured until then, on some or all examples."""
    clean: float

    def within(self, loss: float) -> int:
        """Return how many heads can be removed, in this order, before the score drops by more than `loss`."""
        lost = np.array([self.clean - score > loss for score in self.scores])
        return int(lost.argmax()) if lost.any() else len(lost)


class Race:
    """Compares heads on more and more examples, so that clearly worse heads need few: each stage adds batches.

    It also estimates the cost of a removal from the examples of a stage.
    """

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        n, shuffled = len(experiment.batches), stream(0, "race").permutation(len(experiment.batches)).tolist()
        sizes = sorted({max(1, round(share * n)) for share in SHARES})
        self.added: list[list[int]] = [shuffled[i:j] for i, j in zip([0, *sizes], sizes, strict=False)]
        """For each stage of the race (comparison on more and more examples), the indices of the added batches."""
        self.rows = [np.sort(np.concatenate([experiment.batches[i].rows for i in shuffled[:j]])) for j in sizes]
        """For each stage of the race (comparison on more and more examples), the indices of all its examples."""

    @property
    def last(self) -> int:
        """Return the index of the last stage of a race (comparison on ever more examples), which uses all of them."""
        return len(self.added) - 1

    def cost(self, now: Pair, stage: int, earlier: Pair | None = None) -> tuple[float, float]:
        """Estimate the drop in score over all examples from those of one stage of a race; return it with its error.

        A race compares heads on more and more examples. The error is a standard error. `now` are the scores before and
        after a removal. If `earlier` has such scores from an earlier measurement on all examples, only the change since
        then is estimated, because the change varies less.
        """
        rows = self.rows[stage]
        if stage == self.last:
            return float(self._lost(now, rows)), 0.0

        def change(indices: NDArray[np.int64]) -> NDArray[np.float64]:
            return self._lost(now, rows[indices]) - (self._lost(earlier, rows[indices]) if earlier else 0.0)

        known, n = float(self._lost(earlier, self.rows[self.last])) if earlier else 0.0, len(rows)
        if n < 3:
            se = math.inf
        elif self.experiment.aggregator is mean_score:  # equal to the jackknife, and faster
            changes = now[0] - now[1] - (earlier[0] - earlier[1] if earlier else 0.0)
            se = float(changes[rows].std(ddof=1)) / math.sqrt(n)
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
    """Remove heads one by one, each time the one that costs least, until none is left or the time is up.

    `alone` are the scores [head, example] with one head removed; they are measured if they are not given. Hooks must
    have been proven to act.
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
    """The heads that are not yet removed, in the order of their last measured cost."""

    def __init__(self, removal: Removal, race: Race) -> None:
        self.removal, self.race = removal, race
        self.before = removal.clean()
        """Scores of all examples without the heads that were removed so far."""
        self.n_tried = 0
        self._cost: dict[HeadId, float] = {}
        """For each head, its last measured cost less `DOUBT` standard errors, taken as a lower bound of the cost."""
        self._seen: dict[HeadId, int] = {}
        """For each head, how many other heads had been removed when it was last measured."""
        self._stage: dict[HeadId, int] = {}
        """For each head measured since the last removal, the stage of the race (how many examples) it has reached."""
        self._scores: dict[HeadId, Scores] = {}
        """For each head measured since the last removal, the scores without it; NaN for unmeasured examples."""
        self._known: dict[HeadId, Pair] = {}
        """For each head, the scores before and after its removal when it was last measured on all examples."""

    def cheapest(self, left: Sequence[HeadId], is_time_up: Callable[[], bool]) -> HeadId | None:
        """Return the head whose removal costs least, measured on all examples; None if the time runs out before."""
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
        """Remove a head. All other heads must be measured again, because their costs were measured with this head."""
        self.removal.remove(head)
        self.before = self._scores[head]
        self._stage.clear()
        self._scores.clear()

    def _measure(self, heads: Sequence[HeadId]) -> None:
        """Measure heads on the examples of their next stage of the race, which compares heads on ever more examples.

        All of the heads must be at the same stage.
        """
        stage = self._stage.get(heads[0], -1) + 1
        self.take(heads, self.removal.scores(heads, self.race.added[stage], keep=stage > 0), stage)

    def take(self, heads: Sequence[HeadId], scores_HN: Scores, stage: int) -> None:
        """Update the costs of heads with their scores [head, example], which are NaN for unmeasured examples.

        `stage` is the stage of the race, which compares heads on more and more examples.
        """
        for head, scores in zip(heads, scores_HN, strict=True):
            self.n_tried += head not in self._stage
            earlier = self._scores.get(head, scores)
            self._scores[head] = np.where(np.isnan(scores), earlier, scores)
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
    """Find the set of heads whose removal leaves the highest score, out of several sets.

    Sets are compared on more and more examples, and clearly worse ones are dropped. Return the set, and the number of
    sets that were measured before the time was up.
    """
    race, scores, racing = Race(experiment), np.full((len(sets), experiment.n), np.nan), np.arange(len(sets))
    best, n_measured = 0, 0
    for stage, numbers in enumerate(race.added):
        part, done = experiment.part(numbers), 0
        rows = np.sort(np.concatenate([experiment.batches[i].rows for i in numbers]))
        while done < len(racing) and not (done and is_time_up()):
            group = racing[done : done + AT_ONCE]
            interventions = [Intervention(sets[i]) for i in group]
            outcome = run_interventions(part, interventions, batch_size=batch_size, proven=True)
            scores[np.ix_(group, rows)] = outcome.scores
            done += len(group)
            if progress:
                progress(stage * len(sets) + done, len(race.added) * len(sets))
        n_measured = n_measured or done
        if stage and done < len(racing):
            break  # keep the best set of the stage before
        racing = racing[:done]
        rows = race.rows[stage]
        left = experiment.aggregator(scores[np.ix_(racing, rows)], np.broadcast_to(rows, (done, len(rows))))
        best = int(racing[left.argmax()])
        costs = [race.cost((scores[best], scores[i]), stage) for i in racing]
        racing = racing[[cost - DOUBT * se <= 0 for cost, se in costs]]
    return sets[best], n_measured


class Clock:
    """A time limit in seconds, and a list of the steps that were skipped because they did not fit into it."""

    def __init__(self, budget: float | None) -> None:
        self.budget, self.skipped = budget, list[str]()
        self._started, self._pace = time.monotonic(), 0.0

    def is_over(self, share: float = 1.0) -> bool:
        """Return whether the given share of the time limit is used up."""
        return self.budget is not None and time.monotonic() - self._started >= share * self.budget

    def learn(self, n_sets: int, n: int) -> None:
        """Estimate the time per set of heads and example, after measuring `n_sets` sets on `n` examples each."""
        self._pace = (time.monotonic() - self._started) / (n_sets * n)

    def fits(self, what: str, n_sets: int, n: int) -> bool:
        """Return whether there is time to measure `n_sets` sets of heads on `n` examples.

        If there is not, add `what`, a description of the step, to the list of skipped steps.
        """
        elapsed = time.monotonic() - self._started
        fits = self.budget is None or elapsed + self._pace * n_sets * n <= self.budget
        self.skipped += [] if fits else [what]
        return fits

    def affordable(self, experiment: Experiment) -> Experiment:
        """Return the experiment with as many examples as allow ablating every head in a fifth of the time limit."""
        if self.budget is None:
            return experiment
        batch, n_rows = experiment.batches[0], sum(batch.n_inputs for batch in experiment.batches)
        with eval_mode(experiment.model), torch.no_grad():
            started = time.perf_counter()
            first_tensor(experiment.model(*batch.inputs)).flatten()[0].item()  # wait for the device
        sweep = (time.perf_counter() - started) / batch.n_inputs * n_rows * len(experiment.sites.heads)
        if sweep <= self.budget / 5:
            return experiment
        part = experiment.some(int(experiment.n * self.budget / 5 / sweep))
        if part.n < experiment.n:
            self.skipped.append(f"{experiment.n - part.n:,} of the {experiment.n:,} examples for choosing heads")
        return part
