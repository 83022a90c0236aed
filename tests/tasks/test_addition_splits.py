"""What is held out stays held out, swapped or not; what cannot be split is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headcount.config import parse
from headcount.errors import ConfigError
from headcount.runs.config import RunConfig
from headcount.tasks.addition import Addition, AdditionConfig

unhurried = settings(deadline=None, max_examples=25)
Pair = tuple[int, int]


def ordered(pairs: np.ndarray) -> set[Pair]:
    return {(a, b) for a, b in pairs.tolist()}


def unordered(pairs: np.ndarray) -> set[Pair]:
    """A pair and its swap are one thing here."""
    return {(min(pair), max(pair)) for pair in pairs.tolist()}


def addition(**settings: Any) -> Addition:
    return Addition(AdditionConfig(**settings))


@unhurried
@given(st.integers(0, 10**6), st.integers(1, 13), st.integers(1, 14))
@pytest.mark.slow
def test_draws_are_all_of_the_domain_but_what_is_held_out(seed: int, n_validation: int, n_test: int) -> None:
    """One digit has 55 pairs, so 4,000 draws leave none of the others out (chance below 1e-15)."""
    task = addition(digits=1, n_validation=n_validation, n_test=n_test, split_seed=seed)
    validation, test = unordered(task.split("validation")), unordered(task.split("test"))
    drawn = task.sample(np.random.default_rng(seed), 4000)
    everything = {(a, b) for a in range(10) for b in range(a, 10)}
    assert (len(validation), len(test), len(validation & test)) == (n_validation, n_test, 0)
    assert unordered(drawn) == everything - validation - test
    assert ordered(drawn) == {pair for a, b in unordered(drawn) for pair in ((a, b), (b, a))}


@unhurried
@given(st.integers(0, 10**6))
@pytest.mark.slow
def test_two_digits_half_held_out_are_never_drawn(seed: int) -> None:
    task = addition(digits=2, n_validation=1000, n_test=1000, split_seed=seed)
    held = unordered(task.split("validation")) | unordered(task.split("test"))
    assert len(held) == 2000
    assert not held & unordered(task.sample(np.random.default_rng(seed), 2000))
    assert task.is_held_out(np.array(sorted(held))[:, ::-1]).all()


@unhurried
@given(st.integers(0, 10**6))
def test_a_fixed_training_set_is_all_that_is_drawn(seed: int) -> None:
    task = addition(digits=2, n_train=50, n_validation=500, n_test=500, split_seed=seed)
    train, held = task.split("train"), unordered(task.split("validation")) | unordered(task.split("test"))
    drawn = task.sample(np.random.default_rng(seed), 2000)
    assert ordered(drawn) == ordered(train)
    assert len(unordered(train)) == 50
    assert len(held) == 1000
    assert not unordered(train) & held


def test_what_is_held_out_depends_on_the_split_seed_alone() -> None:
    one, same, other = (addition(split_seed=seed).split("test") for seed in (1, 1, 2))
    assert (one == same).all()
    assert ordered(one) != ordered(other)


@pytest.mark.parametrize(("low", "high"), [(10, 20), (0, 99), (97, 99), (10, 99)])
def test_the_walk_meets_every_sum_once_and_answers_in_order(low: int, high: int) -> None:
    task = addition(digits=2, low=low, high=high, n_validation=1, n_test=1)
    blocks = list(task.iter_domain())
    pairs = [tuple(pair) for part in blocks for pair in part.tolist()]
    assert sorted(pairs) == [(a, b) for a in range(low, high + 1) for b in range(low, high + 1)]
    assert len(pairs) == task.domain_size
    assert [set(part.sum(axis=1).tolist()) for part in blocks] == [{total} for total in range(2 * low, 2 * high + 1)]


def test_older_data_shares_nothing_between_splits() -> None:
    task = Addition(RunConfig.build("addition", preset=["older"]).task)
    sets = [task.split(name) for name in ("train", "validation", "test")]
    assert [len(pairs) for pairs in sets] == [10_000, 2_000, 2_000]
    assert len(set().union(*map(unordered, sets))) == 14_000
    assert (sets[0].min(), sets[0].max()) == (0, 999)


@pytest.mark.slow
def test_newer_data_shares_as_much_as_chance_has_it() -> None:
    """Two splits drawn apart share 2,000 * 10,000 / 810,000 = 24.7 sums; over 20 seeds 494, give or take 22."""
    shared = 0
    for seed in range(20):
        task = Addition(RunConfig.build("addition", preset=["newer"], split_seed=seed).task)
        sets = {name: task.split(name) for name in ("train", "validation", "test")}
        unique = {name: ordered(pairs) for name, pairs in sets.items()}
        assert [len(pairs) for pairs in unique.values()] == [10_000, 2_000, 2_000]
        assert all(pairs.min() >= 100 and pairs.max() <= 999 for pairs in sets.values())
        shared += len(unique["train"] & unique["test"])
    assert abs(shared - 494) < 4 * 22


IMPOSSIBLE: dict[str, tuple[dict[str, Any], set[str]]] = {
    "no digits": ({"digits": 0}, {"digits"}),
    "too many digits": ({"digits": 10}, {"digits"}),
    "operands with too many digits": ({"digits": 2, "low": 100, "high": 1000}, {"low", "high"}),
    "negative operand": ({"low": -1}, {"low"}),
    "range upside down": ({"low": 500, "high": 400}, {"high"}),
    "high below the default low": ({"high": 99}, {"high"}),
    "nothing held out": ({"n_validation": 0, "n_test": 0}, {"n_validation", "n_test"}),
    "more than half set apart": ({"digits": 1, "n_validation": 14, "n_test": 14}, {"n_test"}),
    "training set too large": ({"digits": 2, "n_train": 2000, "n_validation": 24, "n_test": 24}, {"n_test"}),
    "unknown and wrong at once": ({"digit": 3, "n_train": -1, "split_seed": "x"}, {"digit", "n_train", "split_seed"}),
}


@pytest.mark.parametrize(("settings", "wrong"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_impossible_settings_are_told_together(settings: dict[str, Any], wrong: set[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse({"task": AdditionConfig}, {"task": settings})
    assert {fault.where for fault in caught.value.faults} == {f"task.{name}" for name in wrong}


def test_exactly_half_of_the_pairs_may_be_set_apart() -> None:
    task = addition(digits=1, n_train=7, n_validation=10, n_test=10)
    sets = [unordered(task.split(name)) for name in ("train", "validation", "test")]
    assert len(set().union(*sets)) == 27 == 55 // 2


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"digits": 1}, "task.n_test"),
        ({"digits": 2}, "task.n_test"),
        ({"low": 990}, "task.n_test"),
        ({"n_train": 300_000}, "task.n_test"),
        ({"d_model": 30}, "model.n_heads"),
    ],
)
def test_a_default_that_no_longer_fits_is_a_fault(settings: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RunConfig.build("addition", **settings)
    assert [fault.where for fault in caught.value.faults] == [where]
