"""The section on ablation: the most important head, and when that is undecided."""

from dataclasses import replace

from heads_by_hand import ablation, effect, model_results, report_results, require_sound, sentences, texts

from headcount.describing.blocks import DataTable
from headcount.describing.sections.ablation import section


def told(*effects, **changes):
    found = section(report_results(model_results(ablation=ablation(*effects, **changes))))
    require_sound(found)
    return found


def test_a_model_that_was_not_ablated_has_no_section() -> None:
    assert section(report_results(model_results())) is None


def test_who_matters_most() -> None:
    one, other = replace(effect("E0H0", 0.3), rank_low=1), replace(effect("X0H0", 0.1), rank_low=2)
    words = "E0H0 is the most important head of adder: removing it costs 30.0 points (95 % CI 29.5-30.5, n = 2,000)"
    assert told(one, other).answer.text == f"{words} (one seed)."
    one, other = replace(effect("E0H0", 0.1), rank_low=2), replace(effect("X0H0", 0.3), rank_low=1)
    found = told(one, other).answer
    assert "X0H0 is the most important head of adder" in found.text
    assert "one seed" in found.text
    assert found.is_decided


def test_rivals_leave_it_undecided() -> None:
    one, other = replace(effect("E0H0", 0.30), rank_low=1), replace(effect("X0H0", 0.29), rank_low=1)
    found = told(one, other).answer
    assert found.text.startswith("It is undecided which head of adder is most important: removing E0H0 costs 30.0")
    assert "X0H0 may cost as much" in found.text
    assert not found.is_decided


def test_no_head_may_matter() -> None:
    found = told(effect("E0H0", 0.0), effect("X0H0", 0.0)).answer
    assert found.text.startswith("It is undecided whether any head of adder matters: removing E0H0 costs 0.0 points")
    assert not found.is_decided


def test_how_many_are_redundant() -> None:
    one, none = effect("E0H0", 0.3), effect("X0H0", 0.0)
    words = "For {} of 2 heads ({} %), the 95 % CI of the drop under zero ablation lies below 1 point"
    assert words.format(1, "50.0") in texts(told(one, none))
    assert words.format(0, "0") in texts(told(one, effect("X0H0", 0.2)))
    assert "How many heads can be removed together is a different question" in texts(told(one, none))
    assert "it is undecided" not in texts(told(one, none))
    near = effect("D0H0", 0.01)
    assert "; for D0H0, this is undecided" in texts(told(one, none, near))
    swapped = [effect(each.head, drop, replacement="resample") for each, drop in ((one, 0.3), (none, 0.5))]
    found = texts(told(*swapped, one, none))
    assert words.format(1, "50.0") in found, "a head that misleads when it is swapped can still be removed"
    assert "0 heads are redundant under every ablation (resample and zero)" in found


def test_what_removal_costs_comes_first_and_then_what_swapping_does() -> None:
    swapped = [effect("E1H2", 0.1, replacement="resample"), effect("E0H1", 0.9, replacement="resample")]
    removed = [effect("E1H2", 0.33), effect("E0H1", 0.02)]
    ranked = [replace(each, rank_low=rank) for each, rank in zip((*swapped, *removed), (2, 1, 1, 2), strict=True)]
    first, second = sentences(told(*ranked))[:2]
    assert first.text.startswith("E1H2 is the most important head of adder: removing it costs 33.0 points")
    assert second.text == (
        "E0H1 is the most important head under resample ablation: it costs 90.0 points (95 % CI 89.5-90.5, n = 2,000)."
    )
    (table,) = [each for each in told(*ranked).blocks if isinstance(each, DataTable)]
    assert [row[0].text for row in table.rows] == ["E1H2", "E0H1"]
    assert table.columns == ("head", "rank (zero)", "resample", "zero")
    assert [row[-1].text.split()[-1] for row in table.rows] == ["critical", "important"]
    assert "p < 0.05 (exact McNemar test, Holm correction over the 2 heads of each ablation)" in table.note


def test_whether_replacements_agree() -> None:
    both = [
        effect(head, drop, replacement=by) for by in ("zero", "mean") for head, drop in (("E0H0", 0.3), ("X0H0", 0.1))
    ]
    assert "E0H0 has the largest drop under every ablation (zero and mean)." in texts(told(*both))
    apart = [*both[:2], effect("E0H0", 0.0, replacement="mean"), effect("X0H0", 0.2, replacement="mean")]
    found = [each for each in sentences(told(*apart)) if "depends on the ablation" in each.text]
    words = "The head with the largest drop depends on the ablation"
    assert found[0].text == f"{words}: E0H0 under zero ablation and X0H0 under mean ablation."
    assert not found[0].is_decided
    none = [*apart[:2], effect("E0H0", -0.001, replacement="mean"), effect("X0H0", 0.0, replacement="mean")]
    assert "depends on the ablation" not in texts(told(*none))


def test_the_ranking_is_sorted_and_has_intervals() -> None:
    (table,) = [each for each in told(effect("X0H0", 0.1), effect("E0H0", 0.3)).blocks if isinstance(each, DataTable)]
    assert [row[0].text for row in table.rows] == ["E0H0", "X0H0"]
    assert table.rows[0][2].text.startswith("30.00 [")
    assert table.rows[0][2].value == 30.0
