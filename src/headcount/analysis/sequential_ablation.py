"""Ablate each head alone on more and more examples, until its band is decided and its interval is narrow.

A band says how much a head matters, such as critical or redundant. The examples come in blocks: those of the experiment
in random order, then new ones of the task. All heads are measured on the first block. After each block, heads that are
decided (ablation_stopping.py) are dropped, and the next block measures the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from headcount.analysis.ablation import (
    Ablated,
    AblationRun,
    Measurement,
    Sweep,
    by_pair,
    condition_of,
    effect_of,
    has_bands,
    interventions_of,
    noise_of_means,
    prepare,
    with_agreements,
)
from headcount.analysis.ablation_stopping import FIRST_HITS, FIRST_SCORES, Looks, StoppingRule
from headcount.analysis.gradient_importance import Importance, importances
from headcount.data.dataset import Rows, mean_score
from headcount.experiments.decoding_check import DecodingCheck, FailureProfile
from headcount.experiments.donors_and_means import Donors, donors_of
from headcount.experiments.drops import compare, widened
from headcount.experiments.experiment import Experiment, Scores
from headcount.experiments.interventions import Outcome, run_interventions, run_on_cores, scores_of_part
from headcount.hooks import REPLACEMENTS
from headcount.hooks.replay import Intervention
from headcount.limits import BATCH, N_NOISE
from headcount.seeds import stream
from headcount.training.device import Copies, n_processes

ROWS_PER_PROCESS = 2000
"""Number of examples per process: another process is started only if each gets this many."""


@dataclass(frozen=True)
class SweepState:
    """The state of an ablation after a block of examples, for a table that is shown while measurements go on."""

    run: AblationRun
    """The measurements of all heads so far."""
    n: int
    """Number of examples measured so far."""
    n_settled: int
    """Number of ablations (a head with a kind of ablation) that need no more examples."""
    n_most: int
    """Largest number of examples that the undecided ablations may still need."""


def can_stop_early(experiment: Experiment, more: Experiment | None = None) -> bool:
    """Return whether heads can be measured block by block, on the examples of `experiment` and then of `more`.

    The metric must be a mean over examples of a dataset, and there must be more examples than the first block has.
    """
    is_mean = experiment.make_batches is not None and experiment.aggregator is mean_score
    return is_mean and (more is not None or experiment.n > first_look(experiment))


def first_look(experiment: Experiment) -> int:
    """Return the number of examples after which heads are first judged; it is smaller for losses, which vary less."""
    return FIRST_SCORES if experiment.metric.is_loss else FIRST_HITS


def ablate_until_decided(
    experiment: Experiment,
    more: Experiment | None,
    rule: StoppingRule,
    replacements: Sequence[str] | None = None,
    *,
    donors: int,
    examples: bool = False,
    batch_size: int = BATCH,
    noise: Mapping[Ablated, float] | None = None,
    is_time_up: Callable[[], bool] = lambda: False,
    on_block: Callable[[SweepState], None] = lambda state: None,
) -> AblationRun:
    """Ablate every head alone with each kind of ablation, until a stopping rule says for each that it is enough.

    The examples are those of `experiment`, then those of `more`; if `more` has all examples that exist, they are those
    of `more` alone. `is_time_up` is asked after each block. With `examples`, the answers that break are described. The
    noise of mean ablation is measured unless it is given.
    """
    sweep = prepare(experiment, replacements, donors)
    pool = _Pool([more] if more is not None and more.is_all else [experiment, *([more] if more is not None else [])])
    rule = replace(rule, most=min(rule.most, pool.n))
    sampling = _Sampling(sweep, pool, rule, donors, batch_size, examples, noise)
    with Copies(sampling.measure_part, sampling.n_copies) as copies:
        while any(not state.looks.is_settled for state in sampling.states):
            target = min(state.looks.next_n for state in sampling.states if not state.looks.is_settled)
            sampling.extend(target, copies)
            is_over = target < rule.most and is_time_up()
            sampling.look(is_over=is_over)
            on_block(SweepState(sampling.run(), sampling.n, sampling.n_settled, rule.most))
    run = sampling.run(importances(experiment))
    return with_agreements(replace(run, condition=replace(run.condition, failures=sampling.failures())))


class _Pool:
    """The examples of several experiments, one after the other, in the order in which they are measured."""

    def __init__(self, experiments: Sequence[Experiment]) -> None:
        self.experiments = list(experiments)
        self._orders = [_random_order(each) for each in experiments]
        self._ends = np.cumsum([len(order) for order in self._orders])
        self.n = int(self._ends[-1])

    def blocks(self, start: int, end: int) -> Iterator[Experiment]:
        """Yield experiments on the examples numbered `start` to `end` of the pool."""
        for experiment, order, last in zip(self.experiments, self._orders, self._ends.tolist(), strict=True):
            first = last - len(order)
            places = order[max(0, start - first) : max(0, end - first)]
            if len(places):
                yield experiment.block(places)

    def compared(self, rows: Rows) -> Experiment:
        """Return an experiment without batches, for comparing scores on the given rows."""
        return replace(self.experiments[0], rows=rows, batches=(), is_part=len(rows) < self.n)

    def describe(self, n: int) -> str:
        """Describe the first `n` examples of the pool in words, such as `2,000 of the test set`."""
        first, n_first = self.experiments[0].data, int(self._ends[0])
        if n < n_first:
            return f"{n:,} of {first}"
        return first if n == n_first else f"{first} and {n - n_first:,} {self.experiments[1].data}"


def _random_order(experiment: Experiment) -> Rows:
    """Return the indices of all examples in random order; the examples of a cluster stay together."""
    rng, clusters = stream(0, "blocks of a sweep"), experiment.clusters
    if clusters is None:
        return rng.permutation(len(experiment.rows))
    _, numbers = np.unique(clusters, return_inverse=True)
    return np.argsort(rng.permutation(int(numbers.max()) + 1)[numbers], kind="stable")


@dataclass
class _Sampled:
    """One head under one kind of ablation: its scores so far, and the times at which it was judged."""

    pair: Ablated
    looks: Looks
    scores: list[Scores] = field(default_factory=list)
    """Scores [donor, example] of each block of examples; only resample ablation has several donors."""
    measurement: Measurement | None = None
    noise: float = 0.0
    n: int = 0
    """Number of examples on which this ablation was measured so far."""


class _Sampling:
    """All heads under all kinds of ablation, with their scores on the examples measured so far."""

    def __init__(
        self,
        sweep: Sweep,
        pool: _Pool,
        rule: StoppingRule,
        donors: int,
        batch_size: int,
        examples: bool,
        noise: Mapping[Ablated, float] | None,
    ) -> None:
        self._sweep, self._pool, self._rule = sweep, pool, rule
        self._donors, self._batch_size = donors, batch_size
        self.states = [_Sampled(pair, Looks(rule)) for pair in sweep.pairs]
        self._noise = noise
        self.check = DecodingCheck(pool.experiments[0], interventions_of(sweep.pairs, donors), explain=examples)
        self.n, self.n_passes = 0, 0
        self._clean: list[Scores] = []
        self._rows: list[Rows] = []
        self._donor_rows: list[Donors] = []
        self._outcome: Outcome | None = None

    @property
    def n_settled(self) -> int:
        """The number of ablations that need no more examples."""
        return sum(state.looks.is_settled for state in self.states)

    @property
    def clean(self) -> Scores:
        """The scores [example] of the model with all heads, on the examples measured so far."""
        return np.concatenate(self._clean)

    @property
    def n_copies(self) -> int:
        """The number of copies of this process that share the work."""
        if self.check.explains:  # this process must see every batch
            return 0
        return n_processes(self._pool.experiments[0].model, -(-self._pool.n // ROWS_PER_PROCESS)) - 1

    def measure_part(self, numbers: Sequence[int]) -> Scores:
        """Return the scores [1 + intervention, example] on part of a block of examples, in a copy of this process.

        The numbers are the first and the last example, the index of the block, those of the ablations, and the part.
        """
        start, end, which, *active, i, n = map(int, numbers)
        block = list(self._pool.blocks(start, end))[which]
        interventions = interventions_of([self.states[number].pair for number in active], self._donors)
        return scores_of_part(partial(self._run, block, interventions), block, i, n)

    def _run(self, block: Experiment, interventions: Sequence[Intervention], only: Sequence[int]) -> Outcome:
        means = self._sweep.means
        return run_interventions(block, interventions, batch_size=self._batch_size, proven=True, means=means, only=only)

    def extend(self, end: int, copies: Copies) -> None:
        """Measure all undecided heads on the examples up to number `end`; `copies` measure part of each block."""
        numbers = [i for i, state in enumerate(self.states) if not state.looks.is_settled]
        active, start = [self.states[i] for i in numbers], self.n
        interventions = interventions_of([state.pair for state in active], self._donors)
        for which, block in enumerate(self._pool.blocks(start, end)):
            self.check.experiment = block
            outcome = run_on_cores(
                block,
                interventions,
                batch_size=self._batch_size,
                means=self._sweep.means,
                on_batch=self.check if self.check.is_needed else None,
                sees_all=self.check.explains,
                copies=(copies, (start, end, which, *numbers)),
            )
            self.check.next_block(block)
            for state, scores in zip(active, by_pair(interventions, outcome.scores), strict=True):
                state.scores.append(scores)
                state.n += block.n
            if self._outcome is None:
                self._outcome = outcome
                self._measure_noise(block, active, outcome)
            if self._sweep.uses("needs_donors"):
                self._donor_rows.append(donors_of(block, self._donors) + self.n)
            self._clean.append(outcome.clean)
            self._rows.append(block.rows)
            self.n += block.n
            self.n_passes += len(interventions) * block.n

    def _measure_noise(self, block: Experiment, active: Sequence[_Sampled], outcome: Outcome) -> None:
        """Estimate the noise of mean ablation (from averaging over finitely many inputs) on the first examples.

        Only heads whose ablation changes any score in this block are measured.
        """
        changed = [state.pair for state in active if (state.scores[0] != outcome.clean).any()]
        if self._noise is not None:
            for state in active:
                state.noise = self._noise.get(state.pair, 0.0)
            return
        noise, passes = noise_of_means(block.some(N_NOISE), changed, self._sweep.means, batch_size=self._batch_size)
        self.n_passes += passes
        for state in active:
            state.noise = noise.get(state.pair, 0.0)

    def look(self, *, is_over: bool) -> None:
        """Judge the heads that are due after this block; if the time is over, judge all heads for the last time."""
        clean, experiment = self.clean, self._pool.compared(np.concatenate(self._rows))
        has_band = has_bands(experiment, clean)
        due = [
            state for state in self.states if not state.looks.is_settled and (state.looks.next_n <= self.n or is_over)
        ]
        for state in due if is_over else ():
            state.looks.stop_here()
        family = len({state.pair[0] for state in self.states})
        for level in dict.fromkeys(state.looks.level for state in due):
            group = [state for state in due if state.looks.level == level]
            scores = [np.concatenate(state.scores, axis=1) for state in group]
            donors = [self._donors_of(state.pair) for state in group]
            drops = compare(experiment, clean, scores, "heads", confidence=1 - level, donors=donors, family=family)
            noise = [state.noise for state in group]
            wider = widened(experiment, clean, drops, noise, 1 - level)
            for state, drop, wide, ablated in zip(group, drops, wider, scores, strict=True):
                whole = state.looks.look(self.n, drop, wide, has_bands=has_band)
                if is_over:
                    state.looks.is_settled = True
                effect = effect_of(experiment, state.pair, clean, ablated, whole, has_band=has_band)
                state.measurement = Measurement(*state.pair, whole, effect, True, state.noise)

    def _donors_of(self, pair: Ablated) -> Donors | None:
        return np.concatenate(self._donor_rows, axis=1) if REPLACEMENTS.get(pair[1]).needs_donors else None

    def run(self, gradients: Sequence[Importance] = ()) -> AblationRun:
        """Return the measurements of all heads so far; every head has one after the first block."""
        measurements = tuple(state.measurement for state in self.states if state.measurement is not None)
        compared = self._pool.compared(np.concatenate(self._rows))
        assert self._outcome is not None, "there is a first block"
        outcome = replace(self._outcome, clean=self.clean)
        condition = condition_of(compared, outcome, self._sweep, self.check, self._donors, gradients)
        return AblationRun(
            measurements,
            replace(
                condition,
                data=self._pool.describe(self.n),
                n_mean=self._pool.experiments[0].n_reference if self._sweep.means else 0,
                n_passes=self.n_passes,
                stopping=self._rule,
            ),
            self._sweep.means,
            self._sweep.proof,
        )

    def failures(self) -> tuple[FailureProfile, ...]:
        """Return, for each ablation, the answers that are right with all heads and wrong with the head ablated."""
        return self.check.failures({state.pair: state.n for state in self.states})
