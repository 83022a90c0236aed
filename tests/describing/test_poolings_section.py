"""How poolings compare: opposite results, the opposite sentence; and what a pooling gives away stands in the table."""

from __future__ import annotations

import json

import pytest
from told_results import cell, cells, model_results, report_results, require_sound, sentences, stretch, table, texts

from headcount.analysis.pooling_comparison import PoolingComparison, compare_poolings
from headcount.describing.blocks import DataTable, Picture
from headcount.describing.sections.poolings import section
from headcount.exercise.files import write_exercise
from headcount.runs.folder import TrainingRecord

LENGTHS = (8, 16, 32, 64, 128, 256)
GIVEN = ("order of neighbours",)
RECORD = TrainingRecord(2000, 0.01, 0.02, 30.0, "cpu (a processor)")


def pooled(encoding: str, pooling: str, shares: tuple[float, ...], n: int = 200, **changes):
    """A model's accuracy on single adjacent swaps at each length; on transpositions it is right everywhere."""
    found = [cell(length, "adjacent", share, n) for length, share in zip(LENGTHS, shares, strict=True)]
    found += [cell(length, "transpositions", 1.0, n) for length in LENGTHS]
    label, given = f"{encoding}, {pooling}", GIVEN if pooling == "neighbour-difference" else ()
    weights = f"weights of {label}"
    known = {"pooling": pooling, "label": label, "hard_codes": given, "weights_sha256": weights, "cells": tuple(found)}
    return stretch(encoding, **known | changes)


CHANCE, TAUGHT, FAR = (0.5,) * 6, (1.0, 1.0, 0.5, 0.5, 0.5, 0.5), (1.0,) * 6


def compared(encoding: str, **by_pooling: tuple[float, ...]):
    """A model_results with a stored comparison; `max` is its own pooling."""
    found = {name.replace("_", "-"): shares for name, shares in by_pooling.items()}
    own, *others = (pooled(encoding, name, shares) for name, shares in found.items())
    stored = compare_poolings(own, [(each, RECORD) for each in others], RECORD)
    assert PoolingComparison.from_json(stored.to_json()) == stored
    return model_results(f"sorter-{encoding}", stretch=own, poolings=stored)


def report(*models):
    made = section(report_results(*models))
    require_sound(made)
    return made


def usual(without: tuple[float, ...]):
    """Two encodings; how right the model without positions is with differences of neighbours is for the test to say."""
    return report(
        compared("sinusoidal", max=TAUGHT, mean=TAUGHT, neighbour_difference=TAUGHT),
        compared("none", max=CHANCE, mean=CHANCE, neighbour_difference=without),
    )


def test_one_pooling_is_no_comparison():
    assert section(report_results(model_results("a"))) is None
    assert section(report_results(model_results("a", stretch=pooled("none", "max", CHANCE)))) is None
    assert section(report_results(compared("none", max=CHANCE))) is None


@pytest.mark.parametrize(
    ("without", "told", "is_decided"),
    [
        (TAUGHT, "so a comparison of encodings under this pooling does not test the encodings.", True),
        (CHANCE, "but that alone does not solve the task: the encoding still matters.", True),
        ((0.9, 0.92, 0.5, 0.5, 0.5, 0.5), "it is undecided whether that alone solves the task.", False),
    ],
)
def test_a_pooling_gives_the_order_away_only_if_the_model_without_positions_is_right(without, told, is_decided):
    found = sentences(usual(without))[0]
    assert told in found.text
    assert found.is_decided is is_decided
    assert found.rests_on == "poolings-adjacent"
    assert "With max and mean pooling it has 50.0 %. This pooling builds in the order of neighbours" in found.text
    others = {"does not test the encoding", "the encoding still matters", "is undecided"}
    assert sum(words in found.text for words in others) == 1


def test_the_sentence_has_its_number_interval_and_n():
    made = usual(TAUGHT)
    assert (
        "With neighbour-difference pooling, the model without positions has 100 % accuracy at training lengths "
        "(95 % CI 99.0-100, n = 400)."
    ) in texts(made)
    assert made.answer.text == f"{sentences(made)[0].text[:-1]} (one seed)."


def test_whether_any_pooling_extrapolates_turns_with_the_results():
    assert (
        "None of these 6 models, which differ in pooling and encoding, is accurate at length 256 on single adjacent "
        "swaps. The most accurate one has" in texts(usual(TAUGHT))
    )
    made = usual(FAR)
    assert (
        "1 of 6 models is accurate at length 256 on single adjacent swaps. It has neighbour-difference "
        "pooling without positions (100 %" in texts(made)
    )
    assert "None of these" not in texts(made)
    assert "All 6 models are accurate at length 256 on random transpositions." in texts(made)
    open_ended = (1.0, 1.0, 1.0, 1.0, 1.0, 0.92)
    found = next(each for each in sentences(usual(open_ended)) if "at length 256 on single" in each.text)
    assert not found.is_decided
    assert found.text.startswith(
        "It is undecided whether the model with neighbour-difference pooling without positions (92.0 %"
    )


