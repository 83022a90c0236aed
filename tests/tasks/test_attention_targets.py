"""What each position means to a query: the tasks' arrays against plain words."""

from __future__ import annotations

import numpy as np
import pytest

from headcount.tasks.addition import Addition, AdditionConfig
from headcount.tasks.base import AttentionTargets
from headcount.tasks.sortedness import Sortedness

SOURCE = ["a100", "a10", "a1", "+", "b100", "b10", "b1"]


def keys_of(looks: AttentionTargets, target: str, query: int, n_keys: int) -> list[int]:
    """The keys that are this target of a query, in the first example."""
    where = looks.targets[target](np.array([[query]]), np.arange(n_keys)[None])
    return np.flatnonzero(np.broadcast_to(where, (1, 1, n_keys))[0, 0]).tolist()


def named(looks: AttentionTargets, target: str, query: int) -> str:
    return " ".join(SOURCE[key] for key in keys_of(looks, target, query, len(SOURCE)))


@pytest.fixture
def adder() -> Addition:
    return Addition()


def test_cross_attention_looks_from_the_digit_being_said(adder: Addition) -> None:
    looks = adder.attention_targets("decoder", "cross", np.array([[374, 814]]))
    assert looks.columns == ("1000s", "100s", "10s", "1s")
    assert looks.query_column.tolist() == [0, 1, 2, 3]
    assert [named(looks, "aligned column", q) for q in range(4)] == ["", "a100 b100", "a10 b10", "a1 b1"]
    assert [named(looks, "carry column", q) for q in range(4)] == ["a100 b100", "a10 b10", "a1 b1", ""]
    assert {named(looks, "operator", q) for q in range(4)} == {"+"}
    assert [named(looks, "diagonal", q) for q in range(4)] == SOURCE[:4]
    assert named(looks, "first token", 2) == "a100"


def test_an_operand_digit_looks_at_the_other_operand(adder: Addition) -> None:
    looks = adder.attention_targets("encoder", "self", np.array([[374, 814]]))
    assert looks.columns == ("100s", "10s", "1s")
    assert looks.query_column.tolist() == [0, 1, 2, -1, 0, 1, 2]
    assert [named(looks, "aligned column", q) for q in range(7)] == ["b100", "b10", "b1", "", "a100", "a10", "a1"]
    assert named(looks, "carry column", 4) == "a10 b10"
    assert named(looks, "carry column", 2) == named(looks, "carry column", 3) == ""
    assert set(looks.targets) == {"operator", "diagonal", "aligned column", "carry column", "first token"}


def test_the_decoder_hears_what_it_just_said(adder: Addition) -> None:
    looks = adder.attention_targets("decoder", "self", np.array([[374, 814]]))
    assert set(looks.targets) == {"previous output", "first token"}
    assert [keys_of(looks, "previous output", q, 4) for q in range(4)] == [[], [1], [2], [3]]
    assert keys_of(looks, "first token", 3, 4) == [0]


@pytest.mark.parametrize("least_first", [False, True])
@pytest.mark.parametrize(("stack", "kind"), [("encoder", "self"), ("decoder", "self"), ("decoder", "cross")])
def test_a_carry_comes_into_a_column_where_the_lower_digits_make_one(stack: str, kind: str, least_first: bool) -> None:
    adder = Addition(AdditionConfig(least_first=least_first))
    examples = adder.split("test")[:300]
    looks = adder.attention_targets(stack, kind, examples)
    assert (looks.condition.yes, looks.condition.no) == ("carry in", "no carry in")
    for example, holds in zip(examples.tolist(), looks.condition.holds, strict=True):
        for column, carried in zip(looks.columns, holds, strict=True):
            unit = int(column.removesuffix("s"))
            assert carried == (example[0] % unit + example[1] % unit >= unit)


def test_least_significant_first_turns_the_columns_round() -> None:
    looks = Addition(AdditionConfig(least_first=True)).attention_targets("decoder", "cross", np.array([[374, 814]]))
    assert looks.columns == ("1s", "10s", "100s", "1000s")
    assert keys_of(looks, "aligned column", 0, 7) == [0, 4]
    assert keys_of(looks, "carry column", 3, 7) == [2, 6]


def test_without_a_start_token_the_first_query_says_the_second_digit() -> None:
    adder = Addition(AdditionConfig(start_token=False))
    looks = adder.attention_targets("decoder", "cross", np.array([[374, 814]]))
    assert looks.columns == ("100s", "10s", "1s")
    assert named(looks, "aligned column", 0) == "a100 b100"
    own = adder.attention_targets("decoder", "self", np.array([[374, 814]]))
    assert [keys_of(own, "previous output", q, 3) for q in range(3)] == [[0], [1], [2]]


def test_numbers_look_at_neighbours_and_equals() -> None:
    looks = Sortedness().attention_targets("layer", "self", np.array([[3, 5, 5, 9], [9, 9, 8, 9]]))
    assert (looks.columns, looks.query_column.tolist()) == ((), [-1] * 4)
    assert looks.condition.holds.tolist() == [[True], [False]]
    assert keys_of(looks, "left neighbour", 0, 4) == []
    assert keys_of(looks, "left neighbour", 2, 4) == [1]
    assert keys_of(looks, "right neighbour", 2, 4) == [3]
    assert keys_of(looks, "right neighbour", 3, 4) == []
    assert keys_of(looks, "itself", 2, 4) == [2]
    assert keys_of(looks, "first token", 2, 4) == [0]
    equal = looks.targets["equal numbers"](np.arange(4)[:, None], np.arange(4)[None])
    assert [np.flatnonzero(row).tolist() for row in equal[0]] == [[], [2], [1], []]
    assert [np.flatnonzero(row).tolist() for row in equal[1]] == [[1, 3], [0, 3], [], [0, 1]]
