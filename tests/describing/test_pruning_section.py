"""The section on pruning: what can be removed together, and heads that are harmless alone but not together."""

import pytest
from heads_by_hand import (
    ablation,
    effect,
    model_results,
    point,
    pruning,
    report_results,
    require_sound,
    sentences,
    texts,
)

from headcount.analysis.pruning import PrunableShare, PruningCurve
from headcount.describing.blocks import DataTable, Notice
from headcount.describing.sections.pruning import section


def told(**changes):
    return section(report_results(model_results(pruning=pruning(**changes))))


def test_a_model_whose_heads_were_not_removed_has_no_section() -> None:
    assert section(report_results(model_results())) is None


def test_what_can_go_and_the_trap_in_one() -> None:
    found = told()
    require_sound(found)
    assert found.answer.text == (
        "Removing 3 of 8 heads of adder together keeps 98.8 % accuracy (95 % CI 97.8-99.8, n = 2,000 held-out "
        "examples; 99.0 % with all heads). The drop is 0.2 points (95 % CI -0.2 to 0.6), at most the limit of 1 point. "
        "Removing all 5 heads that are individually harmless leaves 4.6 % accuracy (95 % CI 3.6-5.6) (one seed)."
    )


@pytest.mark.parametrize(
    ("drop", "words", "is_decided"),
    [
        (0.002, "The drop is 0.2 points (95 % CI -0.2 to 0.6), at most the limit of 1 point", True),
        (0.010, "it is undecided whether that is at most 1 point", False),
        (0.050, "The drop is 5.0 points (95 % CI 4.6-5.4), more than the limit of 1 point", True),
    ],
)
def test_whether_the_loss_holds_on_other_examples(drop, words, is_decided) -> None:
    found = told(kept=point(3, 0.99 - drop, drop))
    require_sound(found)
    assert words in found.answer.text
    assert found.answer.is_decided is is_decided


def test_the_share_that_can_be_removed_for_1_point_and_for_5() -> None:
    shares = (
        PrunableShare(0.01, 5, 3, point(3, 0.988, 0.002)),
        PrunableShare(0.05, 6, 4, point(4, 0.93, 0.06)),
    )
    found = told(prunable=shares, alone_on="the test set")
    require_sound(found)
    assert "Removing 3 of 8 heads of adder together keeps 98.8 % accuracy" in texts(found)
    assert "For a drop of at most 1 point" not in texts(found), "the first sentence is about the same limit"
    assert "Removed one at a time, 5 of 8 heads (62.5 %) cost less than 1 point (whole 95 % CI)." in texts(found)
    words = "For a drop of at most 5 points, greedy removal takes 4 of 8 heads (50.0 %) together"
    assert words in texts(found)
    assert "Removed one at a time, 6 of 8 heads (75.0 %) cost less than 5 points (whole 95 % CI)." in texts(found)
    assert "The drop is 6.0 points (95 % CI 5.6-6.4), more than the limit of 5 points" in texts(found)
    table = next(block for block in found.blocks if isinstance(block, DataTable))
    assert [[each.text for each in row] for row in table.rows] == [
        ["1", "5 of 8 heads (62.5 %)", "3 of 8 heads (37.5 %)", "98.8 [97.8, 99.8]"],
        ["5", "6 of 8 heads (75.0 %)", "4 of 8 heads (50.0 %)", "93.0 [92.0, 94.0]"],
    ]
    assert (
        "cost less than the limit when removed alone, by the whole 95 % CI of the drop (on the test set)" in table.note
    )
    none = PrunableShare(0.01, 0, 0, point(0, 0.99, 0.0))
    assert "greedy removal takes 0 of 8 heads (0 %) together." in texts(told(prunable=(none,), loss=0.02))
    fewer_alone = PrunableShare(0.01, 0, 3, point(3, 0.988, 0.002))
    words = (
        "0 of 8 heads (0 %) cost less than 1 point. This count is stricter: the whole 95 % CI must lie below the limit."
    )
    assert words in texts(told(prunable=(fewer_alone,)))
    near = PrunableShare(0.05, 6, 4, point(4, 0.94, 0.05))
    assert "it is undecided whether that is at most 5 points" in texts(told(prunable=(near,)))


def test_a_share_of_the_heads_is_told_by_what_it_costs() -> None:
    found = told(kept=point(3, 0.94, 0.05), share=0.375)
    require_sound(found)
    words = "To remove 38 % of the heads, greedy removal takes 3 of 8 heads of adder together. This leaves 94.0 %"
    assert words in texts(found)
    assert "The drop is 5.0 points" in texts(found)
    assert "the limit of" not in sentences(found)[0].text


def test_from_how_many_heads_on_it_is_too_much() -> None:
    curve = PruningCurve("greedy", (point(3, 0.988, 0.002), point(4, 0.981, 0.009), point(5, 0.95, 0.04)))
    words = "Removing 5 heads or more by greedy removal costs more than 1 point: without 5, 95.0 % accuracy "
    words += "(95 % CI 94.0-96.0) is left"
    assert words in texts(told(curves=(curve,)))
    assert "or more" not in texts(told(curves=(PruningCurve("greedy", curve.points[:2]),)))
    back = PruningCurve("greedy", (*curve.points, point(6, 0.988, 0.002)))
    assert "or more" not in texts(told(curves=(back,))), "it does not stay so"
    much = (point(3, 0.9, 0.09), *curve.points[2:])
    found = told(curves=(PruningCurve("greedy", much),), kept=much[0])
    assert "more than the limit of 1 point" in texts(found)
    assert "or more" not in texts(found), "it is too much already"


