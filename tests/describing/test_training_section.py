"""What was trained, and how accurate it is: sentences and tables follow from the results."""

from dataclasses import replace

import pytest
from heads_by_hand import (
    SETTINGS,
    classification,
    evaluation,
    model_results,
    report_results,
    require_sound,
    sentences,
    texts,
)

from headcount.describing.blocks import DataTable, Notice, Paragraph, Picture
from headcount.describing.sections.training import section
from headcount.rendering.latex import latex_table
from headcount.runs.folder import TrainingRecord
from headcount.stats import Proportion

LOG = (
    {"step": 1, "loss": 2.0},
    {"step": 2, "loss": 1.0},
    {"step": 2, "n": 100, "free_running": 0.5, "teacher_forced": 0.5, "validation_loss": 1.1},
    {"step": 4, "loss": 0.5},
    {"step": 4, "n": 100, "free_running": 0.9, "teacher_forced": 0.9, "validation_loss": 0.6},
)
SORTING = {"seed": 0, "shortest": 8, "longest": 16, "steps": 100, "encoding": "none"}


def told(**changes):
    return section(report_results(model_results(evaluation=evaluation(**changes), log=LOG)))


def test_nothing_is_told_of_a_model_that_nobody_trained_or_measured() -> None:
    assert section(report_results(model_results(settings={}))) is None


def test_how_often_and_that_it_is_one_seed() -> None:
    found = told(free=(1998, 2000))
    require_sound(found)
    assert "1,998 of 2,000 right (99.9 %" in texts(found)
    assert "one training run" in texts(found)
    assert "(one seed)" in found.answer.text
    assert {type(block) for block in found.blocks} >= {Paragraph, DataTable, Picture}


def test_the_settings_are_told_in_words() -> None:
    words = next(block.text for block in told().blocks if isinstance(block, Paragraph))
    assert "the sums of two 3-digit numbers" in words
    assert "2,000 steps of 64 examples" in words
    assert "learned positions" in words
    faulty = section(report_results(model_results(settings=SETTINGS | {"start_token": False}, evaluation=evaluation())))
    assert "1 known fault: the decoder is fed no start token" in faulty.blocks[0].text


@pytest.mark.parametrize(
    ("forced", "words", "is_decided"),
    [
        ((1000, 2000), "these two accuracies agree", True),
        ((2000, 2000), "this gap is a fault of the pipeline", True),
        ((1010, 2000), "It is undecided whether the two accuracies agree", False),
    ],
)
def test_whether_the_two_accuracies_agree(forced, words, is_decided) -> None:
    found = told(free=(1000, 2000), forced=forced)
    (sentence,) = (each for each in sentences(found) if "two accuracies" in each.text)
    assert words in sentence.text
    assert sentence.is_decided is is_decided


@pytest.mark.parametrize(
    ("digits", "words", "is_decided"),
    [
        ({"1s": (2000, 2000), "10s": (1500, 2000)}, "Grouped by digit, the model is worst at the 10s", True),
        ({"1s": (1500, 2000), "10s": (2000, 2000)}, "Grouped by digit, the model is worst at the 1s", True),
        (
            {"1s": (1500, 2000), "10s": (1510, 2000)},
            "Grouped by digit, it is undecided where the model is worst",
            False,
        ),
    ],
)
def test_where_it_is_worst_only_if_intervals_are_apart(digits, words, is_decided) -> None:
    found = told(free=(1400, 2000), digits=digits)
    (sentence,) = (each for each in sentences(found) if "worst" in each.text)
    assert words in sentence.text
    assert sentence.is_decided is is_decided
    require_sound(found)


def test_carry_chains_are_told_like_digits() -> None:
    found = told(free=(1400, 2000), chains={"0": (900, 900), "3": (20, 50)})
    assert "worst where the longest carry chain is 3" in texts(found)


def test_a_model_that_is_wrong_nowhere_has_no_worst_place() -> None:
    found = told(free=(2000, 2000), digits={"1s": (2000, 2000), "10s": (2000, 2000)})
    assert "it makes no error on these 2,000 examples" in texts(found)


def test_a_model_that_was_not_decoded_is_undecided() -> None:
    scores = evaluation(free=(900, 1000))
    scores = replace(scores, exact=replace(scores.exact, free_running=None))
    found = section(report_results(model_results(evaluation=scores)))
    assert "so it is undecided how many" in texts(found)
    assert not sentences(found)[0].is_decided
    require_sound(found)


def test_what_the_audit_says_stands_before_the_numbers() -> None:
    assert any(isinstance(block, Notice) for block in told(audit="the first digit is never predicted").blocks)
    assert not any(isinstance(block, Notice) for block in told().blocks)