def test_one_answer_to_everything_is_no_accuracy():
    constant = tuple(cell(length, "adjacent", 0.5, 200, "sorted") for length in LENGTHS)
    own = pooled("none", "max", CHANCE)
    other = pooled("none", "neighbour-difference", CHANCE, cells=constant)
    made = report(model_results("a", stretch=own), model_results("b", stretch=other))
    assert "the model without positions answers “sorted” to everything at training lengths (n = 400)" in texts(made)
    assert cells(made, "poolings-adjacent")[1][1:] == ["one answer: sorted"] * 5
    assert "The most accurate one has max pooling without positions (50.0 %" in texts(made)


def test_the_table_has_every_length_and_says_what_is_given_away():
    made = usual(TAUGHT)
    found = table(made, "poolings-adjacent")
    assert found.columns == ("pooling, encoding (structure of the task)", "8-16", "32", "64", "128", "256")
    assert found.is_narrow
    given = {
        "max": (nothing := "no built-in structure of the task"),
        "mean": nothing,
        "neighbour-difference": "built in: order of neighbours",
    }
    rows = {row[0]: row[1:] for row in cells(made, "poolings-adjacent")}
    assert list(rows) == [f"{p}, {e} ({words})" for p, words in given.items() for e in ("sinusoidal", "none")]
    last = rows["neighbour-difference, none (built in: order of neighbours)"]
    assert last[:2] == ["100.0 [99.0, 100.0]", "50.0 [43.1, 56.9]"]
    assert "n = 200 sequences per length" in found.note
    assert "95 %" in found.note
    assert found.note.endswith("trained for 2,000 steps (the table of final losses has the steps of each model).")
    assert found.command == "headcount lab --only sortedness"
    losses = table(made, "poolings-losses")
    assert [row[0] for row in losses.rows] == [name.partition(" (")[0] for name in rows]


def test_the_reports_own_models_are_compared_if_only_their_pooling_differs():
    settings = {"encoding": "none", "steps": 3000, "negatives": "mixed"}
    one = model_results("a", stretch=pooled("none", "max", CHANCE), settings=settings | {"pooling": "max"})
    two = model_results(
        "b", stretch=pooled("none", "mean", CHANCE), settings=settings | {"pooling": "mean", "steps": 2000}
    )
    assert [row[0] for row in cells(report(one, two), "poolings-adjacent")] == [
        "max, none (no built-in structure of the task)",
        "mean, none (no built-in structure of the task)",
    ]
    other = model_results("b", stretch=two.stretch, settings=settings | {"pooling": "mean", "negatives": "shuffle"})
    assert section(report_results(one, other)) is None, "they were trained on other data"
    windowed = model_results("c", stretch=pooled("none", "mean", FAR, label="none, window ±1, mean"))
    assert section(report_results(one, windowed)) is None


def test_the_picture_has_a_panel_per_encoding_and_dashes_for_what_is_given_away():
    (picture,) = (block for block in usual(TAUGHT).blocks if isinstance(block, Picture))
    figure = picture.draw()
    assert [axes.get_title() for axes in figure.axes] == ["encoding: sinusoidal", "encoding: none"]
    labels = {text.get_text() for text in figure.legends[0].get_texts()}
    assert labels == {
        "max  (no built-in structure of the task, 95 % CI)",
        "mean  (no built-in structure of the task, 95 % CI)",
        "neighbour-difference  (built in: order of neighbours, 95 % CI)",
    }
    styles = {line.get_label(): line.get_linestyle() for line in figure.axes[0].lines}
    assert styles["neighbour-difference  (built in: order of neighbours, 95 % CI)"] == "--"
    assert styles["mean  (no built-in structure of the task, 95 % CI)"] == "-"
    assert "neighbour-difference, none: 50.0 %" in picture.alt


def test_the_exercise_has_the_comparison_under_its_own_names(tmp_path):
    models = [compared("sinusoidal", max=TAUGHT, mean=TAUGHT), compared("none", max=CHANCE, mean=CHANCE)]
    names = {path.relative_to(tmp_path).as_posix() for path in write_exercise(report_results(*models), tmp_path)}
    folder = "problem2/results/pooling"
    assert {f"{folder}/pooling_comparison.json", f"{folder}/pooling_comparison.png"} <= names
    found = json.loads((tmp_path / folder / "pooling_comparison.json").read_text())["models"]
    assert [(each["pooling"], each["encoding"]) for each in found] == [
        (pooling, encoding) for pooling in ("max", "mean") for encoding in ("sinusoidal", "none")
    ]
    assert found[0]["cells"][0]["n"] == 200
    assert found[0]["training"]["seconds"] == 30.0
    without = write_exercise(report_results(model_results("a", stretch=models[0].stretch)), tmp_path / "none")
    assert not any("pooling" in path.name for path in without)


def test_only_shared_lengths_are_compared():
    own, other = pooled("none", "max", CHANCE), pooled("none", "mean", CHANCE)
    longer = compare_poolings(stretch("none", cells=(*own.cells, cell(512, "adjacent", 1.0))), [(other, RECORD)])
    assert {each.length for model in longer.models for each in model.cells} == set(LENGTHS)
    assert isinstance(table(report(model_results("a", poolings=longer)), "poolings-adjacent"), DataTable)
