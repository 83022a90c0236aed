"""The task `addition-long`: right answers, kinds of sums, how they are written, and what training never sees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headcount.errors import ConfigError, InputError
from headcount.runs.config import RunConfig
from headcount.tasks.addition_long import (
    END,
    EQUALS,
    KINDS,
    MOST_TRAINED,
    PAD,
    AdditionLong,
    AdditionLongConfig,
    Carries,
    add_texts,
    digits_of_text,
    kinds_of,
    lengths_of,
    sums_of,
    text_of,
)
from headcount.tasks.base import IGNORE, widened

STYLES: dict[str, dict[str, Any]] = {
    "least first": {},
    "least first, zeros": {"zero_fill": True},
    "most first": {"least_first": False},
    "most first, zeros": {"least_first": False, "zero_fill": True},
}
NUMBERS = st.integers(0, 10**10 - 1)


@pytest.fixture(params=STYLES)
def task(request: pytest.FixtureRequest) -> AdditionLong:
    return AdditionLong(AdditionLongConfig(**STYLES[request.param]))


def of(*sums: str) -> np.ndarray:
    return np.concatenate([AdditionLong().parse(text) for text in sums])


@settings(max_examples=60, deadline=None)
@given(NUMBERS, NUMBERS, st.sampled_from(sorted(STYLES)))
def test_answers_are_those_of_python(a: int, b: int, style: str) -> None:
    task = AdditionLong(AdditionLongConfig(**STYLES[style]))
    example = task.parse(f"{a}+{b}")[0]
    assert (task.show(example), task.answer(example)) == (f"{a}+{b}", str(a + b))
    written = task.show_tokens(task.encode(example[None]).answer[0])
    width = max(len(str(a)), len(str(b))) + 1
    assert written == (str(a + b).zfill(width) if task.config.zero_fill else str(a + b))
    assert not task.explain(example, task.encode(example[None]).answer[0])
    read = task.read_answer(written)
    assert read is not None
    assert np.array_equal(read, task.encode(example[None]).answer[0])


@pytest.mark.parametrize("n_digits", [1, 17, 18, 40, 999, 2500])
def test_answers_of_any_length_are_those_of_python(n_digits: int) -> None:
    task, rng = AdditionLong(), np.random.default_rng(n_digits)
    for kind in KINDS:
        for example in task.sample_of_length(rng, n_digits, kind, 3):
            a, b = map(text_of, example)
            right = str(int(a) + int(b))
            assert task.answer(example) == right
            assert task.show_tokens(task.encode(example[None]).answer[0]) == right
            assert max(len(a), len(b)) == n_digits


def test_both_ways_to_add_agree() -> None:
    sums = AdditionLong().sample(np.random.default_rng(0), 500)
    assert np.array_equal(sums_of(widened(sums, 9))[:, :11], sums_of(sums))
    longest = "9" * 7001
    assert add_texts(longest, "1") == "1" + "0" * 7001
    assert text_of(digits_of_text(longest, 7003)) == longest


def test_how_a_sum_is_written() -> None:
    example = AdditionLong(AdditionLongConfig(digits=4)).parse("374+81")
    written = {
        name: AdditionLong(AdditionLongConfig(digits=4, **each)).encode(example) for name, each in STYLES.items()
    }
    p, e, plus = PAD, END, 10
    sources = {name: batch.source[0].tolist() for name, batch in written.items()}
    assert sources == {
        "least first": [4, 7, 3, p, plus, 1, 8, p, p],
        "least first, zeros": [4, 7, 3, p, plus, 1, 8, 0, p],
        "most first": [p, 3, 7, 4, plus, p, p, 8, 1],
        "most first, zeros": [p, 3, 7, 4, plus, p, 0, 8, 1],
    }
    answers = {name: batch.answer[0].tolist() for name, batch in written.items()}
    assert answers == {
        "least first": [5, 5, 4, e, e, e],
        "least first, zeros": [5, 5, 4, 0, e, e],
        "most first": [4, 5, 5, e, e, e],
        "most first, zeros": [0, 4, 5, 5, e, e],
    }
    least_first = written["least first"]
    assert least_first.decoder_input[0].tolist() == [EQUALS, 5, 5, 4, e, e]
    assert least_first.labels[0].tolist() == [5, 5, 4, e, IGNORE, IGNORE]


def test_ids_of_both_orders_name_columns() -> None:
    source, fed = np.arange(9)[None], np.arange(6)[None]
    for name, expected in {
        "least first": ([1, 2, 3, 4, 0, 1, 2, 3, 4], [0, 1, 2, 3]),
        "most first, zeros": ([4, 3, 2, 1, 0, 4, 3, 2, 1], [5, 4, 3, 2, 1]),
    }.items():
        task = AdditionLong(AdditionLongConfig(digits=4, **STYLES[name]))
        tokens = task.encode(task.parse("374+81")).source
        for scheme in task.id_schemes if task.config.least_first else ("coupled",):
            ids = [part[0].tolist() for part in task.id_schemes[scheme](task.config).ids(tokens, source, fed)]
            assert ids[0] == expected[0]
            assert ids[1][: len(expected[1])] == expected[1]


# --- kinds of sums ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_digits", [2, 5, 10, 60])
@pytest.mark.parametrize("kind", KINDS)
def test_sums_are_of_the_kind_that_is_asked_for(kind: str, n_digits: int) -> None:
    sums = AdditionLong().sample_of_length(np.random.default_rng(0), n_digits, kind, 300)
    lengths, carries = lengths_of(sums), Carries.of(sums)
    assert (lengths.max(axis=1) == n_digits).all()
    n_carries, is_equal = carries.out.sum(axis=1), lengths[:, 0] == lengths[:, 1]
    truth = {
        "uniform": is_equal,
        "unequal": ~is_equal,
        "no-carry": n_carries == 0,
        "long-chain": carries.longest >= 1,
        "all-carry": n_carries == n_digits,
    }
    assert truth[kind].all()
    if kind == "long-chain" and n_digits > 5:
        assert carries.longest.mean() > n_digits / 3
    if kind in ("no-carry", "all-carry"):
        assert (kinds_of(sums) == kind).all()
    tops = np.take_along_axis(sums, lengths[..., None] - 1, axis=2)[..., 0]
    assert (tops[lengths > 1] > 0).all(), "no number has leading zeros"


def test_all_carry_has_its_extreme() -> None:
    task = AdditionLong()
    sums = {task.show(row) for row in task.sample_of_length(np.random.default_rng(0), 30, "all-carry", 300)}
    assert {f"{'9' * 30}+1", f"1+{'9' * 30}"} & sums


def test_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(InputError, match="all-carry"):
        AdditionLong().sample_of_length(np.random.default_rng(0), 5, "all-cary", 2)
    for kinds, words in (("uniform,plain", "plain"), ("uniform,uniform", "twice"), ("uniform:0", "not a weight")):
        with pytest.raises(ConfigError, match=words):
            RunConfig.build("addition-long", kinds=kinds)


def test_carries_are_those_of_adding_by_hand() -> None:
    for example in AdditionLong().sample(np.random.default_rng(3), 200):
        carry, out, values = 0, [], np.maximum(example, 0)
        for column in range(10):
            carry = int(values[0, column] + values[1, column] + carry > 9)
            out.append(bool(carry))
        assert Carries.of(example[None]).out[0].tolist() == out


# --- what training sees -----------------------------------------------------------------------------------------------


def test_training_has_every_number_of_digits_and_never_more_than_ten(task: AdditionLong) -> None:
    lengths = lengths_of(task.sample(np.random.default_rng(0), 5000))
    assert set(lengths.max(axis=1).tolist()) == set(range(1, MOST_TRAINED + 1))
    assert lengths.max() == MOST_TRAINED
    with pytest.raises(ConfigError, match="less than or equal to 10"):
        RunConfig.build("addition-long", digits=11)


def test_longer_sums_in_training_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    task = AdditionLong(AdditionLongConfig(n_validation=5, n_test=5))
    longer = task.sample_of_length(np.random.default_rng(0), 11, "uniform", 4)
    monkeypatch.setattr(AdditionLong, "is_held_out", lambda self, sums: np.zeros(len(sums), dtype=bool))
    monkeypatch.setattr(AdditionLong, "_draw", lambda self, rng, n: longer)
    with pytest.raises(AssertionError, match="never has longer"):
        task.sample(np.random.default_rng(0), 4)


def test_held_out_sums_are_not_trained_on_when_swapped_either() -> None:
    task = AdditionLong(AdditionLongConfig(digits=2, n_validation=100, n_test=100))
    held_out = np.concatenate(list(task.splits.values()))
    assert task.is_held_out(held_out).all()
    assert task.is_held_out(held_out[:, ::-1]).all()
    names = {tuple(sorted(map(text_of, row))) for row in held_out}
    assert len(names) == len(held_out)
    drawn = {tuple(sorted(map(text_of, row))) for row in task.sample(np.random.default_rng(0), 20_000)}
    assert not names & drawn
    assert len(drawn) > 1500, "training has most of the 5,050 sums"


def test_too_many_held_out_sums_are_an_error() -> None:
    with pytest.raises(InputError, match="too few"):
        AdditionLong(AdditionLongConfig(digits=1)).split("test")


# --- words ------------------------------------------------------------------------------------------------------------

WRONG = {
    ("374+816", "1180"): ("10s: 8, should be 9 (lost the carry from the 1s)", "lost the carry from the 1s"),
    ("374+815", "1199"): ("10s: 9, should be 8 (made up a carry from the 1s)", "made up a carry from the 1s"),
    ("999+1", "000"): ("length: 3 digits, should be 4 (lost the carry from the 100s)", "lost the carry from the 100s"),
    ("23+45", "168"): ("length: 3 digits, should be 2 (made up a carry from the 10s)", "made up a carry from the 10s"),
    ("23+45", "65"): ("1s: 5, should be 8", "1s off otherwise"),
}


@pytest.mark.parametrize("pair", WRONG)
def test_wrong_digits_are_explained(pair: tuple[str, str]) -> None:
    task, (question, answer) = AdditionLong(), pair
    predicted = np.full(12, END)
    predicted[: len(answer)] = [int(digit) for digit in reversed(answer)]
    explanation, fault = WRONG[pair]
    assert explanation in task.explain(task.parse(question)[0], predicted)
    assert fault in task.faults(task.parse(question)[0], predicted)


def test_answers_that_are_no_number_or_do_not_end() -> None:
    task = AdditionLong()
    example, right = task.parse("23+45")[0], np.array([8, 6])
    assert "not a number" in task.explain(example, np.array([8, 10, *[END] * 10]))
    assert task.faults(example, np.array([8, 10, *[END] * 10])) == ("not a number",)
    endless = np.array([*right, *[1] * 10])
    assert "length: 12 digits, should be 2" in task.explain(example, endless)


def test_any_number_of_digits_can_be_typed() -> None:
    task = AdditionLong()
    assert task.parse("7+8").shape == (1, 2, 10)
    long = task.parse(f"{'9' * 5000}+{'1' * 3}")
    assert long.shape == (1, 2, 5000)
    sized = task.sized_for(long)
    assert (len(sized.source_positions), sized.decoding_start.n_tokens) == (10_001, 5002)
    assert task.n_columns == 10, "the task itself is unchanged"
    with pytest.raises(InputError, match="digits"):
        task.parse("1" * 100_001 + "+1")


def test_quartets_differ_in_a_carry_alone(task: AdditionLong) -> None:
    quartets = task.quartets(np.random.default_rng(0), 20)
    assert bool(quartets) == (task.config.least_first or task.config.zero_fill)
    for four in quartets:
        without, with_event = (task.encode(part).answer[:, four.place] for part in four.examples[1:3])
        tokens = task.event_tokens(four.examples[1], four.place)
        assert np.array_equal(tokens, np.stack([without, with_event], axis=1))
        has = [task.has_event(part, four.place) for part in four.examples]
        assert [each.all() for each in has] == [False, False, True, True]
        assert not np.any(has[:2])


def test_targets_are_the_digits_of_the_column() -> None:
    for style in ("least first", "most first"):
        task = AdditionLong(AdditionLongConfig(digits=4, **STYLES[style]))
        examples = task.parse("374+81")
        targets = task.attention_targets("layer", "self", examples).targets
        batch = task.encode(examples)
        source, tokens = batch.source[0], np.concatenate([batch.source[0], batch.decoder_input[0]])
        query, keys = np.array([[len(source) + 1]]), np.arange(len(tokens))[None]
        aligned = np.broadcast_to(targets["aligned column"](query, keys), (1, 1, len(tokens)))[0, 0]
        assert sorted(tokens[aligned].tolist()) == [7, 8]
        carry = np.broadcast_to(targets["carry column"](query, keys), (1, 1, len(tokens)))[0, 0]
        assert sorted(tokens[carry].tolist()) == ([1, 4, 5] if style == "least first" else [1, 4])
    assert of("1+2", "3+4").shape == (2, 2, 10)