def test_both_classes_of_a_classifier() -> None:
    found = section(report_results(model_results("sorter", "sortedness", SORTING, evaluation=classification())))
    assert "990 of 1,000 right" in texts(found)
    assert "490 of 500 (98.0 %, 95 % CI 96.4-98.9) of the unsorted ones" in texts(found)
    assert "nearly" not in texts(found)
    require_sound(found)
    constant = classification((500, 1000), {"unsorted": (0, 500), "sorted": (500, 500)}, "sorted")
    assert "answers “sorted” to (nearly) everything" in texts(
        section(report_results(model_results("sorter", "sortedness", SORTING, evaluation=constant)))
    )


def sorters(*rights, **settings):
    encodings = ("none", "learned", "alibi")
    made = [
        model_results(name, "sortedness", SORTING | {"encoding": name}, evaluation=classification(right), **settings)
        for name, right in zip(encodings, rights, strict=False)
    ]
    return section(report_results(*made))


def test_several_models_are_rows_of_one_table() -> None:
    found = sorters((600, 1000), (990, 1000), (500, 1000), log=LOG)
    require_sound(found)
    settings, scores = (block for block in found.blocks if isinstance(block, DataTable))
    assert settings.columns == ("model", "encoding", "built-in structure")
    assert [row[0] for row in scores.rows] == ["none", "learned", "alibi"]
    assert (
        "Of none, learned and alibi, which were tested on the same examples, learned is right most often: 990"
        in texts(found)
    )
    assert "least often alibi" in texts(found)
    assert "Each is one training run" in texts(found)
    assert sum(isinstance(block, Picture) for block in found.blocks) == 1


def test_every_run_has_its_training_time_and_final_losses() -> None:
    whole = TrainingRecord(3000, 0.0123456, 0.25, 51.25, "cpu (a processor)")
    lacking = TrainingRecord(2000, 1.5e-7, None, None, "cpu (x86_64)")
    made = [
        model_results("one", training=whole),
        model_results("old", training=lacking),
        model_results("theirs", None, {}),
    ]
    found = section(report_results(*made))
    require_sound(found)
    (table,) = (block for block in found.blocks if isinstance(block, DataTable) and block.id.endswith("-losses"))
    assert table.id == "training-addition-losses"
    assert table.columns == ("model", "steps", "training loss", "validation loss", "seconds", "device")
    rows = [[each if isinstance(each, str) else each.text for each in row] for row in table.rows]
    assert rows == [
        ["one", "3,000", "0.0123", "0.25", "51.2", "cpu (a processor)"],
        ["old", "2,000", "1.5e-07", "not recorded", "not recorded", "cpu (x86_64)"],
    ]
    assert "“Not recorded”" in table.note
    only = section(report_results(made[0]))
    (table,) = (block for block in only.blocks if isinstance(block, DataTable))
    assert "ot recorded" not in table.note
    assert "not recorded" in latex_table(section(report_results(made[1])).blocks[-1])


def test_which_of_several_is_best_turns_with_the_numbers() -> None:
    assert "learned, which were tested on the same examples, none is right most often" in texts(
        sorters((990, 1000), (600, 1000))
    )
    found = sorters((600, 1000), (601, 1000))
    assert "is right most often, on the same test set: learned gets 601" in texts(found)
    assert "least often" not in texts(found)
    assert not found.answer.is_decided


def test_models_on_other_test_sets_are_not_ranked_with_them() -> None:
    easy = classification((1000, 1000), {"sorted": (500, 500), "shuffled": (500, 500)})
    hard, harder = classification((900, 1000)), classification((700, 1000))
    made = [
        model_results(name, "sortedness", SORTING, evaluation=each)
        for name, each in zip("abc", (easy, hard, harder), strict=True)
    ]
    found = section(report_results(*made))
    require_sound(found)
    assert "Of b and c, which were tested on the same examples, b is right most often" in texts(found)
    assert "and are not ranked: a 1,000 of 1,000 right" in texts(found)
    found = section(report_results(*made[:2]))
    require_sound(found)
    assert "right most often, because no two share a test set. They get: " in texts(found)


def test_two_tasks_are_one_answer() -> None:
    one = model_results(evaluation=evaluation())
    other = model_results("sorter", "sortedness", SORTING, evaluation=classification())
    answer = section(report_results(one, other)).answer
    assert "adder gets 1,998 of 2,000 right" in answer.text
    assert ". On the test set, sorter gets 990 of 1,000 right" in answer.text
    assert answer.text.endswith("(one seed).")


def test_several_adders_have_digits_and_both_accuracies() -> None:
    scores = evaluation(digits={"1s": (2000, 2000)}, chains={"0": (10, 10)})
    apart = replace(scores, exact=replace(scores.exact, free_running=Proportion.of(3, 2000)))
    found = section(report_results(model_results("one", evaluation=scores), model_results("two", evaluation=apart)))
    require_sound(found)
    table = next(block for block in found.blocks if isinstance(block, DataTable) and block.id == "training-addition")
    assert table.columns == ("model", "n", "teacher-forced", "free-running", "digit 1s", "longest chain 0", "note")
    assert "which shows a fault of the pipeline, for two." in texts(found)
    assert "fault of the pipeline" not in texts(
        section(report_results(model_results("one", evaluation=scores), model_results("two", evaluation=scores)))
    )
