"""The description of one model's length generalisation has its accuracies, its answers and the causes of failure."""

from dataclasses import replace

import pytest
from stretched import cell, result

from headcount.describing.blocks import Cell, Conclusions, DataTable, Paragraph
from headcount.describing.extrapolation import accuracy_cell
from headcount.describing.length_generalisation import Model, accuracy_table, describe


def tables(stretch):
    return {block.id: block for block in describe(stretch) if isinstance(block, DataTable)}


def rows(table):
    """By the first cell, the texts of the others."""
    texts = [[cell.text if isinstance(cell, Cell) else cell for cell in row] for row in table.rows]
    return {first: others for first, *others in texts}


def notes(stretch):
    return [block.text for block in describe(stretch) if isinstance(block, Paragraph)]


def test_a_constant_answer_stands_in_place_of_an_accuracy():
    found = tables(result())
    assert list(found) == [
        "stretch-accuracy",
        "stretch-classes",
        "stretch-predictions",
        "stretch-causes",
        "stretch-ids",
    ]
    assert [len(table.rows) for table in found.values()] == [3, 3, 3, 1, 2]
    accuracy = found["stretch-accuracy"]
    assert accuracy.columns == ("length", "n", "full shuffles", "single adjacent swaps")
    assert rows(accuracy)["64"] == ["20", "90.0 [69.9, 98.2]", "one answer: sorted"]
    assert "runs/a: rotary, max (no built-in structure of the task), trained on 8-16, random draw 0" in accuracy.caption


def test_each_class_and_the_predictions_have_their_own_table():
    found = tables(result())
    assert found["stretch-classes"].columns == ("length", "sorted", "full shuffles", "single adjacent swaps")
    assert rows(found["stretch-classes"])["64"][:2] == ["90.0 [59.6, 99.5]", "90.0 [59.6, 99.5]"]
    assert "classified as “sorted”" in found["stretch-predictions"].caption
    assert rows(found["stretch-predictions"])["64"] == ["90.0 [59.6, 99.5]", "100.0 [83.9, 100.0]"]


def test_gaps_and_ids_are_measured_alone():
    found = tables(result())
    assert found["stretch-causes"].columns == (
        "length",
        "with its gaps",
        "with its last position ids",
        "whole length",
    )
    assert rows(found["stretch-causes"])["64"] == ["80.0 [58.4, 91.9]", "60.0 [38.7, 78.1]", "one answer: sorted"]
    assert rows(found["stretch-ids"])["48-63"] == ["60.0 [31.3, 83.2]", "60.0 [31.3, 83.2]", "7.5"]


def test_ids_that_are_refused_or_change_nothing_are_noted():
    assert notes(result()) == []
    assert notes(result(ids=())) == []
    assert notes(result(refused_first_ids=(100, 200))) == [
        "runs/a does not accept position ids that begin at 100, 200."
    ]
    still = result(ids=tuple(replace(each, moved=2e-6) for each in result().ids))
    assert notes(still)[0].endswith("from 0 to 48, does not matter to runs/a: the largest change of a logit is 2e-06.")
    assert "stretch-ids" not in tables(still), "there is nothing to read in it"
    assert "refused" in rows(tables(result(ids=result().ids[:1]))["stretch-causes"])["64"]
    assert notes(result(refused_lengths=(128,))) == ["runs/a does not accept these lengths: 128."]


def test_without_long_lengths_there_are_no_causes():
    assert len(tables(result(cropped_results=(), ids=()))) == 3


def test_conclusions_come_first():
    first = describe(result())[0]
    assert isinstance(first, Conclusions)
    assert (
        "On sorted against unsorted sequences (single adjacent swaps), runs/a (no built-in structure of the task; one "
        "seed) is accurate" in first.sentences[0].text
    )


def test_a_table_of_several_models_names_refusals():
    short = result(
        cells=tuple(c for c in result().cells if c.length < 64), hard_codes=("window of ±1",), refused_lengths=(64,)
    )
    shown = rows(accuracy_table([Model("long", result()), Model("short", short)], "adjacent"))
    assert shown["long"][0] == "no built-in structure of the task"
    assert shown["long"][-1] == "one answer: sorted"
    assert shown["short"][0] == "built in: window of ±1"
    assert shown["short"][-1] == "refused"


@pytest.mark.parametrize(
    ("correct", "constant", "text", "mark"),
    [(20, None, "100.0 [83.9, 100.0]", ""), (10, "unsorted", "one answer: unsorted", "weak")],
)
def test_the_cell_of_an_accuracy(correct, constant, text, mark):
    shown = accuracy_cell(cell(8, "shuffle", correct, constant))
    assert (shown.text, shown.value, shown.mark) == (text, 5 * correct, mark)
