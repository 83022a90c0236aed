"""Ablation that stops when decided, compared with ablation on all examples."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from headcount.analysis import sequential_ablation
from headcount.analysis.ablation import AblationRun, ablate
from headcount.analysis.ablation_stopping import StoppingRule
from headcount.analysis.sequential_ablation import SweepState, ablate_until_decided, can_stop_early
from headcount.experiments import interventions
from headcount.experiments.experiment import Experiment, task_experiment
from headcount.experiments.interventions import run_interventions, run_on_cores
from headcount.hooks.replay import Intervention
from headcount.runs.run import Run
from headcount.training.device import Copies, n_threads


@pytest.fixture(scope="module")
def experiment(good_run: Run) -> Experiment:
    return task_experiment(good_run, good_run.task.sample(np.random.default_rng(5), 1500), "sums")


@pytest.fixture(scope="module")
def more(good_run: Run) -> Experiment:
    return task_experiment(good_run, good_run.task.sample(np.random.default_rng(6), 1500), "fresh sums")


@pytest.fixture(scope="module")
def states() -> list[SweepState]:
    return []


@pytest.fixture(scope="module")
def run(experiment: Experiment, more: Experiment, states: list[SweepState]) -> AblationRun:
    rule = StoppingRule(precision=0.03)
    return ablate_until_decided(experiment, more, rule, donors=1, examples=True, on_block=states.append)


def test_every_head_is_measured_with_every_replacement_and_agrees_with_all_examples(
    experiment: Experiment, more: Experiment, run: AblationRun
) -> None:
    whole = ablate(experiment, donors=1)
    for effect, other in zip(run.effects, whole.effects, strict=True):
        assert (effect.head, effect.replacement) == (other.head, other.replacement)
        assert effect.low <= other.high
        assert other.low <= effect.high
        assert effect.n <= experiment.n + more.n


def test_fewer_passes_than_all_examples_take(experiment: Experiment, more: Experiment, run: AblationRun) -> None:
    numbers = {effect.n for effect in run.effects}
    assert min(numbers) == StoppingRule().first
    assert 0 < run.condition.n_passes < len(run.effects) * (experiment.n + more.n)
    assert run.condition.n_passes >= sum(effect.n for effect in run.effects)
    assert run.condition.n == max(numbers)


def test_scores_are_those_of_a_plain_sweep_on_the_same_examples(experiment: Experiment, run: AblationRun) -> None:
    """The first examples in random order are the first block."""
    first = experiment.block(_order(experiment)[: StoppingRule().first])
    effects = [effect for effect in run.effects if effect.n == StoppingRule().first and effect.replacement == "zero"]
    assert effects
    interventions = [Intervention((head,)) for head in experiment.sites.heads]
    scores = dict(zip(map(str, experiment.sites.heads), run_interventions(first, interventions).scores, strict=True))
    for effect in effects:
        assert effect.ablated == pytest.approx(scores[effect.head].mean())


def _order(experiment: Experiment) -> np.ndarray:
    from headcount.seeds import stream

    return stream(0, "blocks of a sweep").permutation(len(experiment.rows))


def test_the_table_is_refined_while_it_is_measured(run: AblationRun, states: list[SweepState]) -> None:
    assert [state.n for state in states] == sorted({state.n for state in states})
    assert [state.n_settled for state in states] == sorted(state.n_settled for state in states)
    assert states[-1].n_settled == len(run.effects)
    assert all(len(state.run.effects) == len(run.effects) for state in states)


def test_broken_answers_are_those_of_the_examples_that_a_head_was_measured_on(run: AblationRun) -> None:
    by_pair = {(effect.head, effect.replacement): effect for effect in run.effects}
    assert run.condition.failures
    for profile in run.condition.failures:
        effect = by_pair[profile.head, profile.replacement]
        assert profile.n == effect.n
        assert profile.n_broken == effect.worse
        for facet in {group.facet for group in profile.groups}:
            assert sum(group.n for group in profile.groups if group.facet == facet) == effect.n


def test_when_the_time_is_over_all_heads_are_looked_at_once_more(experiment: Experiment) -> None:
    rule = StoppingRule(precision=0.001, first=100)
    run = ablate_until_decided(experiment, None, rule, ["zero"], donors=1, is_time_up=lambda: True)
    assert {effect.n for effect in run.effects} == {100}


def test_few_examples_are_measured_at_once_with_ordinary_intervals(experiment: Experiment) -> None:
    few = experiment.block(np.arange(60))
    run = ablate_until_decided(few, None, StoppingRule(), ["zero"], donors=1)
    order = _order(few)
    whole = ablate(few.block(order), ["zero"])
    for effect, other in zip(run.effects, whole.effects, strict=True):
        assert (effect.low, effect.high, effect.p, effect.n) == (other.low, other.high, other.p, 60)


def test_all_examples_that_exist_have_no_sampling_error(experiment: Experiment) -> None:
    every = replace(experiment, dataset=replace(experiment.dataset, is_all=True))
    run = ablate_until_decided(experiment, every, StoppingRule(precision=1e-6, first=400), ["zero"], donors=1)
    assert {effect.n for effect in run.effects} == {1500}
    for effect in run.effects:
        assert effect.low == effect.drop == effect.high


def test_metrics_that_are_no_means_cannot_stop_early(experiment: Experiment) -> None:
    assert can_stop_early(experiment)
    assert not can_stop_early(experiment.block(np.arange(60))), "the first look would be the last one"
    assert not can_stop_early(replace(experiment, make_batches=None))


def test_several_processes_give_the_same_scores_as_one(experiment: Experiment) -> None:
    interventions = [Intervention((head,), name) for name in ("zero", "resample") for head in experiment.sites.heads]
    with n_threads(1):
        alone = run_on_cores(experiment, interventions)
    with n_threads(2):
        shared = run_on_cores(experiment, interventions)
        assert torch.get_num_threads() == 2, "as before"
    np.testing.assert_array_equal(alone.scores, shared.scores)
    np.testing.assert_array_equal(alone.clean, shared.clean)


def test_a_sweep_in_several_processes_is_the_sweep_of_one(
    experiment: Experiment, more: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process must really measure: this process measures its part again only if the copy fails."""
    monkeypatch.setattr(sequential_ablation, "ROWS_PER_PROCESS", 10)
    rule, measured, again = StoppingRule(precision=0.05), list[AblationRun](), list[int]()
    here, measure = os.getpid(), interventions.scores_of_part

    def scores_of_part(*args: Any) -> Any:
        if os.getpid() == here:
            again.append(1)
        return measure(*args)

    monkeypatch.setattr(interventions, "scores_of_part", scores_of_part)
    for n in (1, 2):
        with n_threads(n):
            run = ablate_until_decided(experiment, more, rule, ["zero", "mean"], donors=1)
        measured.append(run)
    assert not again
    assert measured[0].effects == measured[1].effects
    assert measured[0].condition.n_passes == measured[1].condition.n_passes


def test_copies_take_several_messages_and_one_that_fails_returns_nothing() -> None:
    def work(numbers: Sequence[int]) -> np.ndarray:
        if numbers[0] == 1:
            raise ValueError("one part fails")
        return np.full(numbers[1], float(numbers[0]))

    with Copies(work, 3) as copies:
        for n in (3, 100_000):  # more than a pipe holds
            for i in range(3):
                copies.send(i, [i, n])
            first, second, third = (copies.receive(i) for i in range(3))
            assert second is None
            assert first is not None
            assert third is not None
            assert first.tolist() == [0.0] * n
            assert third.tolist() == [2.0] * n
        copies.send(0, [0, 0])
        assert np.array_equal(copies.receive(0), [])