@pytest.mark.parametrize(
    ("score", "words"),
    [
        (0.999, "t is undecided which order is better"),
        (0.98, ""),
        (
            1.02,
            "more than greedy removal, which is therefore of no use here",
        ),  # no share, but shows when intervals part
    ],
)
def test_a_simpler_order_that_leaves_more_is_told(score, words) -> None:
    found = told(curves=(PruningCurve("together", (point(3, score, 0.99 - score),)),))
    assert (
        "Removing the first 3 heads in the order of their own drops under zero ablation leaves " in texts(found)
    ) is bool(words)
    assert words in texts(found)


def test_a_budget_that_ended_before_the_first_removal_decides_nothing() -> None:
    nothing = {"kept": point(0, 0.99, 0.0), "n_tried": 0, "by_zero": (), "by_zero_left": point(0, 0.99, 0.0)}
    found = told(chosen=(), budget=5.0, not_measured=("greedy removal beyond 0 of 24 heads",), **nothing)
    assert "greedy removal did not fit into the time budget of 5 s" in found.answer.text
    assert not found.answer.is_decided
    assert "No head of adder" not in texts(found)


def test_where_no_head_can_go() -> None:
    found = told(chosen=(), kept=point(0, 0.99, 0.0), n_tried=0, by_zero=(), by_zero_left=point(0, 0.99, 0.0))
    require_sound(found)
    assert "No head of adder can be removed for a drop of at most 1 point" in found.answer.text
    assert "no head costs under 1 point when removed alone" in texts(found)


@pytest.mark.parametrize(
    ("drop", "words", "is_decided"),
    [
        (0.944, "heads that are harmless alone are not harmless together", True),
        (0.001, "these heads are harmless together, too", True),
        (0.010, "it is undecided whether that is at most 1 point", False),
    ],
)
def test_the_trap_of_harmless_alone(drop, words, is_decided) -> None:
    found = told(by_zero_left=point(5, 0.99 - drop, drop))
    (sentence,) = (
        each
        for each in sentences(found)
        if "Removing all 5 heads that cost under 1 point when removed alone" in each.text
    )
    assert words in sentence.text
    assert sentence.is_decided is is_decided


@pytest.mark.parametrize(
    ("luck", "words", "is_decided"),
    [
        (0.70, "random search is worse", True),
        (0.985, "t is undecided whether greedy removal is better than random search", False),
    ],
)
def test_what_luck_would_have_done(luck, words, is_decided) -> None:
    (sentence,) = (
        each for each in sentences(told(best_random=point(3, luck, 0.99 - luck))) if "random sets" in each.text
    )
    assert words in sentence.text
    assert sentence.is_decided is is_decided


def test_luck_may_beat_the_search() -> None:
    found = told(kept=point(3, 0.8, 0.19), best_random=point(3, 0.95, 0.04))
    assert "more than greedy removal, which is therefore of no use here" in texts(found)


def test_what_there_was_no_time_for_is_undecided() -> None:
    found = told(budget=3.0, not_measured=("5 of 5 random orders",))
    assert "Not measured, because the time budget of 3 s ended: 5 of 5 random orders" in texts(found)
    assert not sentences(found)[-1].is_decided
    assert "Not measured" not in texts(told())


def test_a_loss_is_told_in_nats() -> None:
    found = told(unit="nats", is_accuracy=False, metric="loss", clean=-1.5, kept=point(3, -1.502, 0.002))
    require_sound(found)
    assert "leaves a loss of 1.502 nats (95 % CI 1.4920-1.5120, n = 2,000 held-out examples" in found.answer.text
    assert "; 1.5 nats with all heads). The rise of the loss is 0.002 nats" in found.answer.text
    assert "at most the limit of 0.01 nats" in found.answer.text


def test_the_table_has_every_number_of_heads() -> None:
    table = next(block for block in told().blocks if isinstance(block, DataTable))
    assert [row[0].text for row in table.rows] == [str(k) for k in range(9)]
    assert table.columns == ("heads removed", "by own drop", "greedy removal", "random orders: median [10 %, 90 %]")
    assert table.rows[2][3].text == "50.0 [10.0, 90.0]"
    assert "-E0H0" in table.rows[1][1].text


def test_what_the_audit_says_stands_there() -> None:
    assert any(isinstance(block, Notice) for block in told(audit="a fault").blocks)


def test_why_the_ablation_counts_other_heads_as_harmless() -> None:
    found = pruning(harmless=("encoder.0.self.0",), replacements=("zero",))

    def texts_with(drop: float) -> str:
        measured = ablation(effect("E0H0", drop), effect("X0H0", 0.0))
        section_ = section(report_results(model_results(pruning=found, ablation=measured)))
        require_sound(section_)
        return texts(section_)

    assert "The section on ablation finds 2 heads harmless when ablated alone" in texts_with(0.0)
    assert "The section on ablation finds 1 head harmless when ablated alone, on " in texts_with(0.3), (
        "as many, but another one"
    )
    found = pruning(harmless=("decoder.0.cross.0",), replacements=("zero",))
    assert "The ablation above" not in texts_with(0.3), "the same: nothing to explain"
