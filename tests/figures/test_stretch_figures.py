"""Figures of length generalisation and of training show the numbers of the results."""

from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from matplotlib.patches import Rectangle
from stretched import LENGTHS, result

from headcount.figures.length_generalisation import draw_dispersion, draw_stretch, given_structure
from headcount.figures.style import png
from headcount.figures.training import draw_accuracy, draw_curves
from headcount.stats import Proportion


def lines(axes):
    """Label, or None for the crosses, and the points of everything drawn except helping lines."""
    drawn = [line for line in axes.lines if line.get_marker() not in ("None", "", None)]
    return [
        (None if line.get_label().startswith("_") else line.get_label(), line.get_xydata().tolist()) for line in drawn
    ]


def legend(figure):
    return [entry.get_text() for entry in figure.legends[0].get_texts()]


# --- the figure -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_there_is_one_panel_per_negative_with_its_numbers():
    figure = draw_stretch([result()])
    assert [axes.get_title() for axes in figure.axes] == ["unsorted sequences: shuffle", "unsorted sequences: adjacent"]
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
    ("hard_codes", "expected"),
    [((), "no built-in structure of the task"), (("window of ±1", "neighbours"), "built in: window of ±1, neighbours")],
)
def test_the_label_tells_what_the_model_hard_codes(hard_codes, expected):
    assert given_structure(result(hard_codes=hard_codes)) == expected
    assert legend(draw_stretch([result(hard_codes=hard_codes)])) == [f"rotary, max  ({expected}, 95 % CI)"]


def test_several_seeds_get_one_line_with_a_band():
    worse = tuple(replace(c, accuracy=c.accuracy - 0.4) for c in result().cells)
    figure = draw_stretch([result(), result(name="runs/b", seed=1, cells=worse)])
    assert legend(figure) == ["rotary, max  (no built-in structure of the task, 2 seeds: mean and range)"]
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
        "runs/a: rotary, max  (no built-in structure of the task, 95 % CI)",
        "runs/deep: rotary, max  (no built-in structure of the task, 95 % CI)",
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


@pytest.mark.slow
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
    assert "runs/a: rotary, max (no built-in structure of the task)" in figure.get_suptitle()
    assert "9 sorted sequences per length, 95 % CI" in " ".join(figure.get_suptitle().split())
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


# --- what classifiers share with other models -------------------------------------------------------------------


def test_an_evaluation_has_a_row_per_group(tiny_sorter):
    found = tiny_sorter.evaluate("test")
    labels = [label.get_text() for label in draw_accuracy(found, "a run").axes[0].get_yticklabels()]
    assert labels == [f"{row.facet}: {row.group}  (n = {row.right.n})" for row in found.rows]
    assert labels[0] == "accuracy: all  (n = 20)"


def test_curves_show_how_often_it_predicts_sorted(tiny_sorter):
    loss, rates = draw_curves(tiny_sorter.folder.read_log(), "a run").axes
    assert len(loss.lines[0].get_xdata()) == 12
    assert [line.get_label() for line in rates.lines] == ["accuracy", "answers “sorted”", "accuracy, training examples"]
    assert "n = 20" in rates.get_title()
