"""Figures of positions show the numbers of the results."""

from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from headcount.analysis.positions import all_encodings, positions_of
from headcount.describing.sections.positions import describe, positions_rows
from headcount.encodings import ENCODINGS
from headcount.figures.positions import draw_encodings, draw_positions
from headcount.figures.style import png

pytestmark = pytest.mark.slow  # seconds together


@pytest.fixture(scope="module")
def learned(tiny_run):
    return positions_of(tiny_run.name, tiny_run.weights_sha256, tiny_run.encoding_in_use(), 8)


@pytest.fixture(scope="module")
def everything():
    return all_encodings(d_model=8, n_heads=2, n_positions=6)


def as_run(learned, everything, name):
    """The page of a run that has this encoding."""
    encoding = next(encoding for encoding in everything.encodings if encoding.name == name)
    return replace(learned, encoding=encoding, rows=(), n_positions=6)


def titles(figure):
    return [axes.get_title() for axes in figure.axes]


def test_the_page_of_a_learned_table_shows_table_rows_kernel_and_curve(learned):
    figure = draw_positions(learned)
    # Down first; the colour bars come after the panels.
    table, kernel, rows, curve = figure.axes[:4]
    np.testing.assert_allclose(table.images[0].get_array(), np.array(learned.encoding.table).T)
    np.testing.assert_allclose(kernel.images[0].get_array(), learned.encoding.kernel)
    heights = {
        round(bar.get_x() + bar.get_width() / 2): bar.get_height() for bar in cast(list[Rectangle], rows.patches)
    }
    assert heights == {row.position: row.moved for row in learned.rows}
    assert [text.get_text() for text in rows.get_legend().get_texts()] == ["trained", "never trained"]
    np.testing.assert_allclose(curve.lines[0].get_ydata(), learned.encoding.curves[0].mean)
    assert png(figure).startswith(b"\x89PNG")


def test_trained_and_untrained_rows_differ_in_more_than_colour(learned):
    rows = draw_positions(learned).axes[2]
    assert [bar.get_hatch() for bar in rows.patches] == [None] * 3 + ["////"] * 5


def dashed(axes):
    return [line for line in axes.lines if line.get_linestyle() == "--"]


def test_lines_stand_behind_the_last_trained_position(learned):
    table, kernel, rows, curve = draw_positions(learned).axes[:4]
    for axes in (table, rows):
        assert [line.get_xdata()[0] for line in dashed(axes)] == [2.5]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in dashed(kernel)] == [(2.5, 0), (0, 2.5)]
    assert {line.get_xdata()[0] for line in curve.lines[-2:]} == {-2.5, 2.5}
    everywhere = draw_positions(replace(learned, n_trained=8))
    assert everywhere.axes[0].lines[:] == []
    assert "dashed" not in everywhere.get_suptitle()


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODINGS.names())
def test_any_encoding_has_a_figure_and_a_description(learned, everything, name):
    shown = as_run(learned, everything, name)
    figure = draw_positions(shown)
    assert name in figure.get_suptitle()
    if name in ("sinusoidal", "rotary", "t5", "none"):  # one of each way to act on positions; painting takes a second
        assert png(figure).startswith(b"\x89PNG")
    words = dict(positions_rows(shown))
    assert describe(shown)
    assert ("is a step of k positions one rotation?" in words) == (shown.encoding.table is not None)


def test_hidden_pairs_are_no_numbers(learned, everything):
    kernel = draw_positions(as_run(learned, everything, "alibi")).axes[0]
    assert np.ma.getmaskarray(np.ma.masked_invalid(kernel.images[0].get_array())).sum() == 15
    assert [text.get_text() for text in kernel.get_legend().get_texts()] == ["hidden"]


def test_every_bias_has_its_curve(learned, everything):
    curves = draw_positions(as_run(learned, everything, "t5")).axes[1]
    assert [text.get_text() for text in curves.get_legend().get_texts()] == ["head 0", "head 1"]


@pytest.mark.slow
def test_every_encoding_is_named_with_what_it_gives_and_its_number(everything):
    figure = draw_encodings(everything)
    for encoding in everything.encodings:
        given = f"built in: {encoding.hard_codes}" if encoding.hard_codes else "no structure built in"
        assert f"{encoding.name}\n{given}" in titles(figure)
    numbers = [title for title in titles(figure) if title.startswith("variance not explained")]
    expected = [
        f"variance not explained by t - s: {e.shift.variance_beyond_distance:.2f}" for e in everything.encodings
    ]
    assert sorted(numbers) == sorted(expected)
    assert png(figure).startswith(b"\x89PNG")


def test_the_trained_one_is_told_apart(tiny_run):
    own = positions_of(tiny_run.name, tiny_run.weights_sha256, tiny_run.encoding_in_use(), 6)
    figure = draw_encodings(all_encodings(own, d_model=8, n_heads=2))
    assert [title for title in titles(figure) if "(trained)" in title] == ["learned (trained)\nno structure built in"]
    assert tiny_run.name in figure.get_suptitle()
