"""The stored results of the packaged classifier belong to its weights and are reproducible."""

from __future__ import annotations

from typing import cast

import pytest
from asked_runs import stretch

from headcount.analysis.length_generalisation import REPORTED, Stretch
from headcount.limits import LENGTHS
from headcount.runs.run import load
from headcount.tasks.base import ClassTask
from headcount.tasks.sortedness import Sortedness


@pytest.fixture(scope="module")
def result() -> Stretch:
    return load("sample:sortedness").folder.read_result("stretch-draw1", Stretch)


def test_its_stretch_is_of_these_weights(result):
    run = load("sample:sortedness")
    assert result.weights_sha256 == run.weights_sha256
    assert result.hard_codes == ("window of ±1",)
    assert result.trained == (8, 16) == cast(ClassTask, run.task).trained_lengths
    assert result.draw == REPORTED


def test_it_reaches_every_length_with_every_negative(result):
    assert {(cell.length, cell.negative) for cell in result.cells} == {
        (n, k) for n in LENGTHS for k in (*Sortedness.negatives, "patterns")
    }
    for cell in result.cells:
        assert cell.n >= 1000
        assert cell.accuracy == 1, "it is proved"
        assert not cell.constant


def test_a_part_of_it_is_measured_again(result):
    again = stretch(load("sample:sortedness"), [256], ["adjacent"], 60)
    assert again.cells[0].accuracy >= 0.98


@pytest.mark.parametrize(("text", "answer"), [("3 5 5 9", "sorted"), ("3 5 4 9", "unsorted"), ("7", "sorted")])
def test_it_answers_short_sequences_too(text, answer):
    assert load("sample:sortedness").predict(text) == answer
