"""What each position means to a query: the tasks' arrays against plain words."""

from __future__ import annotations

import numpy as np
import pytest

from headcount.tasks.addition import Addition, AdditionConfig
from headcount.tasks.base import AttentionTargets
from headcount.tasks.sortedness import Sortedness

SOURCE = ["a100", "a10", "a1", "+", "b100", "b10", "b1"]


def keys_of(found: AttentionTargets, target: str, query: int, n_keys: int) -> list[int]:
    """The keys that are this target of a query, in the first example."""
    where = found.targets[target](np.array([[query]]), np.arange(n_keys)[None])
    return np.flatnonzero(np.broadcast_to(where, (1, 1, n_keys))[0, 0]).tolist()


def named(found: AttentionTargets, target: str, query: int) -> str:
    return " ".join(SOURCE[key] for key in keys_of(found, target, query, len(SOURCE)))


@pytest.fixture
def adder() -> Addition:
    return Addition()


def test_cross_attention_is_from_the_digit_being_predicted(adder: Addition) -> None:
    found = adder.attention_targets("decoder", "cross", np.array([[374, 814]]))
    assert found.columns == ("1000s", "100s", "10s", "1s")
    assert found.query_column.tolist() == [0, 1, 2, 3]
    assert [named(found, "aligned column", q) for q in range(4)] == ["", "a100 b100", "a10 b10", "a1 b1"]
    assert [named(found, "carry column", q) for q in range(4)] == ["a100 b100", "a10 b10", "a1 b1", ""]
    assert {named(found, "operator", q) for q in range(4)} == {"+"}
    assert [named(found, "diagonal", q) for q in range(4)] == SOURCE[:4]
    assert named(found, "first token", 2) == "a100"


def test_an_operand_digit_has_the_other_operand_as_target(adder: Addition) -> None:
    found = adder.attention_targets("encoder", "self", np.array([[374, 814]]))
    assert found.columns == ("100s", "10s", "1s")
    assert found.query_column.tolist() == [0, 1, 2, -1, 0, 1, 2]
    assert [named(found, "aligned column", q) for q in range(7)] == ["b100", "b10", "b1", "", "a100", "a10", "a1"]
    assert named(found, "carry column", 4) == "a10 b10"
    assert named(found, "carry column", 2) == named(found, "carry column", 3) == ""
    assert set(found.targets) == {"operator", "diagonal", "aligned column", "carry column", "first token"}


def test_the_decoder_has_its_previous_output_as_target(adder: Addition) -> None:
    found = adder.attention_targets("decoder", "self", np.array([[374, 814]]))
    assert set(found.targets) == {"previous output", "first token"}
    assert [keys_of(found, "previous output", q, 4) for q in range(4)] == [[], [1], [2], [3]]
    assert keys_of(found, "first token", 3, 4) == [0]


@pytest.mark.parametrize("least_first", [False, True])
@pytest.mark.parametrize(("stack", "kind"), [("encoder", "self"), ("decoder", "self"), ("decoder", "cross")])
def test_a_carry_comes_into_a_column_where_the_lower_digits_make_one(stack: str, kind: str, least_first: bool) -> None:
    adder = Addition(AdditionConfig(least_first=least_first))
    examples = adder.split("test")[:300]
    found = adder.attention_targets(stack, kind, examples)
    assert (found.condition.yes, found.condition.no) == ("carry in", "no carry in")
    operand, written = ("100s", "10s", "1s"), ("1000s", "100s", "10s", "1s")
    assert found.columns == (operand if stack == "encoder" else written)[:: -1 if least_first else 1]
    assert len(examples) == 300
    for example, holds in zip(examples.tolist(), found.condition.holds, strict=True):
        for column, carried in zip(found.columns, holds, strict=True):
            unit = int(column.removesuffix("s"))
            assert carried == (example[0] % unit + example[1] % unit >= unit)


def test_least_significant_first_turns_the_columns_round() -> None:
    found = Addition(AdditionConfig(least_first=True)).attention_targets("decoder", "cross", np.array([[374, 814]]))
    assert found.columns == ("1s", "10s", "100s", "1000s")
    assert keys_of(found, "aligned column", 0, 7) == [0, 4]
    assert keys_of(found, "carry column", 3, 7) == [2, 6]


def test_without_a_start_token_the_first_query_predicts_the_second_digit() -> None:
    adder = Addition(AdditionConfig(start_token=False))
    found = adder.attention_targets("decoder", "cross", np.array([[374, 814]]))
    assert found.columns == ("100s", "10s", "1s")
    assert named(found, "aligned column", 0) == "a100 b100"
    own = adder.attention_targets("decoder", "self", np.array([[374, 814]]))
    assert [keys_of(own, "previous output", q, 3) for q in range(3)] == [[0], [1], [2]]


def test_numbers_have_neighbours_and_equals_as_targets() -> None:
    found = Sortedness().attention_targets("layer", "self", np.array([[3, 5, 5, 9], [9, 9, 8, 9]]))
    assert (found.columns, found.query_column.tolist()) == ((), [-1] * 4)
    assert found.condition.holds.tolist() == [[True], [False]]
    assert keys_of(found, "left neighbour", 0, 4) == []
    assert keys_of(found, "left neighbour", 2, 4) == [1]
    assert keys_of(found, "right neighbour", 2, 4) == [3]
    assert keys_of(found, "right neighbour", 3, 4) == []
    assert keys_of(found, "itself", 2, 4) == [2]
    assert keys_of(found, "first token", 2, 4) == [0]
    equal = found.targets["equal numbers"](np.arange(4)[:, None], np.arange(4)[None])
    assert [np.flatnonzero(row).tolist() for row in equal[0]] == [[], [2], [1], []]
    assert [np.flatnonzero(row).tolist() for row in equal[1]] == [[1, 3], [0, 3], [], [0, 1]]
