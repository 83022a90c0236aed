"""Names of token ids, learned from encodings of known texts: right, or not claimed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headcount.data.alphabet import MOST_SPECIAL, Alphabet

SUMS = [(f"{a}+{b}", str(a + b)) for a, b in ((37, 81), (5, 99), (64, 18), (20, 46), (71, 3), (98, 57))]
CODES = {char: i + 20 for i, char in enumerate("0123456789+")}


def rows(texts: list[str], before: int, after: int, step: int, width: int = 0) -> list[list[int]]:
    """Ids of texts with special ones around them and, at last, padding."""
    made = [[1] * before + [CODES[char] for char in text[::step]] + [2] * after for text in texts]
    return [row + [0] * (width - len(row)) for row in made]


@pytest.mark.parametrize("step", [1, -1])
@pytest.mark.parametrize(("before", "after", "width"), [(0, 0, 0), (0, 1, 0), (1, 1, 9), (MOST_SPECIAL, 0, 20)])
def test_the_code_is_found(before: int, after: int, width: int, step: int) -> None:
    texts = [text for pair in SUMS for text in pair]
    found = Alphabet.learn(rows(texts, before, after, step, width), texts)
    assert found is not None
    assert {name: each for each, name in found.names.items()} == CODES
    assert found.tokens([1, 20, 30, 2]) == ["<1>", "0", "+", "<2>"]


def test_words() -> None:
    texts = ["3 5 5 19", "19 3 40", "5 40 19"]
    found = Alphabet.learn([[9, *map(int, text.split())] for text in texts], texts)
    assert found is not None
    assert found.tokens([9, 40, 3]) == ["<9>", "40", "3"]


@given(st.lists(st.integers(0, 10), min_size=5, max_size=5, unique=True))
def test_ids_that_do_not_go_with_characters_have_no_names(shuffled: list[int]) -> None:
    """Positions are no characters: each row counts from 0."""
    texts = [question for question, _ in SUMS if len(question) == 5]
    assert Alphabet.learn([shuffled for _ in texts], texts) is None


def test_too_little_is_not_enough_unless_it_is_plain() -> None:
    assert Alphabet.learn([[1, 7, 8, 2]], ["12"]) is None, "which are special?"
    found = Alphabet.learn([[7, 8]], ["12"])
    assert found is not None
    assert found.tokens([8, 7]) == ["2", "1"]
    assert Alphabet.learn([], []) is None
    assert Alphabet.learn([[1]], [""]) is None
