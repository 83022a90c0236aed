"""The addition task and plain Python, which must agree."""

from __future__ import annotations

import dataclasses
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headcount.errors import InputError
from headcount.tasks.addition import Addition, AdditionConfig
from headcount.tasks.base import IGNORE, DecodingStart

unhurried = settings(deadline=None)
Sums = tuple[Addition, np.ndarray]


@st.composite
def sums(draw: st.DrawFn) -> Sums:
    """A task of 1 to 9 digits in either order, and some sums of it."""
    digits = draw(st.integers(1, 9))
    config = AdditionConfig(digits=digits, low=0, n_validation=1, n_test=1, least_first=draw(st.booleans()))
    # Digit by digit, so that carries start and stop anywhere.
    operand = st.text("0123456789", min_size=digits, max_size=digits).map(int)
    pairs = draw(st.lists(st.tuples(operand, operand), min_size=1, max_size=5))
    return Addition(config), np.array(pairs)


def written(number: int, n_digits: int, task: Addition) -> str:
    """The number as the task writes it, by way of Python's own formatting."""
    text = str(number).zfill(n_digits)
    return text[::-1] if task.config.least_first else text


def spelled(task: Addition, tokens: np.ndarray) -> str:
    return "".join(task.tokens[token] for token in tokens)


@unhurried
@given(sums())
def test_tokens_spell_the_sum_and_its_answer(made: Sums) -> None:
    task, pairs = made
    batch, n = task.encode(pairs), task.config.digits
    assert all(part.dtype == np.int64 for part in (batch.source, batch.decoder_input, batch.labels, batch.answer))
    for row, (a, b) in enumerate(pairs.tolist()):
        answer = written(a + b, n + 1, task)
        assert spelled(task, batch.source[row]) == f"{written(a, n, task)}+{written(b, n, task)}"
        assert spelled(task, batch.answer[row]) == spelled(task, batch.labels[row]) == answer
        assert spelled(task, batch.decoder_input[row]) == "<s>" + answer[:-1]
        assert int(task.show_tokens(batch.answer[row])) == a + b


