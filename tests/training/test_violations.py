"""The decision about a table of contexts equals brute force over all short sequences."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from small_sorters import all_sequences, allowed_pairs, leads_by_hand

from headcount.tasks.base import EMPTY
from headcount.training.contexts import ContextShape
from headcount.training.violations import Decision, as_examples

N, LONGEST = 4, 6
SHAPES = [ContextShape(1, 1, N), ContextShape(2, 0, N), ContextShape(1, 0, N)]
Table = NDArray[np.float64]


@pytest.fixture(autouse=True)
def _short_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths through three or four symbols are short, and following them for 1,000 steps takes seconds."""
    monkeypatch.setattr("headcount.training.violations.MOST_STEPS", 60)


def is_broken(allowed: NDArray[np.bool_], sequence: tuple[int, ...]) -> bool:
    return any(not allowed[pair] for pair in itertools.pairwise(sequence))


def contexts_of(shape: ContextShape) -> Iterator[tuple[int, ...]]:
    """Yield every context, found in sequences that are long enough to have all of them."""
    for sequence in all_sequences(shape.n_tokens, shape.width):
        padded = (shape.n_tokens,) * shape.left + sequence + (shape.n_tokens,) * shape.right
        yield from (padded[i : i + shape.width] for i in range(len(sequence)))


def right_table(shape: ContextShape) -> Table:
    """Return leads that are right on every sequence: a context fires if it contains a broken pair."""
    leads = np.full((shape.n_tokens + 1,) * shape.width, np.nan)
    for context in contexts_of(shape):
        inside = tuple(token for token in context if token != shape.n_tokens)
        leads[context] = 1.0 if is_broken(allowed_pairs(shape.n_tokens), inside) else -1.0
    return leads


def wrong_by_force(shape: ContextShape, leads: Table, allowed: NDArray[np.bool_], longest: int) -> set[tuple[int, ...]]:
    return {
        each
        for each in all_sequences(shape.n_tokens, longest)
        if (max(leads_by_hand(leads, shape, each)) > 0) != is_broken(allowed, each)
    }


def require_agreement(
    shape: ContextShape, leads: Table, allowed: NDArray[np.bool_], longest: int = LONGEST
) -> Decision:
    """Compare the decision, the shortest wrong sequence and the drawn wrong sequences with brute force."""
    decision, rng = Decision(shape, allowed, leads), np.random.default_rng(0)
    wrong = wrong_by_force(shape, leads, allowed, longest)
    shortest = decision.shortest_wrong_sequence(rng)
    assert decision.is_right == (not shortest)
    if wrong:
        assert tuple(shortest) in wrong
        assert len(shortest) == min(map(len, wrong))
        long = tuple(decision.shortest_wrong_sequence(rng, 3))
        assert len(long) == min((len(each) for each in wrong if len(each) >= 3), default=len(long))
    else:
        assert decision.is_right or len(shortest) > longest
    for drawn in decision.wrong_sequences(rng, range(3, longest + 1), 50):
        assert 3 <= len(drawn) <= longest
        assert tuple(drawn) in wrong
    return decision


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("seed", range(8))
def test_random_tables(shape: ContextShape, seed: int) -> None:
    rng = np.random.default_rng(seed)
    leads = right_table(shape)
    noise = 4.0 if seed < 4 else np.where(rng.random(leads.shape) < 0.1, 4.0, 0.5)
    require_agreement(shape, leads + noise * rng.uniform(-1, 1, leads.shape), allowed_pairs(N))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_right_table_is_right_and_every_single_fault_is_decided_like_brute_force(shape: ContextShape) -> None:
    """Every single change makes the table wrong, except for a quiet broken context whose neighbours fire."""
    leads, verdicts = right_table(shape), []
    assert require_agreement(shape, leads, allowed_pairs(N)).is_right
    for context in sorted(set(contexts_of(shape))):
        fault = leads.copy()
        fault[context] *= -1
        inside = tuple(token for token in context if token != N)
        decision = Decision(shape, allowed_pairs(N), fault)
        wrong = wrong_by_force(shape, fault, allowed_pairs(N), 4)
        assert decision.is_right == (not wrong)
        if not is_broken(allowed_pairs(N), inside):
            assert not decision.is_right
            assert decision.wrong_contexts.tolist() == [list(context)]
        verdicts.append(decision.is_right)
    assert not all(verdicts)


