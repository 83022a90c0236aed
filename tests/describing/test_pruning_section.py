"""What can go together: as much as was asked, more, or undecided; and the trap, where it is one."""

import pytest
from heads_by_hand import ablation, effect, material, point, pruning, require_sound, sentences, subject, texts

from headcount.analysis.pruning import PrunableShare, PruningCurve
from headcount.describing.blocks import DataTable, Notice
from headcount.describing.sections.pruning import section


def told(**changes):
    return section(material(subject(pruning=pruning(**changes))))


def test_a_model_whose_heads_were_not_removed_has_no_section() -> None:
    assert section(material(subject())) is None


def test_what_can_go_and_the_trap_in_one() -> None:
    found = told()
    require_sound(found)
    assert found.answer.text == (
        "3 of 8 heads of adder can go together for at most 1 point: 98.8 % (95 % interval 97.8 to 99.8) is left of "
        "99.0 % (n = 2,000 other examples); the 5 that are harmless one at a time, set to zero, leave 4.6 % (95 % "
        "interval 3.6 to 5.6) when all go (one seed)."
    )


@pytest.mark.parametrize(
    ("drop", "words", "is_decided"),
    [
        (0.002, "3 of 8 heads of adder can go together for at most 1 point", True),
        (0.010, "whether it is at most 1 point there is undecided", False),
        (0.050, "a loss of 5.00 points (95 % interval 4.60 to 5.40), which is more", True),
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
    words = "For at most 1 point, 5 of 8 heads (62.5 %) can each be removed alone and 3 of 8 heads (37.5 %) together: "
    assert f"{words}98.8 % (95 % interval 97.8 to 99.8) is left on 2,000 other examples." in texts(found)
    words = "For at most 5 points, 6 of 8 heads (75.0 %) can each be removed alone and 4 of 8 heads (50.0 %) together"
    assert words in texts(found)
    assert "a loss of 6.00 points (95 % interval 5.60 to 6.40), which is more than 5 points" in texts(found)
    table = next(block for block in found.blocks if isinstance(block, DataTable))
    assert [[each.text for each in row] for row in table.rows] == [
        ["1", "5 of 8 heads (62.5 %)", "3 of 8 heads (37.5 %)", "98.8 [97.8, 99.8]"],
        ["5", "6 of 8 heads (75.0 %)", "4 of 8 heads (50.0 %)", "93.0 [92.0, 94.0]"],
    ]
    assert "when it is removed alone, lies below the loss (on the test set)" in table.note
    none = PrunableShare(0.01, 0, 0, point(0, 0.99, 0.0))
    assert "0 of 8 heads (0.0 %) together." in texts(told(prunable=(none,)))
    near = PrunableShare(0.05, 6, 4, point(4, 0.94, 0.05))
    assert "whether that is at most 5 points is undecided" in texts(told(prunable=(near,)))


def test_a_share_of_the_heads_is_told_by_what_it_costs() -> None:
    found = told(kept=point(3, 0.94, 0.05), share=0.375)
    require_sound(found)
    assert "Without 3 of 8 heads of adder, 38 % of the heads, 94.0 %" in texts(found)
    assert "a loss of 5.00 points" in texts(found)
    assert "3 of 8 heads of adder go together for at most" not in texts(found)


def test_from_how_many_heads_on_it_is_too_much() -> None:
    curve = PruningCurve("greedy", (point(3, 0.988, 0.002), point(4, 0.981, 0.009), point(5, 0.95, 0.04)))
    words = (
        "Without 5 heads or more, greedy removal loses more than 1 point: 95.0 % (95 % interval 94.0 to 96.0) is left"
    )
    assert words in texts(told(curves=(curve,)))
    assert "or more" not in texts(told(curves=(PruningCurve("greedy", curve.points[:2]),)))
    back = PruningCurve("greedy", (*curve.points, point(6, 0.988, 0.002)))
    assert "or more" not in texts(told(curves=(back,))), "it does not stay so"
    much = (point(3, 0.9, 0.09), *curve.points[2:])
    found = told(curves=(PruningCurve("greedy", much),), kept=much[0])
    assert "which is more" in texts(found)
    assert "or more" not in texts(found), "it is too much already"


@pytest.mark.parametrize(
    ("score", "words"),
    [
        (0.999, "by less than the intervals: which order is better is undecided"),
        (0.98, ""),
        (1.02, "more than by greedy removal, which was no help here"),  # no share, but shows when intervals part
    ],
)
def test_a_simpler_order_that_leaves_more_is_told(score, words) -> None:
    found = told(curves=(PruningCurve("together", (point(3, score, 0.99 - score),)),))
    assert ("Without the first 3 in the order of their own drops, " in texts(found)) is bool(words)
    assert words in texts(found)


def test_where_no_head_can_go() -> None:
    found = told(chosen=(), kept=point(0, 0.99, 0.0), n_tried=0, by_zero=(), by_zero_left=point(0, 0.99, 0.0))
    require_sound(found)
    assert "No head of adder can go for at most 1 point" in found.answer.text
    assert "no head costs under 1 point when removed alone" in texts(found)


@pytest.mark.parametrize(
    ("drop", "words", "is_decided"),
    [
        (0.944, "harmless alone is not harmless together", True),
        (0.001, "here what is harmless alone is harmless together", True),
        (0.010, "whether that is a loss of at most 1 point is undecided", False),
    ],
)
def test_the_trap_of_harmless_alone(drop, words, is_decided) -> None:
    found = told(by_zero_left=point(5, 0.99 - drop, drop))
    (sentence,) = (each for each in sentences(found) if "The 5 heads" in each.text)
    assert words in sentence.text
    assert sentence.is_decided is is_decided


@pytest.mark.parametrize(
    ("luck", "words", "is_decided"),
    [
        (0.70, "luck alone would not have found this", True),
        (0.985, "whether it beats luck is undecided", False),
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
    assert "more than greedy removal, which was no help here" in texts(found)


def test_what_there_was_no_time_for_is_undecided() -> None:
    found = told(budget=3.0, not_measured=("5 of 5 random orders",))
    assert "no time within 3 s: 5 of 5 random orders" in texts(found)
    assert not sentences(found)[-1].is_decided
    assert "no time" not in texts(told())


def test_a_loss_is_told_in_nats() -> None:
    found = told(unit="nats", is_accuracy=False, metric="loss", clean=-1.5, kept=point(3, -1.502, 0.002))
    require_sound(found)
    assert "for at most 0.01 nats: 1.502 nats" in found.answer.text
    assert "is left of 1.5 nats (loss, n = 2,000 other examples)" in found.answer.text


def test_the_table_has_every_number_of_heads() -> None:
    table = next(block for block in told().blocks if isinstance(block, DataTable))
    assert [row[0].text for row in table.rows] == [str(k) for k in range(9)]
    assert table.columns == ("removed", "together", "greedy", "random orders: median [10 %, 90 %]")
    assert table.rows[2][3].text == "50.0 [10.0, 90.0]"
    assert "-E0H0" in table.rows[1][1].text


def test_what_the_audit_says_stands_there() -> None:
    assert any(isinstance(block, Notice) for block in told(audit="a fault").blocks)


def test_why_the_ablation_counts_other_heads_as_harmless() -> None:
    found = pruning(harmless=("encoder.0.self.0",), replacements=("zero",))

    def texts_with(drop: float) -> str:
        measured = ablation(effect("E0H0", drop), effect("X0H0", 0.0))
        section_ = section(material(subject(pruning=found, ablation=measured)))
        require_sound(section_)
        return texts(section_)

    assert "The ablation above finds 2 such heads" in texts_with(0.0)
    assert "The ablation above finds 1 such head, on " in texts_with(0.3), "as many, but another one"
    found = pruning(harmless=("decoder.0.cross.0",), replacements=("zero",))
    assert "The ablation above" not in texts_with(0.3), "the same: nothing to explain"
