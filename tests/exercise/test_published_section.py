"""Published figures beside ours: read from the package, compared with intervals."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

import pytest
from told_results import (
    ablation,
    audit,
    cell,
    cells,
    effect,
    evaluation,
    model_results,
    pruning,
    report_results,
    require_sound,
    sentences,
    stretch,
    texts,
)

from headcount.describing.length_generalisation import LENGTHS
from headcount.exercise.comparison import figures, published_text, rules, usual_unit, what_words
from headcount.exercise.published import adders, overlapping, sorters
from headcount.exercise.published_section import section
from headcount.stats import Proportion

ROOT = Path(__file__).parents[2]


def report(*models):
    made = section(report_results(*models))
    require_sound(made)
    return made


def adder(**known):
    return model_results("adder", task="addition", **known)


def test_there_is_a_section_for_the_exercise_alone():
    assert section(report_results(model_results("a", task=None))) is None
    assert section(report_results(adder())) is None
    assert section(report_results(model_results("a", stretch=stretch("rotary")))) is None


def test_the_figures_are_those_of_the_five_reports():
    found = {each.report: each for each in adders()}
    assert list(found) == ["000", "001", "002", "003", "004"]
    assert (found["001"].teacher_forced, found["001"].generated) == (0.9951, None)
    assert (found["002"].generated, found["004"].generated) == (0.349, 0.412)
    assert found["003"].prunable == (0.625, 0.458, 0.552)
    assert [each.costliest for each in found.values()] == [None, "E1H1", "D0H1", "E1H1", "D1H3"]
    told = {(each.report, each.encoding): each for each in sorters()}
    assert len(told) == 15
    assert [told["000", "sinusoidal"].right[length].rate for length in LENGTHS] == [1.0] * 4
    assert told["004", "learned"].right[32].rate == 0.546
    assert "512 / length" in told["000", "sinusoidal"].wrong
    assert "theorem" in told["000", "none"].wrong


def test_the_figures_come_with_the_package():
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["headcount"]
    assert any(fnmatch("exercise/published.toml", pattern) for pattern in patterns)


def test_the_page_about_the_reports_has_the_same_figures():
    page = (ROOT / "docs" / "reports.md").read_text()
    for figure in figures():
        rule = rules().rule_for(figure)
        assert rule is not None
        text = published_text(figure, usual_unit(rule))
        assert f"| {figure.report} | {what_words(rule, figure)} | {text} |" in page, figure.key


@pytest.mark.parametrize(
    ("correct", "told"),
    [
        (2000, "above both"),
        (700, "the same as that of report 002, by its 95 % CI"),
        (760, "above that of report 002 only"),
        (100, "below both"),
    ],
)
def test_our_accuracy_is_held_against_theirs(correct, told):
    (found,) = sentences(report(adder(evaluation=evaluation(correct))))
    assert f"{correct:,} of 2,000" in found.text
    assert found.text.endswith(f"34.9 % (002) and 41.2 % (004): ours is {told}.")


def test_the_costliest_head_is_looked_for_in_the_same_place():
    ours = ablation(effect("encoder.1.self.2", 0.33), effect("decoder.0.self.0", 0.02, rank_low=2))
    (found,) = sentences(report(adder(ablation=ours)))
    assert "E1H2 costs most in adder (one model): 33.0 points (95 % CI 32.0-34.0; n = 2,000)" in found.text
    assert (
        "name E1H1 (001 and 003), D0H1 (002) and D1H3 (004): 2 of 4 have the same kind of attention, 3 the same layer"
        in found.text
    )
    cross = ablation(effect("decoder.0.cross.2", 0.33), effect("decoder.0.self.0", 0.02, rank_low=2))
    (found,) = sentences(report(adder(ablation=cross)))
    assert "none of 4 have the same kind of attention, 1 the same layer" in found.text


def test_which_head_costs_most_may_be_undecided():
    ours = ablation(effect("encoder.1.self.2", 0.33), effect("decoder.0.self.0", 0.32, rank_low=1))
    (found,) = sentences(report(adder(ablation=ours)))
    assert not found.is_decided
    nothing = ablation(effect("encoder.1.self.2", 0.005), effect("decoder.0.self.0", 0.0, rank_low=2))
    assert not sentences(report(adder(ablation=nothing)))[0].is_decided


def test_what_can_go_alone_is_held_against_what_is_left_together():
    (found,) = sentences(report(adder(pruning=pruning(left=0.03))))
    assert "41.7 % to 70.8 % of heads prunable" in found.text
    assert "18 of 24 heads (75.0 %) of adder are prunable" in found.text
    assert "Removed together they leave 3.0 % (95 % CI 2.5-3.5; n = 2,000)" in found.text
    assert "these 18 cannot be removed together" in found.text
    (found,) = sentences(report(adder(pruning=pruning(left=0.999))))
    assert "here, they can be removed together" in found.text
    (found,) = sentences(report(adder(pruning=pruning(left=0.99))))
    assert not found.is_decided
    assert not sentences(report(adder(pruning=pruning(by_zero=0))))


def test_the_table_has_five_reports_and_ours():
    ours = ablation(effect("encoder.1.self.2", 0.33), effect("encoder.0.self.2", 0.5, replacement="mean"))
    made = report(adder(evaluation=evaluation(), ablation=ours, pruning=pruning(), audit=audit({"HC101": "pass"})))
    rows = cells(made, "published-addition")
    assert [row[0] for row in rows] == [*(f"report 00{i}" for i in range(5)), "ours: adder"]
    assert rows[2][1:5] == ["34.90", "99.85", "D0H1 23.65, E1H3 17.85", "70.8"]
    assert rows[4][5] == "0.0 (measured later)"
    assert rows[5][1] == "100.00 [99.81, 100.00]"
    assert rows[5][3:] == [
        "E1H2 33.00 [32.00, 34.00]",
        "75.0 (18 of 24)",
        "3.00 [2.50, 3.50] of 100.0",
        "none found by the audit",
    ]


def test_what_is_wrong_with_ours_is_told_too():
    faulty = adder(evaluation=evaluation(700), audit=audit({"HC101": "fail"}, summary="the first digit is 0"))
    assert cells(report(faulty), "published-addition")[-1][-1] == "audit: HC101 check 101"
    assert cells(report(adder(evaluation=evaluation())), "published-addition")[-1][-1] == "none found by quick checks"
    quick = replace(evaluation(), audit="no start token")
    assert cells(report(adder(evaluation=quick)), "published-addition")[-1][-1] == "no start token"
    assert cells(report(adder(pruning=pruning())), "published-addition")[-1][-1] == "not audited"


def test_lengths_are_compared_by_intervals():
    (found,) = sentences(report(model_results("a", stretch=stretch(easy=256))))
    assert "On full shuffles of length 256, a (sinusoidal, one model) is right on 200 of 200" in found.text
    assert (
        "overlaps that of report 000, not that of 001 (50.0 %), 002 (51.2 %), 003 (48.8 %) and 004 (51.2 %)."
        in found.text
    )
    at_chance = stretch(cells=(cell(256, "shuffle", 0.5, constant="unsorted"),))
    (found,) = sentences(report(model_results("a", stretch=at_chance)))
    assert "answering “unsorted” to everything" in found.text
    assert "overlaps that of report 001, 002, 003 and 004, not that of 000 (100 %)." in found.text
    between = stretch(cells=(cell(256, "transpositions", 0.8),))
    assert "no report's interval overlaps ours." in texts(report(model_results("a", stretch=between)))
    assert not sentences(report(model_results("a", stretch=stretch(cells=(cell(16, "shuffle", 1.0),)))))


def test_the_table_of_lengths_has_the_hardest_negatives_as_well():
    rows = cells(report(model_results("a", stretch=stretch(up_to=64))), "published-sortedness")
    assert len(rows) == 15 + 2
    assert rows[-1] == [
        *("ours: a", "sinusoidal", "adjacent"),
        *("100.0 [98.1, 100.0]", "100.0 [98.1, 100.0]", "not measured", "60.0 [53.1, 66.5]", "not audited"),
    ]


def test_intervals_that_touch_agree():
    ours = Proportion.of(100, 200)
    assert overlapping(ours, [("a", Proportion.of(280, 500)), ("b", Proportion.of(400, 500))]) == (["a"], ["b"])
