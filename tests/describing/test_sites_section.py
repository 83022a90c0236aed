"""Where the heads are that count, as far as their intervals can say."""

from heads_by_hand import ablation, effect, material, require_sound, sentences, subject, texts

from headcount.describing.blocks import DataTable
from headcount.describing.sections.sites import section


def told(*effects, **changes):
    return section(material(subject(ablation=ablation(*effects, **changes))))


def drops(**by_head):
    return [effect(head, drop) for head, drop in by_head.items()]


def test_a_model_that_was_not_ablated_or_has_one_site_has_no_section() -> None:
    assert section(material(subject())) is None
    assert told(effect("L0H0", 0.2), effect("L0H1", 0.1)) is None


def test_the_site_that_counts_most() -> None:
    found = told(*drops(E0H0=0.1, E0H1=0.1, X0H0=0.3, X0H1=0.3))
    require_sound(found)
    assert "In adder decoder.0.cross (X0) counts most: its 2 heads cost 30.0 points each" in found.answer.text
    assert "against 10.0 points each" in found.answer.text
    assert found.answer.is_decided
    opposite = told(*drops(E0H0=0.3, E0H1=0.3, X0H0=0.1, X0H1=0.1))
    assert "In adder encoder.0.self (E0) counts most" in opposite.answer.text


def test_sites_whose_intervals_overlap_are_undecided() -> None:
    found = told(*drops(E0H0=0.30, X0H0=0.301, D0H0=0.0))
    require_sound(found)
    assert "Which site of adder counts most is undecided" in found.answer.text
    assert "encoder.0.self (E0) may cost as much, while the other 1 cost less" in found.answer.text
    assert not found.answer.is_decided


def test_where_nothing_is_lost_no_site_counts() -> None:
    found = told(*drops(E0H0=0.0, X0H0=0.001))
    require_sound(found)
    assert "none is shown to lose anything" in found.answer.text


def test_where_the_critical_heads_are() -> None:
    assert "2 heads cost over 10 points when removed alone" in texts(told(*drops(E0H0=0.2, E0H1=0.3, X0H0=0.0)))
    assert "2 of 2 in encoder self-attention and none of 1 in decoder cross-attention" in texts(
        told(*drops(E0H0=0.2, E0H1=0.3, X0H0=0.0))
    )
    assert "No head at any site costs over 10 points" in texts(told(*drops(E0H0=0.02, X0H0=0.0)))


def test_drops_that_are_more_than_there_is_to_lose() -> None:
    assert "make 120.0 points, and only 99.0 points are there to lose" in texts(told(*drops(E0H0=0.6, X0H0=0.6)))
    assert "there to lose" not in texts(told(*drops(E0H0=0.3, X0H0=0.6)))


def test_whether_replacements_agree() -> None:
    zero = drops(E0H0=0.1, X0H0=0.5)
    alike = [effect("E0H0", 0.2, replacement="mean"), effect("X0H0", 0.6, replacement="mean")]
    other = [effect("E0H0", 0.6, replacement="mean"), effect("X0H0", 0.2, replacement="mean")]
    assert "decoder.0.cross (X0) loses most by zero and mean alike" in texts(told(*zero, *alike))
    found = told(*zero, *other)
    assert "depends on the replacement: decoder.0.cross (X0) by zero and encoder.0.self (E0) by mean" in texts(found)
    assert not next(each for each in sentences(found) if "depends" in each.text).is_decided


def test_a_metric_without_points_has_no_bands() -> None:
    effects = [effect("L0H0", 0.4, unit="nats"), effect("L1H0", 0.1, unit="nats")]
    found = told(*effects, unit="nats", clean=-1.5)
    require_sound(found)
    assert "its 1 head costs 0.4 nats each" in found.answer.text
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
    found = section(material(subject(ablation=ablation(*effects))))
    assert "loses most" not in texts(found)
    assert "none is shown to lose anything" in texts(found)
