"""The sum-9 contrast: one digit goes up by one, twice, and only the second step makes a carry."""

from __future__ import annotations

import numpy as np
import pytest

from headcount.tasks.addition import Addition, AdditionConfig

UNITS = {"10s": 10, "100s": 100, "1000s": 1000}


@pytest.mark.parametrize("settings", [{}, {"digits": 2}, {"digits": 1}, {"low": 250, "high": 780}, {"digits": 4}])
def test_one_digit_moves_and_the_second_step_carries(settings: dict[str, int]) -> None:
    task = Addition(AdditionConfig(**settings, n_validation=1, n_test=1))
    contrast = task.contrast(np.random.default_rng(0), 20)
    assert len(contrast.columns) > 1
    assert {len(step) for step in contrast.steps} == {len(contrast.columns)}
    sources = [task.encode(step).source for step in contrast.steps]
    for one, other in ((0, 1), (1, 2)):
        assert ((sources[other] - sources[one]).sum(axis=1) == 1).all()
        assert ((sources[other] != sources[one]).sum(axis=1) == 1).all(), "one token, by one"
    for name, *steps in zip(contrast.columns, *contrast.steps, strict=True):
        unit = int(name.removesuffix("s"))
        lower = [sum(int(number) % unit // (unit // 10) for number in step) for step in steps]
        assert lower == [8, 9, 10]
        carried = [sum(int(number) % unit for number in step) >= unit for step in steps]
        assert carried == [False, False, True]
        above = [int(step.sum()) // (10 * unit) for step in steps]
        assert len(set(above)) == 1, "the carry goes no further"
        assert all(task.low <= number <= task.high for step in steps for number in step)


def test_every_column_has_as_many_as_were_asked_for_and_none_twice() -> None:
    contrast = Addition().contrast(np.random.default_rng(0), 200)
    assert {name: contrast.columns.count(name) for name in UNITS} == dict.fromkeys(UNITS, 200)
    for name in UNITS:
        rows = [i for i, column in enumerate(contrast.columns) if column == name]
        assert len(np.unique(contrast.steps[1][rows], axis=0)) == 200


def test_the_decoder_input_before_the_column_is_the_same() -> None:
    task = Addition()
    contrast = task.contrast(np.random.default_rng(0), 50)
    decoder_input = [task.encode(step).decoder_input for step in contrast.steps]
    for i, name in enumerate(contrast.columns):
        query = 3 - list(UNITS).index(name) - 1  # most significant first: the query that says this column
        before = {tuple(each[i, : query + 1].tolist()) for each in decoder_input}
        assert len(before) == 1
