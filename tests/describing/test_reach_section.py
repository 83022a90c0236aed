"""How far models reach, told from results: sentences that turn when the results do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from told_results import (
    audit,
    cell,
    cells,
    model_results,
    report_results,
    require_sound,
    sentences,
    stretch,
    table,
    texts,
)

from headcount.analysis.length_generalisation import ShiftedIds
from headcount.describing.blocks import Notice, Picture
from headcount.describing.extrapolation import extrapolation_of
from headcount.describing.sections.reach import section
from headcount.stats import Proportion


def report(**stretches):
    made = section(report_results(*(model_results(name, stretch=each) for name, each in stretches.items())))
    require_sound(made)
    return made


def exercise(sinusoidal=16, learned=16, none=0, **changes):
    found = {"sinusoidal": sinusoidal, "learned": learned, "none": none}
    return report(**{name: stretch(name, far, **changes) for name, far in found.items()})


def test_without_lengths_there_is_no_section():
    assert section(report_results(model_results("a"))) is None
    assert section(report_results(model_results("a", stretch=stretch(cells=())))) is None


def test_the_answer_says_that_no_encoding_goes_beyond_training():
    made = exercise()
    assert made.answer == sentences(made)[0]
    assert made.answer.is_decided
    assert made.answer.text == (
        "Trained on lengths 8 to 16 and tested on single adjacent swaps (two neighbours exchanged), a model with "
        "sinusoidal positions is accurate up to 16, a model with learned positions up to 16 and a model without "
        "positions at no length: none of them extrapolates (n = 200 per length, one seed each)."
    )


def test_the_answer_names_others_that_do_and_what_they_were_given():
    own = {name: stretch(name, 16) for name in ("sinusoidal", "learned")}
    far, given = stretch("t5", 256), stretch("relative", 256, hard_codes=("window of ±1",))
    text = report(**own, far=far, given=given, short=stretch("rotary", 16)).answer.text
    assert "neither of them extrapolates" in text
    assert (
        "Other models are accurate beyond the training lengths: far (no built-in structure of the task) at every "
        "tested length, up to 256 (100 %, " in text
    )
    assert "given (built in: window of ±1) at every tested length" in text
    assert "short" not in text
    assert "accurate beyond the training lengths" not in report(**own, short=stretch("rotary", 16)).answer.text
    assert "accurate beyond the training lengths" not in report(far=far).answer.text, "it is the answer itself"
    assert "accurate beyond the training lengths" not in report(sinusoidal=own["sinusoidal"], far=far).answer.text, (
        "who is farthest is"
    )


def test_the_answer_turns_when_one_of_them_does():
    answer = exercise(sinusoidal=64).answer
    assert "a model with sinusoidal positions is accurate up to 64" in answer.text
    assert (
        "sinusoidal positions extrapolates, a model with learned positions and a model without positions do not"
        in answer.text
    )
    assert "at every tested length, up to 256" in exercise(learned=256).answer.text


def test_the_answer_is_undecided_where_examples_are_too_few():
    answer = exercise(sinusoidal=256, n=20).answer
    assert not answer.is_decided
    assert "it is undecided whether a model with sinusoidal positions extrapolates" in answer.text


def test_seeds_of_one_encoding_count_together():
    made = report(a=stretch("sinusoidal", 16), b=stretch("sinusoidal", 64, seed=1), c=stretch("learned", 16))
    assert "a model with sinusoidal positions (2 runs) is accurate up to 16 and up to 64" in made.answer.text
    assert (
        "sinusoidal positions in 1 of 2 runs extrapolates, a model with learned positions does not" in made.answer.text
    )
    assert "3 runs" in made.answer.text


def test_models_that_were_given_structure_are_ranked_among_themselves():
    given = {"hard_codes": ("locality",), "label": "relative, window"}
    made = report(
        a=stretch(up_to=16), b=stretch("learned", 32), c=stretch(up_to=256, **given), d=stretch(up_to=64, **given)
    )
    told = texts(made)
    assert (
        "Of 2 models without built-in structure of the task, b extrapolates farthest on single adjacent swaps: up to "
        "32 (100 %, 95 % CI" in told
    )
    assert "Of 2 models with built-in structure of the task, c (built in: locality) extrapolates farthest" in told
    ranked = [each.text for each in sentences(made) if "farthest" in each.text]
    assert not any(
        one in text and other in text for text in ranked for one in (" a ", " b ") for other in (" c ", " d ")
    )
    assert "c (built in: locality" in told


def test_which_extrapolates_farthest_may_be_undecided():
    few = stretch("learned", 256, n=20)
    found = next(each for each in sentences(report(a=stretch(up_to=64), b=few)) if "which of 2" in each.text)
    assert not found.is_decided
    assert "b at no length for certain (possibly up to 256)" in found.text
    alike = texts(report(a=stretch(up_to=32), b=stretch("learned", 32)))
    assert "a and b extrapolate farthest on single adjacent swaps: up to 32 (n = 200)" in alike
    assert "None of 2 models without built-in structure of the task is shown to be accurate" in texts(
        report(a=stretch(up_to=0), b=stretch("none", 0))
    )


def test_each_model_is_told_with_the_numbers_on_both_sides():
    assert (
        "On sorted against unsorted sequences (single adjacent swaps), a (no built-in structure of the task; one seed) "
        "is accurate up to 16 (100 %, 95 % CI 98.1-100, n = 200) but not at 32 (60.0 %, 95 % CI 53.1-66.5, n = 200)."
    ) in texts(report(a=stretch(up_to=16)))
    assert "accurate at every tested length, up to 256" in texts(report(a=stretch(up_to=256)))
    assert "not accurate at any tested length, not even at training lengths: at 8, 60.0 %" in texts(
        report(a=stretch(up_to=0))
    )
    assert "; it does not accept length 512." in texts(report(a=stretch(refused_lengths=(512,))))


def test_a_model_may_be_undecided():
    some = (cell(8, "adjacent", 1.0), cell(32, "adjacent", 0.92))
    (told,) = (each for each in sentences(report(a=stretch(cells=some))) if each.text.startswith("On sorted against"))
    assert not told.is_decided
    assert "is accurate up to 8; from 32 on, it is undecided whether it is (92.0 %" in told.text
    (told,) = (
        each for each in sentences(report(a=stretch(cells=some[1:]))) if each.text.startswith("On sorted against")
    )
    assert not told.is_decided


def test_shuffles_are_called_easy_only_where_they_are():
    assert "Full shuffles are easy: a is accurate on them at every tested length, up to 256 (100 %" in texts(
        report(a=stretch(up_to=0))
    )
    assert "are easy" not in texts(report(a=stretch(up_to=16, easy=16)))


def test_one_answer_is_never_an_accuracy():
    some = (cell(8, "adjacent", 1.0), cell(64, "adjacent", 0.5, constant="unsorted"))
    made = report(a=stretch(cells=some))
    assert "a answers “unsorted” at 64 (n = 200 each)" in texts(made)
    assert "but not at 64 (it answers “unsorted” to everything, n = 200)" in texts(made)
    row = table(made, "reach-adjacent").rows[0]
    assert [each.text for each in row[2:]] == ["100.0 [98.1, 100.0]", "one answer: unsorted"]
    assert [each.value for each in row[2:]] == [100, 50]
    assert [each.mark for each in row[2:]] == ["strong", "weak"]
    assert "the same answer" not in texts(report(a=stretch()))


@pytest.mark.parametrize(
    ("gaps", "ids", "told"),
    [
        (1.0, 0.5, "Untrained position ids alone make it fail; small gaps alone do not make it fail."),
        (0.5, 1.0, "Untrained position ids alone do not make it fail; small gaps alone make it fail."),
        (1.0, 1.0, "Neither of the two alone makes it fail: the cause is the length itself"),
        (0.5, 0.5, "Each of the two alone makes it fail."),
        (0.92, 0.5, "ids alone make it fail; it is undecided whether small gaps alone make it fail."),
    ],
)
def test_what_breaks_a_model_first(gaps, ids, told):
    apart = {"cropped_results": (cell(32, "adjacent", gaps),), "ids": (ShiftedIds(16, cell(16, "adjacent", ids), 1.0),)}
    made = report(a=stretch(**apart), b=stretch("learned", 256))
    (found,) = (each for each in sentences(made) if "Why does a fail at length 32?" in each.text)
    assert [row[:2] for row in cells(made, found.rests_on)] == [["a", "32"]]
    assert told in found.text
    assert found.is_decided == ("undecided" not in told)


def test_tables_have_a_row_for_each_model_and_a_column_for_each_length():
    made = report(a=stretch(), b=stretch("learned", refused_lengths=(256,), cells=stretch(up_to=8).cells[:-2]))
    assert table(made, "reach-adjacent").columns == ("model", "structure of the task", "8", "16", "32", "64", "256")
    assert cells(made, "reach-adjacent")[1][-1] == "refused"
    assert "headcount stretch runs/a runs/b --lengths 8,16,32,64,256" in table(made, "reach-adjacent").command
    assert [row[:3] for row in cells(made, "reach-classes")] == [
        ["a", "16", "100.0 [96.3, 100.0]"],
        ["a", "32", "60.0 [50.2, 69.1]"],
        ["a", "256", "60.0 [50.2, 69.1]"],
        ["b", "16", "60.0 [50.2, 69.1]"],
        ["b", "32", "60.0 [50.2, 69.1]"],
        ["b", "64", "60.0 [50.2, 69.1]"],
    ]


def test_the_exercises_lengths_have_a_narrow_table_with_training_lengths_counted_together():
    shares = {8: 1.0, 16: 0.9, 32: 0.6, 256: 0.5}
    some = tuple(cell(length, "adjacent", share) for length, share in shares.items())
    made = report(a=stretch(cells=some), b=stretch("learned", 256, hard_codes=("locality",)))
    found = table(made, "reach-lengths")
    assert found.columns == ("model", "8-16", "32", "64", "128", "256")
    assert found.is_narrow
    rows = cells(made, "reach-lengths")
    assert rows[0] == [
        "a (no built-in structure of the task)",
        "95.0 [92.4, 96.7]",
        "60.0 [53.1, 66.5]",
        "not measured",
        "not measured",
        "50.0 [43.1, 56.9]",
    ]
    assert rows[1][0] == "b (built in: locality)"
    assert f"{100 * Proportion.of(380, 400).low:.1f}" == "92.4", "of both training lengths together"
    other = report(a=stretch(cells=some), b=stretch("learned", trained=(4, 16)))
    assert table(other, "reach-lengths").columns[1] == "training lengths"
    short = stretch(cells=some[:2])
    assert not any(getattr(block, "id", "") == "reach-lengths" for block in report(a=short).blocks)


def test_runs_of_one_recipe_are_drawn_on_the_lengths_that_all_have():
    few = tuple(each for each in stretch().cells if each.length < 64)
    made = report(a=stretch(), b=stretch(seed=1, cells=few))
    curves = next(block for block in made.blocks if isinstance(block, Picture))
    axes = curves.draw().axes[0]
    assert len(axes.lines[0].get_xdata()) == 3
    assert "a: up to 16; b: up to 16" in curves.alt


def test_attention_is_shown_of_the_first_and_of_the_farthest_generic_model():
    given = {"hard_codes": ("locality",), "label": "relative"}
    made = report(a=stretch(), b=stretch("learned", 64), c=stretch(up_to=256, **given))
    pictures = [block for block in made.blocks if isinstance(block, Picture)]
    assert [each.id for each in pictures] == ["reach-curves", "reach-attention-a-0", "reach-attention-b-1"]
    assert pictures[1].draw().axes


def test_the_audit_speaks_where_it_concerns_positions_and_shortcuts():
    found = audit({"HC101": "fail", "HC502": "warn", "HC601": "fail", "HC504": "pass", "HC302": "warn"})
    made = section(report_results(model_results("a", stretch=stretch(), audit=found)))
    notices = [block for block in made.blocks if isinstance(block, Notice)]
    assert [(each.check, each.verdict) for each in notices] == [("HC601", "fail"), ("HC302", "warn"), ("HC502", "warn")]
    assert notices[0].text == "a: Found by HC601. Likely cause: Cause of HC601. What to change: Fix of HC601."


def test_a_reach_ends_at_the_first_length_that_is_not_right():
    holes = stretch(cells=tuple(cell(x, "adjacent", share) for x, share in ((64, 1.0), (16, 0.5), (8, 1.0))))
    reach = extrapolation_of(holes)
    assert reach is not None
    assert (reach.length, reach.first_inaccurate.length, reach.longest_possible) == (8, 16, 8)
    assert extrapolation_of(holes, "shuffle") is None
    assert replace(reach, last_accurate=None).words == "at no length"


def test_models_of_others_have_no_encoding_that_is_known():
    made = report(a=stretch("", label="Sorter", pooling=""))
    assert "a (encoding not known; one model)" in texts(made)
