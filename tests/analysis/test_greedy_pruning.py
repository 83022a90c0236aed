"""Greedy removal with few measurements, compared with a search that measures all heads after every removal."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.pruning import full_greedy

from headcount.analysis import greedy_pruning
from headcount.analysis.greedy_pruning import GreedyOrder, best_set, greedy_order
from headcount.analysis.pruning import prune_curves
from headcount.analysis.pruning_orders import TIE, with_ties_broken
from headcount.data.dataset import mean_score
from headcount.experiments.drops import compare
from headcount.experiments.experiment import Experiment, task_experiment
from headcount.experiments.interventions import run_interventions
from headcount.experiments.removal import Removal, scores_along
from headcount.heads import HeadId
from headcount.hooks.intervention_proof import prove
from headcount.hooks.replay import CachedPass, Intervention
from headcount.runs.run import Run

pytestmark = pytest.mark.slow  # searches over sets of heads

SUMS = np.array(list(product(range(10), repeat=2)))
LOSS = 0.1


@pytest.fixture(scope="module")
def run(good_run: Run) -> Run:
    """Return a run in double precision, so that rounding does not decide between two heads."""
    return replace(good_run, model=deepcopy(good_run.model).double())


def on(run: Run, sums: Any = SUMS[::2], at_once: int = 8) -> Experiment:
    experiment = with_ties_broken(task_experiment(run, sums, "", at_once=at_once))
    prove(experiment.model, experiment.sites, experiment.batches[0].inputs)
    return experiment


@pytest.fixture(scope="module")
def search(run: Run) -> GreedyOrder:
    return greedy_order(on(run))


@pytest.fixture(scope="module")
def full_search(run: Run) -> tuple[Any, Any]:
    """Return the order of a search that measures all heads after every removal, and its scores."""
    return full_greedy(on(run))


def test_what_goes_is_what_a_full_search_takes_with_fewer_measurements(
    full_search: tuple[Any, Any], search: GreedyOrder
) -> None:
    """Compare up to the point where the loss exceeds the limit."""
    full, scores = full_search
    n, k = len(full), search.within(LOSS + TIE)
    assert 0 < k < n
    assert set(search.order[:k]) == set(full[:k])
    assert search.scores[k - 1] == pytest.approx(scores[k - 1], abs=1e-9)
    assert search.clean - scores[k - 1] <= LOSS + TIE < search.clean - scores[k]
    assert n <= search.n_tried[-1] < n * (n + 1) / 2


def test_what_is_chosen_is_as_good_on_other_examples(
    run: Run, full_search: tuple[Any, Any], search: GreedyOrder
) -> None:
    test_set = task_experiment(run, SUMS[1::2], "")
    full, scores = full_search
    n_full = next(k for k, score in enumerate([*scores, -1.0]) if search.clean - score > LOSS + TIE)
    sets = [tuple(full[:n_full]), search.order[: search.within(LOSS + TIE)]]
    outcome = run_interventions(test_set, list(map(Intervention, sets)))
    ours = test_set.aggregate(outcome.clean) - test_set.aggregate(outcome.scores[1])
    theirs = compare(test_set, outcome.clean, [outcome.scores[0]], "full")[0]
    assert theirs.low <= ours <= theirs.high


def test_every_removal_was_measured_on_all_examples(run: Run, search: GreedyOrder) -> None:
    """Compare the score of each step with plain forward passes of a model without these heads."""
    experiment = on(run, at_once=50)
    sets = [search.order[: k + 1] for k in range(len(search.order))]
    scores = run_interventions(experiment, list(map(Intervention, sets))).scores
    np.testing.assert_allclose(search.scores, experiment.aggregate(scores), atol=1e-9)


def test_no_head_is_removed_that_was_measured_in_part_only(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: dict[tuple[int, HeadId], int] = {}
    scores_of_heads, removed, first = Removal.scores, list[int](), list[HeadId]()

    def scores(self: Removal, heads: Any, batches: Any, **how: Any) -> Any:
        for head in heads:
            key = len(self.removed), head
            measured[key] = measured.get(key, 0) + sum(len(self.experiment.batches[i].rows) for i in batches)
        return scores_of_heads(self, heads, batches, **how)

    def remove(self: Removal, head: HeadId, old: Any = Removal.remove) -> None:
        removed.append(measured[len(self.removed), head])
        first.append(head)
        old(self, head)

    monkeypatch.setattr(Removal, "scores", scores)
    monkeypatch.setattr(Removal, "remove", remove)
    experiment = on(run)
    order = greedy_order(experiment)
    assert first == list(order.order)
    assert set(removed) == {experiment.n}, "all examples, for each head that went"
    assert min(measured.values()) < experiment.n, "others were out of the race before"


def test_the_same_seed_gives_the_same_order(run: Run, search: GreedyOrder) -> None:
    assert greedy_order(on(run)) == search


def test_a_metric_that_is_no_mean_is_raced_too(run: Run) -> None:
    """Use a correlation as the metric."""
    experiment = on(run)
    ranks = np.argsort(np.random.default_rng(0).permutation(experiment.n))

    def middle(scores: Any, rows: Any) -> Any:
        return np.median(scores, axis=-1) + 1e-3 * (scores * ranks[rows]).mean(axis=-1)

    other = replace(experiment, dataset=replace(experiment.dataset, aggregators={experiment.metric.name: middle}))
    order = greedy_order(other)
    assert sorted(map(str, order.order)) == sorted(map(str, experiment.sites.heads))
    assert experiment.aggregator is mean_score
    scores = run_interventions(other, [Intervention(order.order[:2])]).scores
    assert order.scores[1] == pytest.approx(float(other.aggregate(scores)[0]))


def test_modules_that_keep_state_are_passed_as_a_whole(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = on(run)
    heads = experiment.sites.heads[:3]
    usual = Removal(experiment)
    expected = usual.scores(heads, range(len(experiment.batches)))
    monkeypatch.setattr("headcount.hooks.replay.tolerance", lambda dtype: -1.0)  # nothing is alike
    removal = Removal(experiment)
    removed_scores = removal.scores(heads, range(len(experiment.batches)))
    assert (removal.is_plain, usual.is_plain) == (True, False)
    np.testing.assert_allclose(removed_scores, expected, atol=1e-9)
    order = [[head] for head in heads]
    np.testing.assert_allclose(scores_along(experiment, [order])[0][0], expected[0], atol=1e-9)


def test_passes_that_find_no_room_are_made_again(
    run: Run, monkeypatch: pytest.MonkeyPatch, search: GreedyOrder
) -> None:
    monkeypatch.setattr("headcount.experiments.removal.ROOM", 0)
    assert greedy_order(on(run)) == search


def test_a_pass_moves_on(run: Run) -> None:
    """A continued pass equals a pass from the first layer bit for bit, and so do ablations from there."""
    experiment, heads = on(run, at_once=20), list(run.model.heads)
    order = [heads[i] for i in np.random.default_rng(3).permutation(len(heads))]
    model, sites, inputs = experiment.model, experiment.sites, experiment.batches[0].inputs
    with torch.no_grad():
        moved = CachedPass(model, sites, inputs)
        for k in range(1, len(order)):
            before, moved = moved, moved.without([order[k - 1]])
            fresh = CachedPass(model, sites, inputs, order[:k])
            assert torch.equal(moved.output, fresh.output)
            assert not torch.equal(moved.output, before.output), "it acted"
            assert list(moved.site_records) == list(fresh.site_records)
            assert all(torch.equal(moved.z(site), fresh.z(site)) for site in sites)
            for head in order[k:]:
                one, other = (each.replay([Intervention((head,))]) for each in (moved, fresh))
                assert torch.equal(one, other)


def test_scores_along_an_order_are_those_of_its_sets(run: Run) -> None:
    experiment, heads = on(run, at_once=20), run.model.heads
    orders = [[heads[:2], heads[4:5]], [heads[5:6], heads[1:3], heads[:1]]]
    sets = [tuple(head for some in order[: k + 1] for head in some) for order in orders for k in range(len(order))]
    expected = run_interventions(experiment, list(map(Intervention, sets))).scores
    np.testing.assert_allclose(np.concatenate(scores_along(experiment, orders)), expected, atol=1e-12)


def test_the_best_set_wins_the_race(run: Run) -> None:
    experiment, rng = on(run), np.random.default_rng(1)
    sets = [tuple(run.model.heads[i] for i in rng.permutation(10)[:3]) for _ in range(20)]
    left = experiment.aggregate(run_interventions(experiment, list(map(Intervention, sets))).scores)
    assert best_set(experiment, sets) == (sets[int(left.argmax())], 20)


def test_time_that_is_up_ends_a_search(run: Run, search: GreedyOrder, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([False] * 5 + [True] * 99)
    short = greedy_order(on(run), is_time_up=lambda: next(looks))
    assert 0 < len(short.order) < len(search.order)
    assert short.order == search.order[: len(short.order)]
    monkeypatch.setattr(greedy_pruning, "AT_ONCE", 2)
    sets = [(head,) for head in run.model.heads]
    assert best_set(on(run), sets, is_time_up=lambda: True)[1] == 2


@pytest.mark.parametrize("budget", [1e-3, 1e6])
def test_what_there_is_no_time_for_is_told(run: Run, budget: float) -> None:
    sets = [task_experiment(run, SUMS[i::8], "", at_once=5) for i in range(3)]
    result = prune_curves("good", "digest", sets[0], sets[1], sets[2], 0.1, n_orders=2, budget=budget)
    assert result.budget == budget
    if budget > 1:
        assert (result.not_measured, len(result.curves), result.n_orders) == ((), 5, 2)
        return
    told = " ".join(result.not_measured)
    for part in (
        "examples for choosing heads",
        "greedy removal of more than 0 of 10 heads",
        "resample and mean",
        "orders",
    ):
        assert part in told, told
    assert (result.chosen, result.chance, result.n_orders, result.replacements) == ((), (), 0, ("zero",))
    assert [curve.name for curve in result.curves] == ["greedy"]