OUTSIDE = N  # outside of the sequence
PLANTED: dict[str, tuple[list[tuple[int, ...]], float, list[int]]] = {
    "one context inside": ([(1, 2, 3)], 1.0, [1, 2, 3]),
    "the left border": ([(OUTSIDE, 1, 3)], 1.0, [1, 3]),
    "the right border": ([(2, 2, OUTSIDE)], 1.0, [2, 2]),
    "length 1": ([(OUTSIDE, 2, OUTSIDE)], 1.0, [2]),
    "length 2": ([(OUTSIDE, 3, 1), (3, 1, OUTSIDE)], -1.0, [3, 1]),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found_as_the_shortest_sequence(name: str) -> None:
    contexts, lead, shortest = PLANTED[name]
    leads = right_table(SHAPES[0])
    for context in contexts:
        leads[context] = lead
    decision = require_agreement(SHAPES[0], leads, allowed_pairs(N))
    assert decision.shortest_wrong_sequence(np.random.default_rng(0)) == shortest


def test_a_fault_of_length_1_has_no_longer_wrong_sequence() -> None:
    leads = right_table(SHAPES[0])
    leads[N, 2, N] = 1.0
    decision = Decision(SHAPES[0], allowed_pairs(N), leads)
    assert decision.wrong_sequences(np.random.default_rng(0), range(2, 9), 10) == []
    assert decision.shortest_wrong_sequence(np.random.default_rng(0), 2) == []


def test_a_quiet_pair_that_needs_a_long_path() -> None:
    """Only the contexts of one sequence are quiet; its broken pair 3 2 has six tokens before it and two after it."""
    shape, sequence = SHAPES[0], (0, 0, 1, 1, 2, 2, 3, 2, 2, 3)
    leads, padded = np.abs(right_table(shape)), (N, *sequence, N)
    for i in range(len(sequence)):
        leads[padded[i : i + 3]] = -1.0
    decision = Decision(shape, allowed_pairs(N), leads)
    assert decision.wrong_edges.tolist() == [[2, 3, 2], [3, 2, 2]]
    by_force = wrong_by_force(shape, leads, allowed_pairs(N), 6)
    assert not any(is_broken(allowed_pairs(N), each) for each in by_force), "no shorter sequence shows it"
    assert tuple(decision.shortest_quiet_sequence(np.random.default_rng(0))) == sequence
    leads[2, 3, N] = 1.0  # no way leads to an end
    cut = Decision(shape, allowed_pairs(N), leads)
    assert not len(cut.wrong_edges)
    assert cut.shortest_quiet_sequence(np.random.default_rng(0)) == []


def test_a_margin_is_asked_of_both_classes() -> None:
    """A context counts as quiet below -margin and fires above +margin; a negative margin names what is surely wrong."""
    leads = right_table(SHAPES[0])
    leads[leads < 0], leads[leads > 0] = -0.2, 0.3
    allowed, rng = allowed_pairs(N), np.random.default_rng(0)
    assert Decision(SHAPES[0], allowed, leads, 0.1).is_right
    narrow = Decision(SHAPES[0], allowed, leads, 0.25)
    assert len(narrow.wrong_contexts) == int((leads == -0.2).sum())
    assert not len(narrow.wrong_edges)
    assert Decision(SHAPES[0], allowed, leads, 0.35).shortest_quiet_sequence(rng) != []
    leads[0, 1, 2] = 0.05
    assert Decision(SHAPES[0], allowed, leads, -0.04).shortest_wrong_sequence(rng) == [0, 1, 2]
    assert Decision(SHAPES[0], allowed, leads, -0.06).is_right, "not surely wrong"


def test_the_largest_lead_comes_first() -> None:
    leads = right_table(SHAPES[0])
    leads[0, 0, 1], leads[1, 1, 2] = 2.0, 3.0
    assert Decision(SHAPES[0], allowed_pairs(N), leads).wrong_contexts.tolist() == [[1, 1, 2], [0, 0, 1]]


def test_a_lead_of_0_is_wrong_for_both_classes() -> None:
    leads = right_table(SHAPES[0])
    leads[leads > 0] = 0.0
    assert not Decision(SHAPES[0], allowed_pairs(N), leads).is_right
    leads = right_table(SHAPES[0])
    leads[leads < 0] = 0.0
    assert not Decision(SHAPES[0], allowed_pairs(N), leads).is_right


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_any_table_and_any_pairs_for_three_symbols(data: st.DataObject) -> None:
    """The tables fire anywhere and the pairs are not an order."""
    shape = data.draw(st.sampled_from([ContextShape(1, 1, 3), ContextShape(1, 0, 3), ContextShape(2, 0, 3)]))
    contexts = sorted(set(contexts_of(shape)))
    bits = lambda n: data.draw(st.lists(st.booleans(), min_size=n, max_size=n))  # noqa: E731
    allowed: NDArray[Any] = np.array(bits(9)).reshape(3, 3)
    leads = np.full((4,) * shape.width, np.nan)
    broken = (is_broken(allowed, tuple(t for t in each if t != 3)) for each in contexts)
    flips = bits(len(contexts)) if data.draw(st.booleans()) else [False] * len(contexts)
    for context, fires, flipped in zip(contexts, broken, flips, strict=True):
        leads[context] = 1.0 if fires != flipped else -1.0
    for context in data.draw(st.lists(st.sampled_from(contexts), max_size=3)):
        leads[context] *= -1
    require_agreement(shape, leads, allowed, longest=6)


def test_sequences_as_examples() -> None:
    assert as_examples([[3, 1], [2]], 3).tolist() == [[3, 1, EMPTY], [2, EMPTY, EMPTY]]
    assert as_examples([], 3).shape == (0, 3)
