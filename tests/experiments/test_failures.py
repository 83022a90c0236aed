"""What broke, counted by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import numpy as np
import pytest

from headcount.analysis.ablation import ablate
from headcount.experiments.decoding_check import SHOWN, Failure, Group, failure_profile
from headcount.experiments.experiment import task_experiment
from headcount.runs.run import Run
from headcount.tasks.addition import Addition, AdditionConfig
from headcount.tasks.base import SequenceTask

SUMS = np.array([[15, 17], [20, 30], [95, 15], [11, 12], [44, 44], [99, 11], [10, 10], [77, 13]])
"""Carries: 1, 0, 2, 0, 0, 2, 0, 1."""


@pytest.fixture
def adder() -> Addition:
    return Addition(AdditionConfig(digits=2, n_validation=10, n_test=10))


def test_places_faults_and_groups_are_counted(adder: Addition) -> None:
    predicted = {0: "022", 2: "100", 5: "110", 3: "023"}  # 032, 110, 110, 023: two right ones among them
    broken = [Failure(i, np.array([*map(int, text)])) for i, text in predicted.items()]
    rows = np.array([*predicted, 7])  # one more broke that was not decoded
    found = failure_profile(adder, SUMS, "encoder.0.self.0", "zero", rows, broken)
    assert (found.head, found.replacement, found.n_broken) == ("encoder.0.self.0", "zero", 5)
    assert found.places == (
        Group("digit", "100s", 0, 4),
        Group("digit", "10s", 2, 4),
        Group("digit", "1s", 0, 4),
    )
    assert found.faults == (Group("fault", "lost the carry from the 1s", 2, 4),)
    assert found.n_event_errors == 2
    both = failure_profile(adder, SUMS, "h", "zero", rows[:1], [Failure(0, np.array([9, 2, 2]))])
    assert both.n_event_errors == 0, "it lost a carry, and its first digit is wrong as well"
    carries = [(group.group, group.broken, group.n) for group in found.groups if group.facet == "carries"]
    assert carries == [("0", 1, 4), ("1", 2, 2), ("2", 2, 2)]
    for facet in ("carries", "longest chain", "sum"):
        mine = [group for group in found.groups if group.facet == facet]
        assert sum(group.broken for group in mine) == 5
        assert sum(group.n for group in mine) == len(SUMS)
    first = found.examples[0]
    assert (first.example, first.right, first.predicted) == ("15+17", "032", "022")
    assert "carry" in first.explanation


def test_the_most_frequent_fault_comes_first(adder: Addition) -> None:
    texts = {0: "932", 1: "950", 3: "022", 4: "888"}
    broken = [Failure(i, np.array([*map(int, text)])) for i, text in texts.items()]
    found = failure_profile(adder, SUMS, "h", "mean", np.array([*texts]), broken)
    expected = Counter(
        fault
        for each in broken
        if each.predicted is not None
        for fault in adder.faults(SUMS[each.example], each.predicted)
    )
    assert {(g.group, g.broken) for g in found.faults} == set(expected.items())
    counts = [group.broken for group in found.faults]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1]
    assert [group.broken for group in found.places] == [3, 0, 1]


def test_what_was_not_decoded_is_counted_all_the_same(adder: Addition) -> None:
    found = failure_profile(adder, SUMS, "h", "zero", np.array([0, 2]), [Failure(0, None), Failure(2, None)])
    assert (found.n_broken, found.places, found.faults, found.examples) == (2, (), (), ())
    assert sum(group.broken for group in found.groups if group.facet == "carries") == 2


def test_nothing_broke(adder: Addition) -> None:
    found = failure_profile(adder, SUMS, "h", "zero", np.array([], dtype=int), [])
    assert (found.n_broken, found.examples) == (0, ())
    assert {group.broken for group in found.groups} == {0}


def test_a_few_examples_are_kept(adder: Addition) -> None:
    broken = [Failure(i, np.array([9, 9, 9])) for i in range(len(SUMS))]
    found = failure_profile(adder, SUMS, "h", "zero", np.arange(len(SUMS)), broken)
    assert [wrong.example for wrong in found.examples] == [adder.show(each) for each in SUMS[:SHOWN]]
    assert found.places[0].n == len(SUMS)


def test_a_classifier_predicts_the_other_class(tiny_sorter: Run) -> None:
    task: Any = tiny_sorter.task
    examples = task.split("test")
    labels = task.encode(examples).labels
    rows = np.array([int(labels.argmin()), int(labels.argmax())])
    found = failure_profile(task, examples, "layer.0.self.0", "zero", rows, [Failure(int(row), None) for row in rows])
    assert (found.n_broken, found.places, found.faults) == (2, (), ())
    assert [(wrong.right, wrong.predicted) for wrong in found.examples] == [
        ("unsorted", "sorted"),
        ("sorted", "unsorted"),
    ]
    assert all(wrong.explanation for wrong in found.examples)
    by_length = [group for group in found.groups if group.facet == "length"]
    assert sum(group.n for group in by_length) == len(examples)
    assert sum(group.broken for group in by_length) == 2


def test_what_broke_is_what_got_worse(good_run: Run) -> None:
    """From the sweep to the table: only examples that were right before."""
    every = np.concatenate(list(cast(SequenceTask, good_run.task).iter_domain()))
    experiment = task_experiment(good_run, every, "")
    found = ablate(experiment, ("zero",), examples=True)
    pairs = list(zip(found.condition.failures, found.effects, strict=True))
    assert [(each.head, each.n_broken) for each, _ in pairs] == [(effect.head, effect.worse) for _, effect in pairs]
    assert any(each.n_broken for each, _ in pairs)
    for each, _ in pairs:
        assert len(each.examples) == min(SHOWN, each.n_broken)
        assert all(wrong.predicted != wrong.right for wrong in each.examples)
        assert sum(group.broken for group in each.places) >= each.n_broken
