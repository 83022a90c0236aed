"""Figures hold what the results say; how they look is looked at by people."""

import io
import itertools
import re
from functools import partial

import pytest
from matplotlib import colormaps

from headcount.analysis.attention import average_patterns, patterns_on
from headcount.figures.attention import draw_head, draw_heads, draw_over_examples, draw_page, draw_pages
from headcount.figures.style import SEQUENTIAL, png
from headcount.figures.training import accuracy_rows, draw_accuracy, draw_curves
from headcount.rendering import progress
from headcount.stats import Proportion
from headcount.training.loop import StepScores

pytestmark = pytest.mark.slow  # figures are drawn in full


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


def test_one_head_on_several_examples_shares_one_scale(tiny_run):
    patterns = [patterns_on(tiny_run, text) for text in ("3+4", "9+9", "0+1", "5+5")]
    figure = draw_over_examples(patterns, "decoder.1.cross.1")
    panels = [axes for axes in figure.axes if axes.get_title()]
    assert [axes.get_title().replace("\n", " ") for axes in panels] == [each.title for each in patterns]
    assert {(axes.images[0].norm.vmin, axes.images[0].norm.vmax) for axes in panels} == {(0, 1)}
    for axes, each in zip(panels, patterns, strict=True):
        (head,) = (h for site in each.sites for h in site.heads if h.head == "decoder.1.cross.1")
        assert axes.images[0].get_array().tolist() == [list(row) for row in head.weights]
        assert [label.get_text() for label in axes.get_xticklabels()] == list(each.example)
    assert "decoder.1.cross.1 (X1H1) on 4 examples" in figure.get_suptitle()
    alone = draw_over_examples(patterns[:1], "decoder.1.cross.1")
    assert len(texts(alone)) == 2 * 3, "alone, it has its numbers"


def test_curves_show_both_rates(tiny_run):
    figure = draw_curves(tiny_run.folder.read_log(), "a run")
    loss, rates = figure.axes
    assert len(loss.lines[0].get_xdata()) == 12
    labels = ["free-running exact match", "teacher-forced exact match", "training examples, teacher-forced"]
    assert [line.get_label() for line in rates.lines] == labels
    assert "n = 10" in rates.get_title()
    assert loss.lines[-1].get_label() == "validation set"
    assert list(loss.lines[-1].get_xdata()) == [4, 8, 12]


def test_curves_of_older_logs(tiny_run):
    new = ("validation_loss", "training_teacher_forced", "training_n")
    log = tiny_run.folder.read_log()
    old = [{key: value for key, value in line.items() if key not in new} for line in log]
    loss, rates = draw_curves(old, "an old run").axes
    assert (len(loss.lines), len(rates.lines), loss.get_title()) == (1, 2, "Training loss")
    mixed = [old[i] if i < len(log) // 2 else line for i, line in enumerate(log)]
    loss, rates = draw_curves(mixed, "an old run, fine-tuned").axes
    assert (len(loss.lines), len(rates.lines)) == (2, 3)


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize("names", [("teacher_forced", "free_running"), ("accuracy", "says_sorted")])
def test_progress_fits_80_columns(monkeypatch, is_terminal, names):
    out, whole = io.StringIO(), Proportion.of(2000, 2000)
    screen = partial(progress.Terminal, file=out, width=200, force_terminal=is_terminal, color_system=None)
    monkeypatch.setattr(progress, "Terminal", lambda stderr, quiet: screen())
    with progress.TrainingProgress(3000) as bar:
        bar.on_steps(2990, [2.3], [1e-3])
        bar.on_evaluation(2990, StepScores(dict.fromkeys(names, whole), 2.3026, {names[0]: whole}))
        bar.on_steps(3000, [2.3], [1e-3])
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "\n", out.getvalue()).splitlines()
    assert max(map(len, lines)) <= 80
    assert any("loss 2.300/2.303 train 100.0% " in line for line in lines)


def test_accuracy_has_a_row_per_group_and_an_interval_per_dot(tiny_run):
    evaluation = tiny_run.evaluate("test")
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
