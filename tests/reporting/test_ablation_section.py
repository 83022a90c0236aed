"""What each head is worth, who matters most, and when that is undecided."""

from dataclasses import replace

from heads_by_hand import ablation, effect, material, require_sound, sentences, subject, texts

from headcount.reporting.blocks import DataTable
from headcount.reporting.sections.ablation import section


def told(*effects, **changes):
    found = section(material(subject(ablation=ablation(*effects, **changes))))
    require_sound(found)
    return found


def test_a_model_that_was_not_ablated_has_no_section() -> None:
    assert section(material(subject())) is None


def test_who_matters_most() -> None:
    one, other = replace(effect("E0H0", 0.3), rank_low=1), replace(effect("X0H0", 0.1), rank_low=2)
    assert "In adder, E0H0 matters most: without it 30.0 points (95 % interval " in told(one, other).answer.text
    one, other = replace(effect("E0H0", 0.1), rank_low=2), replace(effect("X0H0", 0.3), rank_low=1)
    found = told(one, other).answer
    assert "In adder, X0H0 matters most" in found.text
    assert "one seed" in found.text
    assert found.is_decided


def test_rivals_leave_it_undecided() -> None:
    one, other = replace(effect("E0H0", 0.30), rank_low=1), replace(effect("X0H0", 0.29), rank_low=1)
    found = told(one, other).answer
    assert found.text.startswith("Which head of adder matters most is undecided: E0H0 costs 30.0 points")
    assert "X0H0 may cost as much" in found.text
    assert not found.is_decided


def test_no_head_may_matter() -> None:
    found = told(effect("E0H0", 0.0), effect("X0H0", 0.0)).answer
    assert found.text.startswith("Whether any head of adder matters alone is undecided: the costliest, E0H0, costs")
    assert not found.is_decided


def test_how_many_are_redundant() -> None:
    one, none = effect("E0H0", 0.3), effect("X0H0", 0.0)
    assert "1 of 2 heads cost under 1 point alone" in texts(told(one, none))
    assert "0 of 2 heads cost under 1 point alone" in texts(told(one, effect("X0H0", 0.2)))
    assert "what can go together is another question" in texts(told(one, none))
    assert "among them" not in texts(told(one, none))
    near = effect("D0H0", 0.01)
    assert "whether D0H0 is among them is undecided" in texts(told(one, none, near))


def test_whether_replacements_agree() -> None:
    both = [
        effect(head, drop, replacement=by) for by in ("zero", "mean") for head, drop in (("E0H0", 0.3), ("X0H0", 0.1))
    ]
    assert "E0H0 costs most with every replacement (zero and mean)." in texts(told(*both))
    apart = [*both[:2], effect("E0H0", 0.0, replacement="mean"), effect("X0H0", 0.2, replacement="mean")]
    found = [each for each in sentences(told(*apart)) if "depends on the replacement" in each.text]
    assert found[0].text == "The costliest head depends on the replacement: E0H0 by zero and X0H0 by mean."
    assert not found[0].is_decided
    apart[1] = replace(apart[1], rank_low=2)
    assert "; by mean it is X0H0 (one seed)." in told(*apart).answer.text
    assert "it is" not in told(*both).answer.text
    none = [*apart[:2], effect("E0H0", -0.001, replacement="mean"), effect("X0H0", 0.0, replacement="mean")]
    assert "by mean" not in told(*none).answer.text, "nothing is lost by it, so no head costs most"
    assert "depends on the replacement" not in texts(told(*none))


def test_the_ranking_is_sorted_and_has_intervals() -> None:
    (table,) = [each for each in told(effect("X0H0", 0.1), effect("E0H0", 0.3)).blocks if isinstance(each, DataTable)]
    assert [row[0].text for row in table.rows] == ["E0H0", "X0H0"]
    assert table.rows[0][2].text.startswith("30.00 [")
    assert table.rows[0][2].value == 30.0
