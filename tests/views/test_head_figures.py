"""Pages of what heads are for, and of which look alike; how they look is looked at by people."""

from dataclasses import replace

import pytest
from rich.console import Console

from headcount.analysis.matching import match
from headcount.analysis.specialisation import specialise
from headcount.views.matching import draw_matching, match_table
from headcount.views.specialisation import draw_conditions, draw_stats, stats_table
from headcount.views.style import png

pytestmark = pytest.mark.slow  # together they take over 5 s


@pytest.fixture(scope="module")
def stats(tiny_run):
    return specialise(tiny_run, controls=(3, 1))


def words(figure):
    figure.canvas.draw()
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def printed(table):
    console = Console(width=140)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


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
    assert "10 examples (the test set)" in figure.get_suptitle()
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
    carried, without = figure.axes[0].containers
    assert (carried.get_label(), without.get_label()) == ("carry in", "no carry in")
    found = heads[0].find("operator", "10s", "carry in")
    assert carried.lines[0].get_ydata().tolist() == [found.mean], "no carry comes into the 1s"
    (segment,) = carried.lines[2][0].get_segments()
    assert segment[:, 1].tolist() == pytest.approx([found.mean - 2 * found.se, found.mean + 2 * found.se])
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
    text = printed(stats_table(stats))
    for head in stats.heads:
        assert head.short in text
    share = stats.heads[0].find("entropy share")
    assert f"{100 * share.mean:.1f} ± {100 * share.se:.1f}" in text


def test_matching_frames_the_pairs(tiny_run, tiny_sorter):
    found = match(tiny_run, tiny_run)
    figure = draw_matching(found)
    for axes, kind in zip(figure.axes, found.kinds, strict=False):
        corners = [(round(patch.get_x() + 0.47), round(patch.get_y() + 0.47)) for patch in axes.patches]
        assert corners == [(i, i) for i in range(len(kind.heads))]
        assert {patch.get_linestyle() for patch in axes.patches} == {"-"}
        assert f"{kind.overlaps[0][1]:.2f}" in [text.get_text() for text in axes.texts]
    assert "n = 10" in figure.get_suptitle()
    assert png(draw_matching(match(tiny_sorter, tiny_sorter))).startswith(b"\x89PNG")


def test_a_pair_that_is_no_match_is_told_apart(tiny_run):
    found = match(tiny_run, tiny_run)
    kind = found.kinds[0]
    worse = replace(kind, pairs=(replace(kind.pairs[0], overlap=kind.arbitrary - 0.01), *kind.pairs[1:]))
    lonely = replace(found.kinds[1], pairs=(replace(found.kinds[1].pairs[0], partner=None, overlap=None, se=None),))
    changed = replace(found, kinds=(worse, lonely))
    figure = draw_matching(changed)
    assert [patch.get_linestyle() for patch in figure.axes[0].patches] == [":", "-"]
    assert not figure.axes[1].patches
    text = printed(match_table(changed))
    assert "E0H0 (left over)" in text
    assert "none" in text
