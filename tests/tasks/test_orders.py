"""Sorted rows and four ways to unsort them, against plain Python."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headcount.errors import InputError
from headcount.tasks.sortedness import FILL, NEGATIVES, Rows, Values, first_broken, sorted_rows, unsorted_rows

unhurried = settings(deadline=None, max_examples=40)
seeds = st.integers(0, 2**32 - 1)
lengths = st.lists(st.integers(2, 14), min_size=1, max_size=8)
several = st.builds(Values, st.integers(2, 30), st.booleans(), st.sampled_from([0.0, 0.5, 1.0]))
Pairs = list[tuple[list[int], list[int]]]


def tokens(rows: Rows, n_tokens: list[int]) -> list[list[int]]:
    """The rows without what stands behind their ends, which must be `FILL` and nothing else."""
    assert all((row[n:] == FILL).all() for row, n in zip(rows, n_tokens, strict=True))
    found = [row[:n].tolist() for row, n in zip(rows, n_tokens, strict=True)]
    assert all(value != FILL for row in found for value in row)
    return found


def broken(kind: str, seed: int, n_tokens: list[int], values: Values) -> Pairs:
    """Each unsorted row, and the sorted one it was made of."""
    kinds = np.full(len(n_tokens), kind)
    made, ordered = unsorted_rows(np.random.default_rng(seed), kinds, np.array(n_tokens), values)
    assert made.shape == ordered.shape == (len(n_tokens), max(n_tokens))
    return list(zip(tokens(made, n_tokens), tokens(ordered, n_tokens), strict=True))


# --- sorted ---------------------------------------------------------------------------------------------------------


@unhurried
@given(seeds, st.lists(st.integers(0, 14), min_size=1, max_size=8), several)
def test_sorted_rows_are_sorted_and_within_their_values(seed: int, n_tokens: list[int], values: Values) -> None:
    for row in tokens(sorted_rows(np.random.default_rng(seed), np.array(n_tokens), values), n_tokens):
        assert row == sorted(row)
        assert all(0 <= value < values.n for value in row)
        if values.distinct and len(row) <= values.n:
            assert len(set(row)) == len(row)


def test_every_value_is_met() -> None:
    rng, n_tokens = np.random.default_rng(0), np.full(400, 5)
    for values in (Values(6), Values(6, distinct=True), Values(6, small_steps=1.0)):
        assert set(sorted_rows(rng, n_tokens, values).flatten().tolist()) == set(range(6))
    ties = sum(len(set(row)) < 5 for row in sorted_rows(rng, n_tokens, Values(6)).tolist())
    assert ties > 300


def spreads(small_steps: float) -> list[int]:
    """Largest minus smallest value of many rows among 1000 values."""
    rows = sorted_rows(np.random.default_rng(0), np.full(1000, 12), Values(1000, small_steps=small_steps))
    return (rows[:, -1] - rows[:, 0]).tolist()


def test_small_steps_is_the_share_of_rows_from_a_narrow_range() -> None:
    assert sum(spread < 300 for spread in spreads(0.0)) == 0
    few, many = (sum(spread < 300 for spread in spreads(small_steps)) / 1000 for small_steps in (0.5, 1.0))
    # A range below 300 has a log-uniform share of log 150 / log 500, a wider one is seldom used so little.
    assert many == pytest.approx(0.82, abs=0.06)
    assert few == pytest.approx(many / 2, abs=0.05)
    assert min(spreads(1.0)) <= 1, "the narrowest range holds two values"


# --- unsorted -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", NEGATIVES)
@unhurried
@given(seeds, lengths, several)
def test_an_unsorted_row_is_a_permutation_of_its_sorted_self(
    kind: str, seed: int, n_tokens: list[int], values: Values
) -> None:
    for row, ordered in broken(kind, seed, n_tokens, values):
        assert ordered == sorted(row)
        assert row != ordered


@unhurried
@given(seeds, lengths, several)
def test_adjacent_swaps_two_neighbours(seed: int, n_tokens: list[int], values: Values) -> None:
    for row, ordered in broken("adjacent", seed, n_tokens, values):
        i, j = (place for place, pair in enumerate(zip(row, ordered, strict=True)) if pair[0] != pair[1])
        assert j == i + 1
        assert (row[i], row[j]) == (ordered[j], ordered[i])
        assert sum(a > b for a, b in pairwise(row)) == 1


def moved(row: list[int]) -> set[tuple[int, ...]]:
    """Every row that has one value taken out and put back anywhere."""
    shorter = [(value, row[:i] + row[i + 1 :]) for i, value in enumerate(row)]
    return {(*rest[:j], value, *rest[j:]) for value, rest in shorter for j in range(len(row))}


@unhurried
@given(seeds, lengths, several)
def test_moved_one_moves_one_value(seed: int, n_tokens: list[int], values: Values) -> None:
    for row, ordered in broken("moved_one", seed, n_tokens, values):
        assert tuple(row) in moved(ordered)


def swaps_needed(row: list[int]) -> int:
    """How many swaps sort a row without ties: its values minus the cycles of its permutation."""
    target, cycles, seen = {value: place for place, value in enumerate(sorted(row))}, 0, set()
    for place in range(len(row)):
        cycles += place not in seen
        while place not in seen:
            seen.add(place)
            place = target[row[place]]
    return len(row) - cycles


@unhurried
@given(seeds, lengths)
def test_transpositions_swaps_no_more_often_than_it_should(seed: int, n_tokens: list[int]) -> None:
    for row, _ in broken("transpositions", seed, n_tokens, Values(30, distinct=True)):
        assert 1 <= swaps_needed(row) <= max(2, len(row) // 3)


@pytest.mark.parametrize(("length", "most"), [(5, 2), (8, 2), (12, 4), (14, 4)])
def test_transpositions_swaps_as_often_as_it_should(length: int, most: int) -> None:
    needed = [swaps_needed(row) for row, _ in broken("transpositions", 0, [length] * 60, Values(30, distinct=True))]
    assert max(needed) == most


def test_shuffle_and_moved_one_reach_every_order_they_can() -> None:
    values = Values(4, distinct=True)
    orders = {tuple(row) for row, _ in broken("shuffle", 0, [4] * 800, values)}
    assert len(orders) == 24 - 1
    orders = {tuple(row) for row, _ in broken("moved_one", 0, [4] * 800, values)}
    assert orders == moved([0, 1, 2, 3]) - {(0, 1, 2, 3)}


def test_every_neighbouring_pair_is_swapped_equally_often() -> None:
    starts = [int(first_broken(np.array([row]))[0]) for row, _ in broken("adjacent", 0, [5] * 2000, Values(9, True))]
    assert np.bincount(starts).tolist() == pytest.approx([500] * 4, abs=80)


def test_each_row_is_of_its_own_kind() -> None:
    kinds = np.array(["adjacent", "shuffle"] * 200)
    made, _ = unsorted_rows(np.random.default_rng(0), kinds, np.full(400, 10), Values(50, distinct=True))
    falls = (made[:, :-1] > made[:, 1:]).sum(axis=1)
    assert (falls[0::2] == 1).all()
    assert falls[1::2].mean() > 3


def test_a_single_number_cannot_be_unsorted_and_no_rows_are_no_rows() -> None:
    rng, none = np.random.default_rng(0), np.array([], dtype=np.int64)
    with pytest.raises(InputError, match="unsorted sequences need at least two numbers"):
        unsorted_rows(rng, np.array(["shuffle"] * 2), np.array([5, 1]), Values(9))
    made, ordered = unsorted_rows(rng, none.astype(str), none, Values(9))
    assert len(made) == len(ordered) == 0


# --- where the first pair is broken ---------------------------------------------------------------------------------


@unhurried
@given(st.lists(st.lists(st.integers(0, 5), max_size=9), min_size=1, max_size=6))
def test_first_broken_is_the_first_fall(rows: list[list[int]]) -> None:
    width = max(map(len, rows))
    array = np.array([row + [FILL] * (width - len(row)) for row in rows], dtype=np.int64).reshape(len(rows), width)
    expected = [next((i for i, (a, b) in enumerate(pairwise(row)) if a > b), -1) for row in rows]
    assert first_broken(array).tolist() == expected
