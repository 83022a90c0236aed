"""Figures hold what the results say; how they look is looked at by people."""

import itertools

import pytest
from matplotlib import colormaps

from headcount.analysis.patterns import average_patterns, patterns_on
from headcount.training.evaluation import evaluate
from headcount.views.accuracy import accuracy_rows, draw_accuracy
from headcount.views.attention import draw_head, draw_heads, draw_page, draw_pages
from headcount.views.curves import draw_curves
from headcount.views.style import SEQUENTIAL, png


def texts(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_one_picture_per_head_and_one_page_per_kind(tiny_run):
    patterns = patterns_on(tiny_run, "3+4")
    assert list(draw_pages(patterns)) == ["encoder-self", "decoder-self", "decoder-cross"]
    assert list(draw_heads(patterns)) == [str(head) for head in tiny_run.model.heads]
    assert png(draw_pages(patterns)["encoder-self"]).startswith(b"\x89PNG")


def test_a_head_shows_its_numbers_and_tokens(tiny_run):
    patterns = patterns_on(tiny_run, "3+4")
    site = patterns.sites[0]
    figure = draw_head(patterns, site, site.heads[1])
    assert texts(figure) == [f"{weight:.2f}" for row in site.heads[1].weights for weight in row]
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["3", "+", "4"]
    assert "encoder.0.self.1" in figure.get_suptitle()
    assert "3+4 =" in figure.get_suptitle()


def test_a_page_names_every_head(tiny_run):
    figure = draw_page(average_patterns(tiny_run, "test"), "decoder", "cross")
    titles = [axes.get_title() for axes in figure.axes]
    for head in tiny_run.model.heads:
        assert any(str(head) in title for title in titles) == (head.site.kind == "cross")
    assert "n = 10" in figure.get_suptitle()


def test_curves_show_both_rates(tiny_run):
    figure = draw_curves(tiny_run.folder.read_log(), "a run")
    loss, rates = figure.axes
    assert len(loss.lines[0].get_xdata()) == 12
    assert [line.get_label() for line in rates.lines] == ["free-running exact match", "teacher-forced exact match"]
    assert "n = 10" in rates.get_title()


def test_accuracy_has_a_row_per_group_and_an_interval_per_dot(tiny_run):
    evaluation = evaluate(tiny_run.model, tiny_run.task, "test")
    axes = draw_accuracy(evaluation, "a run").axes[0]
    assert len(axes.get_yticklabels()) == len(accuracy_rows(evaluation))
    assert all("n =" in label.get_text() for label in axes.get_yticklabels())


def test_the_same_data_give_the_same_bytes(tiny_run):
    log = tiny_run.folder.read_log()
    assert png(draw_curves(log, "x")) == png(draw_curves(log, "x"))


def test_the_colour_map_survives_a_black_and_white_print():
    grey = [0.299 * r + 0.587 * g + 0.114 * b for r, g, b, _ in map(colormaps[SEQUENTIAL], range(256))]
    assert all(a > b for a, b in itertools.pairwise(grey))
    assert grey[0] - grey[-1] == pytest.approx(0.8, abs=0.15)
