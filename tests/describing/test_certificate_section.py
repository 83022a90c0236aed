"""Every example there is: right, wrong, or undecided by rounding."""

import pytest
from heads_by_hand import certificate, evaluation, model_results, report_results, require_sound, sentences, texts

from headcount.describing.blocks import DataTable, Notice
from headcount.describing.sections.certificate import SHOWN, section


def told(errors=0, score=None, **changes):
    return section(report_results(model_results(certificate=certificate(errors, **changes), evaluation=score)))


def test_a_model_that_was_not_walked_has_no_section() -> None:
    assert section(report_results(model_results())) is None


def test_right_on_everything() -> None:
    found = told()
    require_sound(found)
    assert "adder is right on all 810,000 examples of its task" in found.answer.text
    assert "9.52 logits, on 591+404" in texts(found)
    assert "about 350,000 times that" in texts(found)
    assert sum(isinstance(block, DataTable) for block in found.blocks) == 1


def test_wrong_on_some_lists_the_first() -> None:
    found = told(errors=58)
    require_sound(found)
    assert "adder is wrong on 58 of all 810,000 examples of its task (0.01 %)" in found.answer.text
    wrong = next(block for block in found.blocks if isinstance(block, DataTable) and block.id.endswith("wrong"))
    assert len(wrong.rows) == SHOWN
    assert "the first 50 of 58" in wrong.caption
    assert "right on all" not in texts(found)


def test_what_a_test_set_shows_of_what_is_wrong() -> None:
    assert "test set of 2,000 examples shows no wrong answer" in texts(told(errors=2, score=evaluation((2000, 2000))))
    assert "test set of 2,000 examples shows 7 wrong answers" in texts(told(errors=99, score=evaluation((1993, 2000))))


@pytest.mark.parametrize(
    ("changes", "words", "is_decided"),
    [
        ({}, "Rounding changes no verdict", True),
        ({"undecided": 3}, "The verdict is undecided for 3 examples", False),
        ({"float_error": None}, "The effect of rounding is undecided", False),
    ],
)
def test_whether_rounding_could_tip_it(changes, words, is_decided) -> None:
    rounding = sentences(told(**changes))[-2]
    assert words in rounding.text
    assert rounding.is_decided is is_decided


def test_of_several_how_many_are_right_on_everything() -> None:
    one, two = model_results("one", certificate=certificate()), model_results("two", certificate=certificate(errors=4))
    found = section(report_results(one, two))
    require_sound(found)
    assert found.answer.text == ("Proved right: one. Wrong answers found: two.")
    both = section(report_results(two, two)).answer.text
    assert both.startswith("Proved right: none. Wrong answers found: two")


def test_what_the_audit_says_stands_there() -> None:
    assert any(isinstance(block, Notice) for block in told(audit="a fault").blocks)
