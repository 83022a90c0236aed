"""Pages of what heads are for, and of which look alike; how they look is looked at by people."""

import re
from dataclasses import replace
from typing import cast

import pytest
from matplotlib.container import ErrorbarContainer
from matplotlib.patches import Rectangle
from printing import printed
from scipy.special import stdtrit

from headcount.analysis.matching import Effort, match
from headcount.analysis.matching_transplants import Restored, Transplant
from headcount.analysis.matching_verdicts import ALONE, NOT_ALIKE, SAME_JOB
from headcount.analysis.specialisation import specialise
from headcount.describing.matching import match_table
from headcount.describing.specialisation import stats_table
from headcount.figures.matching import draw_matching
from headcount.figures.specialisation import draw_conditions, draw_stats
from headcount.figures.style import png
from headcount.rendering.terminal import FittedTable

pytestmark = pytest.mark.slow  # together they take over 5 s


@pytest.fixture(scope="module")
def stats(tiny_run):
    return specialise(tiny_run, controls=(3, 1))


def words(figure):
    figure.canvas.draw()
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_the_page_has_every_head_every_number_and_the_thresholds(stats):
    figure = draw_stats(stats)
    titles = ["Encoder self-attention", "Decoder self-attention", "Decoder cross-attention"]
    assert [axes.get_title(loc="left") for axes in figure.axes[:3]] == titles
    names = [label.get_text() for axes in figure.axes[:3] for label in axes.get_yticklabels()]
    assert names == [head.short for head in stats.heads]
    cross = stats.heads[-1]
    operator = cross.find("operator")
    assert any(text.startswith(f"{operator.mean:.2f} ± ") for text in words(figure))
    assert "at least 0.25" in figure.get_supxlabel().replace("\n", " ")
    assert "any label" in figure.get_supxlabel().replace("\n", " ")
    assert "10 examples (the test set)" in figure.get_suptitle().replace("\n", " ")
    assert png(figure).startswith(b"\x89PNG")


def test_labels_stand_at_the_right(stats):
    named = replace(stats, heads=tuple(replace(head, label=f"names {head.short}") for head in stats.heads))
    figure = draw_stats(named)
    right = [child for axes in figure.axes[:3] for child in axes.child_axes]
    shown = [label.get_text() for axes in right for label in axes.get_yticklabels()]
    assert shown == [f"names {head.short}" for head in stats.heads]


def test_conditions_are_drawn_by_column_with_errors(stats):
    pages = draw_conditions(stats)
    assert list(pages) == ["encoder-self", "decoder-self", "decoder-cross"]
    figure = pages["decoder-cross"]
    heads = [head for head in stats.heads if head.kind == "cross"]
    targets = ["operator", "diagonal", "aligned column", "carry column", "first token", "entropy share"]
    assert [axes.get_title() for axes in figure.axes[:6]] == targets
    assert len(figure.axes) == len(heads) * len(targets)
    assert [label.get_text() for label in figure.axes[-1].get_xticklabels()] == ["10s", "1s"]
    carried, without = cast(list[ErrorbarContainer], figure.axes[0].containers)
    assert (carried.get_label(), without.get_label()) == ("carry in", "no carry in")
    found = heads[0].find("operator", "10s", "carry in")
    assert carried.lines[0].get_ydata().tolist() == [found.mean], "no carry comes into the 1s"
    (segment,) = carried.lines[2][0].get_segments()
    assert segment[:, 1].tolist() == pytest.approx([found.mean - found.half(), found.mean + found.half()])
    assert len(without.lines[0].get_ydata()) == 2
    assert png(pages["encoder-self"]).startswith(b"\x89PNG")


def test_a_task_without_columns_is_drawn_over_all_queries(tiny_sorter):
    stats = specialise(tiny_sorter, controls=(3, 1))
    figure = draw_conditions(stats)["layer-self"]
    assert [axes.get_title() for axes in figure.axes[:3]] == ["left neighbour", "itself", "right neighbour"]
    assert [label.get_text() for label in figure.axes[-1].get_xticklabels()] == ["all queries"]
    assert [box.get_label() for box in figure.axes[0].containers] == ["sorted", "unsorted"]
    assert png(draw_stats(stats)).startswith(b"\x89PNG")


