"""The section on attention blocks: where the important heads are, as far as the intervals decide."""

from heads_by_hand import ablation, effect, model_results, report_results, require_sound, sentences, texts

from headcount.describing.blocks import DataTable
from headcount.describing.sections.sites import section


def told(*effects, **changes):
    return section(report_results(model_results(ablation=ablation(*effects, **changes))))


def drops(**by_head):
    return [effect(head, drop) for head, drop in by_head.items()]


def test_a_model_that_was_not_ablated_or_has_one_site_has_no_section() -> None:
    assert section(report_results(model_results())) is None
    assert told(effect("L0H0", 0.2), effect("L0H1", 0.1)) is None


def test_the_site_that_counts_most() -> None:
    found = told(*drops(E0H0=0.1, E0H1=0.1, X0H0=0.3, X0H1=0.3))
    require_sound(found)
    assert (
        "decoder.0.cross (X0) is the most important attention block of adder: its 2 heads cost 30.0 points per head"
        in found.answer.text
    )
    assert "The second is encoder.0.self (E0) with 10.0 points per head" in found.answer.text
    assert found.answer.is_decided
    opposite = told(*drops(E0H0=0.3, E0H1=0.3, X0H0=0.1, X0H1=0.1))
    assert "encoder.0.self (E0) is the most important attention block of adder" in opposite.answer.text


def test_sites_whose_intervals_overlap_are_undecided() -> None:
    found = told(*drops(E0H0=0.30, X0H0=0.301, D0H0=0.0))
    require_sound(found)
    assert "It is undecided which attention block of adder is most important" in found.answer.text
    assert "encoder.0.self (E0) may cost as much; the heads of the other 1 block cost less" in found.answer.text
    assert not found.answer.is_decided


def test_where_nothing_is_lost_no_site_counts() -> None:
    found = told(*drops(E0H0=0.0, X0H0=0.001))
    require_sound(found)
    assert "no mean drop is significantly above zero" in found.answer.text


def test_where_the_critical_heads_are() -> None:
    assert "2 heads cost over 10 points when removed alone" in texts(told(*drops(E0H0=0.2, E0H1=0.3, X0H0=0.0)))
    assert "2 of 2 in encoder self-attention and 0 of 1 in decoder cross-attention" in texts(
        told(*drops(E0H0=0.2, E0H1=0.3, X0H0=0.0))
    )
    assert "No head costs over 10 points" in texts(told(*drops(E0H0=0.02, X0H0=0.0)))


def test_drops_that_are_more_than_there_is_to_lose() -> None:
    assert "add up to 120.0 points, but the model can lose only 99.0 points" in texts(told(*drops(E0H0=0.6, X0H0=0.6)))
    assert "add up to" not in texts(told(*drops(E0H0=0.3, X0H0=0.6)))


def test_whether_replacements_agree() -> None:
    zero = drops(E0H0=0.1, X0H0=0.5)
    alike = [effect("E0H0", 0.2, replacement="mean"), effect("X0H0", 0.6, replacement="mean")]
    other = [effect("E0H0", 0.6, replacement="mean"), effect("X0H0", 0.2, replacement="mean")]
    assert "decoder.0.cross (X0) has the largest drop under every ablation (zero and mean)" in texts(
        told(*zero, *alike)
    )
    found = told(*zero, *other)
    assert "decoder.0.cross (X0) under zero ablation and encoder.0.self (E0) under mean ablation" in texts(found)
    assert not next(each for each in sentences(found) if "depends" in each.text).is_decided


def test_a_metric_without_points_has_no_bands() -> None:
    effects = [effect("L0H0", 0.4, unit="nats"), effect("L1H0", 0.1, unit="nats")]
    found = told(*effects, unit="nats", clean=-1.5)
    require_sound(found)
    assert "its 1 head costs 0.4 nats per head" in found.answer.text
    table = next(block for block in found.blocks if isinstance(block, DataTable))
    assert "critical" not in table.columns


def test_the_table_has_sites_and_kinds() -> None:
    table = next(block for block in told(*drops(E0H0=0.2, E1H0=0.3, X0H0=0.0)).blocks if isinstance(block, DataTable))
    assert [row[0] for row in table.rows] == [
        "encoder.0.self (E0)",
        "encoder.1.self (E1)",
        "decoder.0.cross (X0)",
        "encoder self-attention",
        "decoder cross-attention",
    ]
    assert table.rows[3][2].text == "25.00 [24.50, 25.50]"


def test_where_nothing_is_lost_no_site_is_said_to_lose_most() -> None:
    effects = [effect(head, 0.0, replacement=by) for by in ("zero", "mean") for head in ("E0H0", "X0H0")]
    found = section(report_results(model_results(ablation=ablation(*effects))))
    assert "largest drop under every" not in texts(found)
    assert "no mean drop is significantly above zero" in texts(found)


def test_bands_and_the_costliest_head_are_those_of_the_replacement_that_heads_are_ranked_by() -> None:
    """Results may list resample before zero; the columns are named by zero."""
    swapped = [effect("E0H0", 0.0, replacement="resample"), effect("X0H0", 0.5, replacement="resample")]
    table = next(block for block in told(*swapped, *drops(E0H0=0.4, X0H0=0.0)).blocks if isinstance(block, DataTable))
    columns = dict(zip(table.columns, table.rows[0], strict=True))
    assert columns["costliest (zero)"] == "E0H0"
    assert columns["critical (zero)"].text == "1"