@unhurried
@given(sums())
def test_positions_mean_what_is_there(made: Sums) -> None:
    task, pairs = made
    batch = task.encode(pairs)
    for tokens, positions in [
        (batch.source, task.source_positions),
        (batch.decoder_input, task.decoder_input_positions),
        (batch.answer, task.answer_positions),
    ]:
        assert tokens.shape[1] == len(positions)
        for at, position in enumerate(positions):
            if position.column is None:
                meant = {"operator": "+", "start": "<s>"}[position.role]
                assert {task.tokens[token] for token in tokens[:, at]} == {meant} == {position.label}
                continue
            number = pairs.sum(axis=1) if position.role == "sum" else pairs[:, position.operand]
            assert position.role == ("sum" if position.operand is None else "operand")
            assert tokens[:, at].tolist() == [n // 10**position.column % 10 for n in number.tolist()]


def test_positions_are_labelled_for_people() -> None:
    labels = [position.label for position in Addition().source_positions]
    assert labels == ["a 100s", "a 10s", "a 1s", "+", "b 100s", "b 10s", "b 1s"]
    assert [position.label for position in Addition().decoder_input_positions] == ["<s>", "1000s", "100s", "10s"]


def plain_carries(a: int, b: int, n_columns: int) -> list[bool]:
    """The carry out of each column, as one learns it in school."""
    carry, out = 0, []
    for _ in range(n_columns):
        carry = (a % 10 + b % 10 + carry) // 10
        a, b = a // 10, b // 10
        out.append(carry == 1)
    return out


@unhurried
@given(sums())
def test_carries_and_facets_are_those_of_a_plain_loop(made: Sums) -> None:
    task, pairs = made
    carries, facets, n = task.carries(pairs), task.facets(pairs), task.config.digits
    for row, (a, b) in enumerate(pairs.tolist()):
        out = plain_carries(a, b, n)
        longest = max((len(list(run)) for carried, run in groupby(out) if carried), default=0)
        assert carries.out[row].tolist() == out
        assert carries.into[row].tolist() == [False, *out[:-1]]
        assert (carries.count[row], carries.longest[row]) == (sum(out), longest)
        assert (facets["carries"][row], facets["longest chain"][row]) == (str(sum(out)), str(longest))
        assert facets["sum"][row] == (f"from {10**n}" if out[-1] else f"below {10**n}")


@unhurried
@given(sums(), st.booleans(), st.booleans())
@pytest.mark.slow
def test_each_fault_changes_decoder_input_and_labels_and_nothing_else(made: Sums, unstarted: bool, zeros: bool) -> None:
    task, pairs = made
    faulty = Addition(dataclasses.replace(task.config, start_token=not unstarted, loss_ignores_zero=zeros))
    right, wrong = task.encode(pairs), faulty.encode(pairs)
    assert (wrong.source == right.source).all()
    assert (wrong.answer == right.answer).all()
    labels = right.answer[:, 1:] if unstarted else right.answer
    assert (wrong.decoder_input == (right.answer[:, :-1] if unstarted else right.decoder_input)).all()
    assert (wrong.labels == (np.where(labels == 0, IGNORE, labels) if zeros else labels)).all()
    assert faulty.decoder_input_positions == (task.answer_positions[:-1] if unstarted else task.decoder_input_positions)
    n = task.config.digits
    sound, faulty_start = DecodingStart(task.tokens.index("<s>"), (), n + 1), DecodingStart(0, (0,), n)
    assert faulty.decoding_start == (faulty_start if unstarted else sound)
    assert task.decoding_start == sound


@unhurried
@given(sums(), st.sampled_from(["{a}+{b}", " {a} + {b} ", "{a}+ {b}\n", "0{a}+00{b}"]))
def test_a_sum_is_read_back_however_it_is_spaced(made: Sums, form: str) -> None:
    task, pairs = made
    for pair in pairs:
        assert task.parse(task.show(pair)).tolist() == [pair.tolist()]
        assert task.parse(form.format(a=pair[0], b=pair[1])).tolist() == [pair.tolist()]


BAD = ["374", "374+", "+814", "374-814", "374+814+1", "3.5+814", "-374+814", "a+b", "374 814", "３７４+814", "374+814="]


@pytest.mark.parametrize("text", BAD)
def test_text_that_is_no_sum_is_told_how_to_write_one(text: str) -> None:
    with pytest.raises(InputError) as caught:
        Addition().parse(text)
    assert caught.value.what == f"{text!r} is not a sum"
    assert "two numbers from 100 to 999 with a plus between" in caught.value.advice[0]


@pytest.mark.parametrize("text", ["", "  ", "\n"])
def test_no_text_is_told_so(text: str) -> None:
    with pytest.raises(InputError, match="no sum was given"):
        Addition().parse(text)


@pytest.mark.parametrize(
    ("text", "outside"), [("99+814", 99), ("374+1000", 1000), ("0+0", 0), ("374+99999999999", 99999999999)]
)
def test_an_operand_out_of_range_is_named(text: str, outside: int) -> None:
    with pytest.raises(InputError, match=f"^{outside} in '.*' is out of range"):
        Addition().parse(text)


@unhurried
@given(st.integers(1, 9), st.data())
def test_the_sum_that_the_advice_shows_can_be_read(digits: int, data: st.DataObject) -> None:
    low = data.draw(st.integers(0, 10**digits - 3))
    high = data.draw(st.integers(low + 2, 10**digits - 1))
    task = Addition(AdditionConfig(digits=digits, low=low, high=high, n_validation=1, n_test=1))
    with pytest.raises(InputError) as caught:
        task.parse("?")
    assert f"from {low} to {high}" in caught.value.advice[0]
    assert task.parse(caught.value.advice[0].split()[-1]).shape == (1, 2)


@pytest.mark.parametrize("least_first", [False, True])
@pytest.mark.parametrize(
    ("pair", "predicted", "explanation"),
    [
        ((300, 600), "0800", "100s: 8, should be 9"),
        ((374, 814), "0188", "1000s: 0, should be 1 (lost the carry from the 100s)"),
        ((100, 200), "0310", "10s: 1, should be 0 (made up a carry from the 1s)"),
        ((100, 200), "1300", "1000s: 1, should be 0 (made up a carry from the 100s)"),
        ((105, 105), "0200", "10s: 0, should be 1 (lost the carry from the 1s)"),
        ((195, 105), "0210", "100s: 2, should be 3 (lost the carry from the 10s); 10s: 1, should be 0"),
        ((105, 105), "0220", "10s: 2, should be 1"),
        ((100, 200), "0301", "1s: 1, should be 0"),
        ((374, 814), "1+88", "1+88 is not a number"),
    ],
)  # fmt: skip
def test_a_wrong_sum_is_explained(pair: tuple[int, int], predicted: str, explanation: str, least_first: bool) -> None:
    task = Addition(AdditionConfig(least_first=least_first))
    tokens = np.array([task.tokens.index(token) for token in (predicted[::-1] if least_first else predicted)])
    assert task.explain(np.array(pair), tokens) == explanation


def test_a_number_longer_than_python_reads_is_an_input_error() -> None:
    with pytest.raises(InputError):
        Addition().parse("9" * 5000 + "+1")
