"""Curves and tables of a stretch hold what the results say; how they look is looked at by people."""

import io
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from matplotlib.patches import Rectangle
from rich.console import Console

from headcount.analysis.length_generalisation import AttentionShare, LengthResult, ShiftedIds, Stretch
from headcount.figures.length_generalisation import (
    accuracy_text,
    draw_dispersion,
    draw_stretch,
    ids_note,
    mark,
    reach_table,
    stretch_tables,
)
from headcount.figures.style import png
from headcount.figures.training import accuracy_rows, answers_note, draw_accuracy, draw_curves, percent
from headcount.stats import Proportion

KINDS = ("shuffle", "adjacent")
LENGTHS = (8, 16, 64)


def cell(length, kind, correct, constant_class=None):
    """`correct` of 20, ten of them sorted."""
    share, half = Proportion.of(correct, 20), Proportion.of(correct // 2, 10)
    return LengthResult(
        length=length,
        negative=kind,
        accuracy=share.rate,
        low=share.low,
        high=share.high,
        n=20,
        constant=constant_class is not None,
        constant_class=constant_class,
        recall=(Proportion.of(correct - correct // 2, 10), half),
        answers=(
            Proportion.of(20 * (constant_class == "unsorted"), 20),
            Proportion.of(20 * (constant_class != "unsorted"), 20),
        )
        if constant_class
        else (half, half),
        margin=(1.5, -0.5),
    )


def attention_share(length, head, right=0.1):
    """Of 9 sequences; the standard errors are all different."""
    return AttentionShare(length, head, 9, 0.3, 0.2, right, 0.25, 0.01, 0.02, 0.03, 0.05, 0.04)


def result(**changes):
    """Right everywhere up to 16; at 64 the hard negatives all get one answer."""
    cells = [cell(length, kind, 20) for length in (8, 16) for kind in KINDS]
    cells += [cell(64, "shuffle", 18), cell(64, "adjacent", 10, "sorted")]
    attention_shares = tuple(attention_share(n, f"layer.0.self.{i}", 0.1 * i) for n in LENGTHS for i in (0, 1))
    ids = ShiftedIds(0, cell(16, "adjacent", 20), 0.0), ShiftedIds(48, cell(16, "adjacent", 12), 7.5)
    made = Stretch(
        name="runs/a",
        weights_sha256="digest",
        encoding="rotary",
        pooling="max",
        hard_codes=(),
        label="rotary, max",
        seed=0,
        trained=(8, 16),
        classes=("unsorted", "sorted"),
        cells=tuple(cells),
        cropped_results=(cell(64, "adjacent", 16),),
        ids=ids,
        attention_shares=attention_shares,
        recipe="one",
    )
    return replace(made, **changes)


def text(*tables):
    out = io.StringIO()
    Console(file=out, width=200).print(*tables)
    return out.getvalue()


def lines(axes):
    """Label, or None for the crosses, and the points of everything drawn except helping lines."""
    drawn = [line for line in axes.lines if line.get_marker() not in ("None", "", None)]
    return [
        (None if line.get_label().startswith("_") else line.get_label(), line.get_xydata().tolist()) for line in drawn
    ]


def legend(figure):
    return [entry.get_text() for entry in figure.legends[0].get_texts()]


# --- the figure -------------------------------------------------------------------------------------------------


def test_there_is_one_panel_per_negative_with_its_numbers():
    figure = draw_stretch([result()])
    assert [axes.get_title() for axes in figure.axes] == ["negatives: shuffle", "negatives: adjacent"]
    shuffle, adjacent = (lines(axes) for axes in figure.axes)
    assert shuffle[0][1] == [[8, 100], [16, 100], [64, 90]]
    assert adjacent[0][1] == [[8, 100], [16, 100], [64, 50]]
    assert png(figure).startswith(b"\x89PNG")


def test_constant_cells_get_a_cross_and_no_others():
    shuffle, adjacent = (lines(axes) for axes in draw_stretch([result()]).axes)
    assert [points for label, points in shuffle if label is None] == [[]]
    assert [points for label, points in adjacent if label is None] == [[[64, 50]]]


def test_the_trained_lengths_are_shaded():
    for axes in draw_stretch([result()]).axes:
        (span,) = cast(list[Rectangle], axes.patches)
        assert (span.get_x(), span.get_x() + span.get_width()) == (8, 16)
    (other,) = cast(list[Rectangle], draw_stretch([result(trained=(3, 5))]).axes[0].patches)
    assert (other.get_x(), other.get_x() + other.get_width()) == (3, 5)


def test_a_single_run_has_its_wilson_interval_as_band():
    (band,) = draw_stretch([result()]).axes[0].collections
    low, high = band.get_paths()[0].get_extents().get_points()[:, 1]
    assert (low, high) == pytest.approx((100 * Proportion.of(18, 20).low, 100))


@pytest.mark.parametrize(
    ("hard_codes", "expected"), [((), "generic"), (("window of ±1", "neighbours"), "given: window of ±1, neighbours")]
)
def test_the_label_tells_what_the_model_hard_codes(hard_codes, expected):
    assert mark(result(hard_codes=hard_codes)) == expected
    assert legend(draw_stretch([result(hard_codes=hard_codes)])) == [f"rotary, max  ({expected}, 95 % interval)"]


def test_several_seeds_get_one_line_with_a_band():
    worse = tuple(replace(c, accuracy=c.accuracy - 0.4) for c in result().cells)
    figure = draw_stretch([result(), result(name="runs/b", seed=1, cells=worse)])
    assert legend(figure) == ["rotary, max  (generic, 2 seeds: mean and range)"]
    shuffle = figure.axes[0]
    np.testing.assert_allclose(lines(shuffle)[0][1], [[8, 80], [16, 80], [64, 70]])
    (band,) = shuffle.collections
    assert band.get_paths()[0].get_extents().get_points()[:, 1] == pytest.approx([50, 100])


def test_one_constant_seed_among_sound_ones_has_its_own_cross():
    sound = tuple(replace(c, constant=False, constant_class=None, accuracy=1.0) for c in result().cells)
    alone, beside = draw_stretch([result()]), draw_stretch([result(), result(seed=1, cells=sound)])
    crosses = [[points for label, points in lines(figure.axes[1]) if label is None] for figure in (alone, beside)]
    assert crosses[0] == crosses[1] != [[]]


def test_runs_that_differ_in_more_than_their_seed_are_never_averaged():
    deeper = result(name="runs/deep", recipe="two", cells=result().cells[:4])
    figure = draw_stretch([result(), deeper])
    assert legend(figure) == [
        "runs/a: rotary, max  (generic, 95 % interval)",
        "runs/deep: rotary, max  (generic, 95 % interval)",
    ]
    other = result(label="none, max", recipe="two")
    assert [name.split("  ")[0] for name in legend(draw_stretch([result(), other]))] == ["rotary, max", "none, max"]


def test_lines_differ_in_more_than_colour():
    figure = draw_stretch([result(label=f"model {i}", recipe=str(i)) for i in range(8)])
    drawn = [line for line in figure.axes[0].lines if str(line.get_label()).startswith("model")]
    assert len(drawn) == 8
    assert len({line.get_color() for line in drawn}) == len({line.get_marker() for line in drawn}) == 8


def test_the_title_says_how_many_examples_a_point_stands_for():
    assert "n = 20 per point" in draw_stretch([result()]).get_suptitle()
    more = tuple(replace(c, n=1000) if c.length < 64 else c for c in result().cells)
    assert "n = 20 to 1,000 per point" in draw_stretch([result(cells=more)]).get_suptitle()


def test_dispersion_shows_every_head_and_both_classes():
    figure = draw_dispersion(result())
    attention, alike, leads, _ = figure.axes
    assert [point for _, points in lines(alike) for point in points] == [[n, 25.0] for _ in (0, 1) for n in LENGTHS]
    assert lines(attention) == [
        ("layer.0.self.0", [[n, pytest.approx(30)] for n in LENGTHS]),
        ("layer.0.self.1", [[n, pytest.approx(40)] for n in LENGTHS]),
    ]
    assert {label: points[-1][1] for label, points in lines(leads)} == {
        "unsorted: shuffle": 1.5,
        "unsorted: adjacent": 1.5,
        "sorted": -0.5,
    }
    assert "runs/a: rotary, max (generic)" in figure.get_suptitle()
    assert "9 sorted sequences per length, 95 % interval" in figure.get_suptitle()
    assert png(figure).startswith(b"\x89PNG")


def test_attention_has_a_band_of_t_times_its_standard_error():
    neighbours, alike, *_ = draw_dispersion(result()).axes
    for axes, middle, error in ((neighbours, 30, 4), (alike, 25, 5)):
        low, high = axes.collections[0].get_paths()[0].get_extents().get_points()[:, 1]
        assert (low, high) == pytest.approx((middle - 2.306 * error, middle + 2.306 * error), abs=1e-3)


def test_what_is_lost_to_gaps_and_to_ids_is_drawn_beside_the_length():
    whole, gaps, ids = (points for label, points in lines(draw_dispersion(result()).axes[3]) if label)
    assert whole == [[8, 100], [16, 100], [64, 50]]
    assert gaps == [[64, 80]]
    assert ids == [[16, 100], [64, 60]], "where the sequence with these last ids would end"
    assert len(draw_dispersion(result(ids=(), cropped_results=())).axes) == 3


# --- tables -----------------------------------------------------------------------------------------------------


def test_tables_say_a_constant_answer_instead_of_a_number():
    accuracy, recalls, answers, apart, ids = stretch_tables(result())
    shown = text(accuracy)
    assert "says “sorted” to all" in shown
    assert "90.0 % [69.9, 98.2]" in shown
    assert "50.0 %" not in shown
    assert "trained on 8-16, draw 0" in shown
    assert [table.row_count for table in (accuracy, recalls, answers, apart, ids)] == [3, 3, 3, 1, 2]
    assert "each class apart" in text(recalls)
    assert "answers “sorted”" in text(answers)
    assert "90.0 [59.6, 99.5]" in text(answers)
    (row,) = [line for line in text(apart).splitlines() if line.startswith("│ 64")]
    assert [part.strip() for part in row.split("│")[2:5]] == [
        "80.0 % [58.4, 91.9]",
        "60.0 % [38.7, 78.1]",
        "says “sorted” to all",
    ]
    (row,) = [line for line in text(ids).splitlines() if line.startswith("│ 48-63")]
    assert [part.strip() for part in row.split("│")[2:5]] == ["60.0 [31.3, 83.2]", "60.0 [31.3, 83.2]", "7.5"]


def test_ids_that_are_refused_or_change_nothing_are_told():
    assert ids_note(result()) == ""
    assert ids_note(result(ids=())) == ""
    assert ids_note(result(refused_first_ids=(100, 200))) == "runs/a refuses ids from 100, 200 on"
    still = result(ids=tuple(replace(each, moved=2e-6) for each in result().ids))
    assert ids_note(still).endswith("from 0 to 48, does not matter to runs/a: a logit moves by up to 2e-06")
    assert len(stretch_tables(still)) == 4, "and there is no table to read"
    refused = text(stretch_tables(result(ids=result().ids[:1]))[3])
    assert "refused" in refused


def test_without_long_lengths_there_is_nothing_to_take_apart():
    assert len(stretch_tables(result(cropped_results=(), ids=()))) == 3


def test_the_reach_of_several_models_names_refusals():
    short = result(cells=tuple(c for c in result().cells if c.length < 64), hard_codes=("window of ±1",))
    shown = text(reach_table({"long": result(), "short": short}, "adjacent"))
    assert "long" in shown
    assert "(given: window of ±1)" in shown
    assert "only “sorted”" in shown
    assert "refused" in shown


def test_accuracy_in_words():
    assert accuracy_text(cell(8, "shuffle", 20)) == "100.0 % [83.9, 100.0]"
    stuck = cell(8, "shuffle", 10, "unsorted")
    assert accuracy_text(stuck) == "says “unsorted” to all"
    assert (
        accuracy_text(replace(stuck, answers=(Proportion.of(19, 20), Proportion.of(1, 20))))
        == "says “unsorted” to nearly all"
    )


# --- what classifiers share with other models -------------------------------------------------------------------


def test_an_evaluation_has_a_row_per_group(tiny_sorter):
    found = tiny_sorter.evaluate("test")
    axes = draw_accuracy(found, "a run").axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        f"{name}  (n = {n})" for name, n, _ in accuracy_rows(found)
    ]
    assert accuracy_rows(found)[0][:2] == ("accuracy: all", "20")


def test_the_note_counts_the_answers_and_shouts_if_they_are_all_one(tiny_sorter, tiny_run):
    found = tiny_sorter.evaluate("test")
    sound, stuck = replace(found, constant=None), replace(found, constant="sorted")
    shares = [f"“{each.group}” to {percent(each.right)}" for each in found.answer_shares]
    assert answers_note(sound) == "it says " + ", ".join(shares)
    assert answers_note(stuck).startswith("CONSTANT: it says “sorted”")
    assert answers_note(tiny_run.evaluate("test")) == ""


def test_curves_show_how_often_it_predicts_sorted(tiny_sorter):
    loss, rates = draw_curves(tiny_sorter.folder.read_log(), "a run").axes
    assert len(loss.lines[0].get_xdata()) == 12
    assert [line.get_label() for line in rates.lines] == ["right", "answers “sorted”", "right, training examples"]
    assert "n = 20" in rates.get_title()
