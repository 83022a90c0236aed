"""The description of worst margins begins with the verdict and names the sequences."""

from __future__ import annotations

from dataclasses import replace

from printing import printed
from tests.figures.test_every_figure import SHAPES, worst

from headcount.analysis.worst_margins import ConstantStretches, LengthMargins, WorstCase, WorstMargins
from headcount.describing.blocks import Commands, Conclusions, DataTable, Picture
from headcount.describing.verification import describe
from headcount.training.evaluation import WrongAnswer


def refuted(length: int = 64) -> WorstMargins:
    """Return a result that is right at 8 and 16, and wrong on a sorted sequence of another length."""
    example = " ".join(["59"] * (length - 1) + ["99"])
    rows = [LengthMargins(n, WorstCase(1.0, "3 5", "sorted", 1.0, is_right=True), None) for n in (8, 16) if n != length]
    wrong = LengthMargins(length, WorstCase(-0.25, example, "unsorted", -0.25, is_right=False), None)
    shown = WrongAnswer("7 7 7", "sorted", "unsorted", "all neighbours are in order")
    return WorstMargins(
        name="runs/a",
        weights_sha256="digest",
        verdict="refuted",
        example="sequence",
        classes=("unsorted", "sorted"),
        trained=(8, 9),
        rows=tuple(sorted((*rows, wrong), key=lambda row: row.length)),
        constants=ConstantStretches({"5": -0.5, "7": 0.125}, "7", "", 3, shown, 3),
        rounding=1e-6,
        wrong=(shown, WrongAnswer(example, "sorted", "unsorted", "all neighbours are in order")),
    )


def sentences(result: WorstMargins) -> list[str]:
    return [each.text for block in describe(result) if isinstance(block, Conclusions) for each in block.sentences]


def test_the_first_sentence_is_the_verdict() -> None:
    first, trained, rule, constants = sentences(refuted())
    assert first == "Refuted: runs/a calls 7 7 7 unsorted, but it is sorted."
    assert trained == "Not all of the training lengths (8 to 9) were examined."
    assert "exactly 0 to the lead of the class “unsorted”" in rule
    assert constants == (
        "In this model, a repeated token adds between -0.5 (5) and 0.12 logits (7). Therefore, nothing but `7` is "
        "answered wrong from length 3 on: at length 3, the model answers unsorted."
    )


def test_a_wrong_answer_at_a_training_length_comes_first() -> None:
    first, trained, *_ = sentences(refuted(9))
    assert first.startswith("Refuted: runs/a calls 59 59 59 59 59 59 59 59 99 unsorted")
    assert trained == "The model is wrong on some sequence at 1 of 2 training lengths."


def test_a_result_without_errors_promises_no_other_length() -> None:
    result = replace(worst(SHAPES["one"]), trained=(16, 16))
    first, trained, _, constants = sentences(result)
    assert first == (
        "Right at these lengths: runs/a is right on every sequence of length 16. "
        "This does not prove that it is right at any other length."
    )
    assert trained == "At the training lengths (16 to 16), the model is right on every sequence."
    assert constants == "In this model, each of 1 token adds exactly 0 when repeated."
    undecided = replace(result, verdict="undecided", rounding=1.0)
    assert sentences(undecided)[0] == (
        "Undecided: rounding errors (1.0e+00 logits) could change an answer of runs/a at length 16."
    )


def test_a_broken_pair_before_a_stretch_is_named() -> None:
    constants = ConstantStretches({"5": -0.5, "7": 0.0}, "5", "9 3", 5000, None, None)
    result = replace(refuted(), constants=constants)
    assert sentences(result)[-1] == (
        "In this model, a repeated token adds between -0.5 (5) and 0 logits (7). Therefore, `9 3` and then only `5` is "
        "answered wrong from length 5,000 on. This follows from these numbers by calculation; the model was not run at "
        "such a length."
    )
    assert len(sentences(replace(result, constants=None))) == 2


def test_the_table_marks_wrong_margins_and_abbreviates() -> None:
    _, table, picture, wrong, see_it = describe(refuted())
    assert isinstance(wrong, DataTable)
    assert [row[0] for row in wrong.rows] == ["7 7 7", "59 x 63, 99"]
    assert see_it == Commands(("headcount predict runs/a '7 7 7'",), "To see this wrong answer:")
    assert isinstance(table, DataTable)
    assert isinstance(picture, Picture)
    assert table.columns[:3] == ("length", "smallest margin, sorted", "on the sorted sequence")
    assert [cell.text for cell in table.rows[-1] if not isinstance(cell, str)] == [
        "64",
        "-0.25",
        "59 x 63, 99",
        "none",
        "",
    ]
    assert [row[1].mark for row in table.rows if not isinstance(row[1], str)] == ["", "", "strong"]
    assert "59 x 63, 99" in printed(*describe(refuted()))
    assert picture.draw().axes
