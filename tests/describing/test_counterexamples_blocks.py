"""The first sentence about a search is its verdict, in the task's words."""

from __future__ import annotations

from typing import Any

import pytest
from printing import printed

from headcount.analysis.counterexamples import CounterexampleSearch
from headcount.describing.blocks import Commands, Conclusions, DataTable
from headcount.describing.verification import describe, verdict
from headcount.training.evaluation import WrongAnswer

SORTER = (WrongAnswer("0 0 0 0 0 0 0 17", "sorted", "unsorted", "all neighbours are in order"),)


def searched(wrong: tuple[WrongAnswer, ...] = (), **changes: Any) -> CounterexampleSearch:
    fields: dict[str, Any] = {
        "name": "runs/sorter",
        "weights_sha256": "digest",
        "verdict": "refuted" if wrong else "not refuted",
        "wrong": wrong,
        "n_tried": 3400,
        "n_families": 2048,
        "seconds": 1.25,
        "least_margin": -2.5 if wrong else 4.5,
        "output_type": "class",
        "noun": "sequence",
        "plural": "sequences",
    }
    return CounterexampleSearch(**fields | changes)


def test_a_refuted_classifier() -> None:
    blocks = describe(searched(SORTER))
    assert isinstance(blocks[0], Conclusions)
    assert blocks[0].sentences[0].text == (
        "Refuted: runs/sorter calls 0 0 0 0 0 0 0 17 unsorted, but it is sorted (1 wrong answer found among 3,400 "
        "sequences tried)."
    )
    assert isinstance(blocks[1], DataTable)
    assert blocks[1].rows == (("0 0 0 0 0 0 0 17", "unsorted", "sorted", "all neighbours are in order"),)
    assert blocks[2] == Commands(("headcount predict runs/sorter '0 0 0 0 0 0 0 17'",), "To see this wrong answer:")
    assert "logits" not in printed(*blocks), "the margin of a wrong answer says nothing more"


def test_a_search_that_stopped_says_so() -> None:
    assert verdict(searched(SORTER, stopped_at=1), "the sorter").text == (
        "Refuted: the sorter calls 0 0 0 0 0 0 0 17 unsorted, but it is sorted (1 wrong answer found among 3,400 "
        "sequences tried; the search stops after 1)."
    )


@pytest.mark.parametrize(("predicted", "words"), [("0188", "with 0188"), ("", "with nothing")])
def test_a_refuted_adder(predicted: str, words: str) -> None:
    wrong = (WrongAnswer("374+814", "1188", predicted, "1000s: 0, should be 1"),)
    text = verdict(searched(wrong, output_type="sequence", noun="sum", plural="sums"), "runs/sorter").text
    assert text.startswith(f"Refuted: runs/sorter answers 374+814 {words}, but 1188 is right (1 wrong answer found")
    assert text.endswith("among 3,400 sums tried).")


def test_nothing_found_proves_nothing() -> None:
    blocks = describe(searched(n_tried=250_000, why_not_proved="its positions see the whole sequence."))
    (conclusions,) = blocks
    assert isinstance(conclusions, Conclusions)
    assert [sentence.text for sentence in conclusions.sentences] == [
        "Not refuted: runs/sorter is right on all 250,000 sequences that were tried, which proves nothing about "
        "others.",
        "The search took 1.2 s and tried 2,048 sequences with patterns on which models often err and 247,952 sequences "
        "that were drawn as in training or changed step by step to reduce the margin. The smallest lead of a right "
        "answer over the next most likely answer is 4.50 logits.",
        "This is a search, not a proof. Its positions see the whole sequence.",
    ]


def test_without_patterns_and_without_margins() -> None:
    text = printed(*describe(searched(n_families=0, least_margin=None)))
    assert "patterns" not in text
    assert "margin of" not in text


def test_a_notebook_shows_the_same_words() -> None:
    assert "calls 0 0 0 0 0 0 0 17 unsorted" in searched(SORTER)._repr_html_()
