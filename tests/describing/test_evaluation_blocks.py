"""The accuracy of one model and of several: sentences, groups, claims and notes."""

from dataclasses import replace

import pytest
from heads_by_hand import classification, evaluation

from headcount.describing.blocks import Cell, Conclusions, DataTable, Paragraph
from headcount.describing.evaluation import describe, describe_several
from headcount.errors import InputError
from headcount.stats import Proportion
from headcount.training.evaluation import Claim


def sentences(found):
    (first,) = (block for block in describe(found, "a") if isinstance(block, Conclusions))
    return [each.text for each in first.sentences]


def rows(blocks):
    (table,) = (block for block in blocks if isinstance(block, DataTable))
    return table.columns, [[cell.text if isinstance(cell, Cell) else cell for cell in row] for row in table.rows]


def test_a_table_has_a_row_for_each_group():
    columns, found = rows(describe(evaluation(free=(1998, 2000), digits={"1s": (2000, 2000)}), "a"))
    assert columns == ("group", "n", "teacher-forced", "free-running")
    assert found == [
        ["exact match: all", "2,000", "99.90 [99.64, 99.98]", "99.90 [99.64, 99.98]"],
        ["digit: 1s", "2,000", "100.00 [99.81, 100.00]", "100.00 [99.81, 100.00]"],
    ]


def test_what_was_not_measured_is_named_and_another_n_is_shown():
    scores = evaluation(digits={"1s": (10, 20)})
    digit = scores.digits[0]
    fewer = replace(scores, digits=(replace(digit, teacher_forced=Proportion.of(5, 10)),))
    assert rows(describe(fewer, "a"))[1][1][2] == "50.00 [23.66, 76.34] (n = 10)"
    unasked = replace(scores, digits=(replace(digit, teacher_forced=None),))
    assert rows(describe(unasked, "a"))[1][1][2] == "not measured"


def test_the_answers_of_a_classifier_are_counted():
    shares = "“unsorted” to 50.0 % (95 % CI 46.9-53.1) and “sorted” to 50.0 % (95 % CI 46.9-53.1)"
    assert f"It answers {shares} of the examples." in sentences(classification())
    constant = classification((500, 1000), {"unsorted": (0, 500), "sorted": (500, 500)}, "sorted")
    assert "It answers “sorted” to (nearly) everything" in sentences(constant)[0]
    assert not any("It answers" in text for text in sentences(evaluation()))


@pytest.mark.parametrize(
    ("claimed", "words"),
    [
        (0.9, "The author's figure of 90.00 % does not agree with this."),
        (0.9985, "The author's figure of 99.85 % agrees with this."),
        (None, "Measured by exact match: 99.80 % (95 % CI 99.30-99.95, n = 1,000)."),
    ],
)
def test_the_authors_figure_is_compared(claimed, words):
    scores = replace(evaluation(), claim=Claim(claimed, "exact match", 0.998, 0.993, 0.9995, 1000))
    assert sentences(scores)[-1].endswith(words)


def test_what_is_given_and_the_most_common_error_are_named():
    found = sentences(replace(evaluation(), given="0", common_error="2 of 2 errors: a 0 would have been right"))
    assert "Most common error: 2 of 2 errors: a 0 would have been right." in found
    assert "Its decoder is given “0” and never predicts it, so an answer that begins otherwise is wrong." in found


def test_accuracies_that_differ_come_with_advice():
    text = next(
        each for each in sentences(evaluation(free=(1000, 2000), forced=(2000, 2000))) if "do not agree" in each
    )
    assert "Check that decoding uses the same start token and leading zeros as training." in text


def test_several_models_are_rows_with_what_a_reader_must_know():
    handed = replace(
        evaluation(free=(1000, 2000), forced=(2000, 2000)),
        given="0",
        claim=Claim(0.9, "exact match", 0.5, 0.48, 0.52, 2000),
    )
    undecoded = evaluation()
    undecoded = replace(undecoded, exact=replace(undecoded.exact, free_running=None))
    blocks = describe_several(
        [("one", handed), ("two", undecoded), ("three", InputError("no such file", "")), ("four", evaluation())], "test"
    )
    assert isinstance(blocks[0], Paragraph)
    assert blocks[0].text == "4 submissions: 3 were measured, 1 could not be run."
    columns, found = rows(blocks)
    assert columns == ("model", "n", "teacher-forced", "free-running", "claimed", "note")
    assert found[0][-2] == "90.00 %"
    assert found[0][-1] == (
        "teacher-forced and free-running accuracy differ: a fault of the pipeline; the claimed accuracy is not "
        "confirmed: measured by exact match, it is 50.00 %; "
        "“0” is given as the first token, not predicted"
    )
    assert found[1][-3:] == ["not measured", "", "not decoded: the adapter has no generate()"]
    assert found[2] == ["three", "", "", "", "", "broken: no such file"]
    assert found[3][-2:] == ["", ""]


def test_a_model_without_a_finding_needs_no_column_of_notes():
    columns, _ = rows(describe_several([("one", evaluation()), ("two", evaluation())], "test"))
    assert columns == ("model", "n", "teacher-forced", "free-running")
    constant = classification((500, 1000), {"unsorted": (0, 500), "sorted": (500, 500)}, "sorted")
    columns, found = rows(describe_several([("one", constant)], "test"))
    assert columns == ("model", "n", "right", "note")
    assert found[0][-1] == "answers “sorted” to (nearly) everything"
