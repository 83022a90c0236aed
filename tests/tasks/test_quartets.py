"""Quartets of sums: one digit rises in equal steps, and the carry appears at the middle step alone."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reversal import Reversal

from headcount.errors import InputError
from headcount.seeds import stream
from headcount.tasks.addition import Addition, AdditionConfig, column_name, digits_of
from headcount.tasks.base import Quartets

N = 60


def adding(digits: int, low: int | None = None, high: int | None = None, *, least_first: bool = False) -> Addition:
    return Addition(
        AdditionConfig(digits=digits, low=low, high=high, least_first=least_first, n_validation=1, n_test=1)
    )


def column_of(name: str) -> int:
    return next(column for column in range(10) if column_name(column) == name)


def require_quartets(task: Addition, quartets: Quartets) -> None:
    """Check every property by schoolbook addition of Python's integers."""
    source, read = column_of(quartets.source), column_of(quartets.read)
    assert quartets.chain == read - source >= 1
    assert task.answer_positions[quartets.place].column == read
    assert task.answer_positions[quartets.place].label == quartets.read
    for four in zip(*(part.tolist() for part in quartets.examples), strict=True):
        changed = [i for i in range(2) if len({pair[i] for pair in four}) > 1]
        assert len(changed) == 1, "one operand changes"
        steps = {later[changed[0]] - pair[changed[0]] for pair, later in pairwise(four)}
        assert steps <= {10**source * step for step in (1, 2, 3)}
        assert len(steps) == 1, "by the same step each time"
        tops = {pair[changed[0]] // 10 ** (source + 1) for pair in four}
        assert len(tops) == 1, "no other digit changes"
        for pair, has_carry in zip(four, (False, False, True, True), strict=True):
            assert all(task.low <= number <= task.high for number in pair)
            assert (sum(number % 10**read for number in pair) >= 10**read) == has_carry, "into the column that is read"
            assert sum(number % 10**source for number in pair) < 10**source, "no carry comes into the source"
            own = [sum(number // 10**column % 10 for number in pair) for column in range(source + 1, read + 1)]
            assert own[:-1] == [9] * (read - source - 1), "columns on the way pass the carry on"
            assert own[-1] != 9, "the column that is read stops it"


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 4).flatmap(
        lambda digits: st.tuples(
            st.just(digits), st.lists(st.integers(0, 10**digits - 1), min_size=2, max_size=2).map(sorted)
        )
    ),
    st.booleans(),
    st.integers(0, 99),
)
def test_quartets_of_any_range(shape: tuple[int, list[int]], least_first: bool, seed: int) -> None:
    digits, (low, high) = shape
    if high - low < 3:
        low, high = 0, 10**digits - 1
    task = adding(digits, low, high, least_first=least_first)
    for quartets in task.quartets(np.random.default_rng(seed), 8):
        assert len(quartets) <= 8
        require_quartets(task, quartets)


@pytest.mark.parametrize("least_first", [False, True])
@pytest.mark.parametrize("digits", [1, 2, 3, 4])
def test_every_way_has_quartets(digits: int, least_first: bool) -> None:
    task = adding(digits, least_first=least_first)
    quartets = task.quartets(stream(0, "quartets"), N)
    ways = [(column_name(i), column_name(j)) for i in range(digits) for j in range(i + 1, digits + 1)]
    assert [(each.source, each.read) for each in quartets] == ways
    for each in quartets:
        require_quartets(task, each)
        assert len(each) == (36 if digits == 1 else N)
        assert len(np.unique(np.concatenate(each.examples, axis=1), axis=0)) == len(each), "no quartet twice"
        assert len({tuple(part[0]) for part in each.examples}) == 4


@pytest.mark.parametrize("least_first", [False, True])
@pytest.mark.parametrize("digits", [1, 2, 3, 4])
def test_the_event_changes_the_place_that_is_read_as_the_task_says(digits: int, least_first: bool) -> None:
    task = adding(digits, least_first=least_first)
    for quartets in task.quartets(stream(0, "quartets"), N):
        place, rows = quartets.place, np.arange(len(quartets))
        for part, has_event in zip(quartets.examples, (0, 0, 1, 1), strict=True):
            assert (task.has_event(part, place) == bool(has_event)).all()
            tokens, answers = task.event_tokens(part, place), task.encode(part).answer
            assert (answers[rows, place] == tokens[rows, has_event]).all()
            assert (tokens[:, 0] != tokens[:, 1]).all()
        without, with_event = (task.encode(part).answer for part in quartets.examples[1:3])
        changed = np.flatnonzero((without != with_event).any(axis=0)).tolist()
        assert place == (changed[-1] if least_first else changed[0]), "it is the last column that the carry reaches"
        assert len(changed) == quartets.chain + 1


@pytest.mark.parametrize("least_first", [False, True])
def test_events_are_carries_of_any_sum(least_first: bool) -> None:
    task = adding(3, 0, 999, least_first=least_first)
    sums = np.random.default_rng(0).integers(1000, size=(200, 2))
    for place, position in enumerate(task.answer_positions):
        column = position.column or 0
        assert (task.has_event(sums, place) == ((sums % 10**column).sum(axis=1) >= 10**column)).all()
        digits = digits_of(sums, 4)[:, :, column].sum(axis=1)
        assert (task.event_tokens(sums, place) == np.stack([digits % 10, (digits + 1) % 10], axis=1)).all()


def test_quartets_are_drawn_by_their_seed() -> None:
    task = adding(2)
    one, same, other = (task.quartets(np.random.default_rng(seed), N) for seed in (1, 1, 2))
    for a, b, c in zip(one, same, other, strict=True):
        assert all((x == y).all() for x, y in zip(a.examples, b.examples, strict=True))
        assert any((x != y).any() for x, y in zip(a.examples, c.examples, strict=True))


def test_sums_of_one_digit_have_all_their_quartets() -> None:
    """There are 36: few enough to be counted here, and more than an analysis of routes needs."""
    (quartets,) = adding(1).quartets(stream(0, "quartets"), 1000)
    expected = set()
    for a, b, step in product(range(10), range(10), (1, 2, 3)):
        if a + b <= 9 < a + b + step and a - step >= 0 and a + 2 * step <= 9:
            expected |= {(a, b, a + step, b), (b, a, b, a + step)}
    assert {
        (*one, *other) for one, other in zip(*(part.tolist() for part in quartets.examples[1:3]), strict=True)
    } == expected
    assert len(quartets) == len(expected) == 36
    assert len(np.unique(quartets.examples[1][:15], axis=0)) == 15, "different sums come first"


def test_both_operands_and_all_steps_occur() -> None:
    for quartets in adding(3, 0, 999).quartets(stream(0, "quartets"), 200):
        steps = quartets.examples[2] - quartets.examples[1]
        assert 0.3 < (steps[:, 0] > 0).mean() < 0.7
        assert set((steps.sum(axis=1) // 10 ** column_of(quartets.source)).tolist()) == {1, 2, 3}


def test_a_range_without_carries_has_no_quartets() -> None:
    assert [len(each) for each in adding(1, 0, 4).quartets(stream(0, "quartets"), N)] == [0]
    sizes = [len(each) for each in adding(3, 100, 199).quartets(stream(0, "quartets"), N)]
    assert sizes == [N, N, 0, N, 0, 0], "two numbers from 100 to 199 never have a carry into the 1000s"


def test_a_task_without_an_event_has_no_quartets() -> None:
    task = Reversal()
    assert task.quartets(stream(0, "quartets"), N) == []
    for ask in (task.event_tokens, task.has_event):
        with pytest.raises(InputError, match="reversal has no event"):
            ask(task.split("test"), 0)