def test_the_table_has_a_row_per_head(stats):
    text = printed(stats_table(stats, stats.name, "heads"))
    for head in stats.heads:
        assert head.short in text
    share = stats.heads[0].find("entropy share")
    assert f"{100 * share.mean:.1f} ± {100 * share.half():.1f}" in text
    assert "mean ± half of the 95 % CI" in " ".join(text.split())


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_the_table_never_cuts_a_number(stats, width):
    labelled = replace(stats, heads=tuple(replace(head, label="mostly aligned column (1.00)") for head in stats.heads))
    table = stats_table(labelled, labelled.name, "heads")
    text = printed(table, width=width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    for head in labelled.heads:
        lines = " ".join(line for line in text.splitlines() if line.split()[:1] == [head.short])
        measures = [head.find(name) for name in ("entropy share", "sparsity")]
        for measure in (*measures, head.sensitivity()):
            if measure is not None:
                assert f"{100 * measure.mean:z.1f} ± {100 * measure.half():.1f}" in lines
    assert len(re.findall(r"^ +head +", text, re.M)) == len(FittedTable(table).tables(width))
    assert width < 200 or len(FittedTable(table).tables(width)) == 1


def test_pairs_never_cut_a_number_either(twins):
    text = printed(match_table(twins), width=80)
    assert "…" not in text
    first = twins.kinds[0].pairs[0]
    overlap = first.attention
    half = float(stdtrit(twins.n - 1, 0.975)) * overlap.se
    assert f"{overlap.value:.3f} ± {half:.3f}" in text


def test_every_error_that_is_printed_is_half_of_a_95_percent_interval(stats):
    share = stats.heads[0].find("entropy share")
    assert share.half() > 1.9 * share.se > 0
    assert f"{share.mean:.2f} ± {share.half():.3f}" in words(draw_stats(stats))
    headlines = [draw_stats(stats), *draw_conditions(stats).values()]
    assert not any("standard error" in figure.get_suptitle() for figure in headlines)


@pytest.fixture(scope="module")
def twins(tiny_run):
    return match(tiny_run, tiny_run, effort=Effort(untrained=1, relabelled=1, transplants=1))


def test_matching_frames_the_pairs(twins):
    figure = draw_matching(twins)
    for axes, kind in zip(figure.axes[::2], twins.kinds, strict=True):
        corners = [
            (round(patch.get_x() + 0.47), round(patch.get_y() + 0.47)) for patch in cast(list[Rectangle], axes.patches)
        ]
        assert corners == [(i, i) for i in range(len(kind.heads))]
        assert f"{kind.overlaps[0][1]:.2f}" in [text.get_text() for text in axes.texts]
    assert "n = 10" in figure.get_suptitle()
    assert "heads attend alike" in figure.get_suptitle()
    assert png(figure).startswith(b"\x89PNG")


def test_pairs_of_every_verdict_are_told_apart(twins):
    kind, other = twins.kinds[:2]
    restored = Restored(0.93, 0.85, 0.97, 0.05, 0.3, 0.4)
    job = replace(kind.pairs[0], verdict=SAME_JOB, transplant=Transplant(0.2, 800, 8192, 0.001, restored))
    none = replace(kind.pairs[1], verdict=NOT_ALIKE, transplant=Transplant(0.0, 800, 8192, 1.0, None))
    alone = replace(other.pairs[0], partner=None, attention=None, outputs=None, transplant=None, verdict=ALONE)
    changed = replace(twins, kinds=(replace(kind, pairs=(job, none)), replace(other, pairs=(alone,))))
    figure = draw_matching(changed)
    assert [patch.get_linestyle() for patch in figure.axes[0].patches] == ["-", ":"]
    assert not figure.axes[2].patches
    text = printed(match_table(changed), width=400)
    for word in (
        SAME_JOB,
        NOT_ALIKE,
        ALONE,
        "0.93 [0.85, 0.97]",
        "≤ 0.30",
        "≤ 0.40",
        "nothing to restore",
        "measured on 800",
    ):
        assert word in text, word
