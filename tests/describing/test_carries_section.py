"""Heads and carries: what attention shows, what ablation adds, and that the first is no proof."""

from dataclasses import replace

from heads_by_hand import (
    ablation,
    effect,
    failures,
    head_stats,
    material,
    require_sound,
    sentences,
    stats,
    subject,
    texts,
)

from headcount.describing.blocks import Commands, DataTable, Paragraph
from headcount.describing.sections.carries import section


def told(*heads, **results):
    return section(material(subject(stats=stats(*heads), **results)))


def test_only_adders_that_were_contrasted_have_a_section() -> None:
    assert section(material(subject())) is None
    assert section(material(subject("sorter", "sortedness", stats=stats(head_stats("L0H0", moved=0.5))))) is None
    assert section(material(subject(ablation=ablation(effect("E0H0", 0.1))))) is None


def test_the_most_sensitive_head_with_a_corrected_interval() -> None:
    found = told(head_stats("E0H0", moved=0.4), head_stats("E0H1", moved=0.1), head_stats("E0H2"))
    require_sound(found)
    assert (
        "A carry moves the attention of 2 of 3 heads of adder, the most that of E0H0: 40.0 % of it" in found.answer.text
    )
    assert (
        "95 % interval 37.6 to 42.4, corrected for 3 heads; n = 400 contrasts" in found.answer.text
    )  # not 38.0 to 42.0
    assert "no other head is moved as far" in found.answer.text
    assert "(one seed)" in found.answer.text
    words = next(block.text for block in found.blocks if isinstance(block, Paragraph))
    assert "correlation and no proof" in words


def test_another_head_may_be_as_sensitive() -> None:
    assert "E0H1 may be moved as far" in told(head_stats("E0H0", moved=0.4), head_stats("E0H1", moved=0.39)).answer.text
    assert "that of E0H1" in told(head_stats("E0H0", moved=0.1), head_stats("E0H1", moved=0.4)).answer.text


def test_where_no_head_stands_out_it_is_undecided() -> None:
    found = told(head_stats("E0H0", moved=0.02), head_stats("E0H1", moved=-0.3))
    require_sound(found)
    assert "undecided, for none stands out" in found.answer.text
    assert not found.answer.is_decided


def test_the_same_number_is_less_sure_among_more_heads() -> None:
    few, many = ([head_stats(f"E0H{i}", moved=0.025 * (not i)) for i in range(n)] for n in (2, 24))
    assert "A carry moves the attention of 1 of 2 heads" in told(*few).answer.text
    assert "none stands out" in told(*many).answer.text


def test_attention_by_condition() -> None:
    found = told(head_stats("E0H0", carry=(0.9, 0.5)), head_stats("E0H1"))
    assert "E0H0 has 90.0 % of its attention on the aligned column where a carry comes in, 50.0 %" in texts(found)
    assert "difference +40.0 points" in texts(found)
    assert "1 of 2 such comparisons differ" in texts(found)
    found = told(head_stats("E0H0", carry=(0.51, 0.5)), head_stats("E0H1"))
    assert "Whether any head attends otherwise where a carry comes in" in texts(found)
    require_sound(found)


def test_what_breaks_without_a_head() -> None:
    profiles = [failures("E0H0", (80, 200), (2, 200), faults=70), failures("E0H1", (3, 200), (2, 200))]
    results = ablation(effect("E0H0", 0.2), effect("E0H1", 0.0), failures=profiles)
    found = told(head_stats("E0H0", moved=0.4), head_stats("E0H1"), ablation=results)
    require_sound(found)
    assert "Without E0H0, 80 of 200 sums with a carry break (40.0 %" in texts(found)
    assert "; without E0H0, 80 of 200 sums with a carry break" in found.answer.text
    assert "2 of 200 sums without one break (1.0 %" in texts(found)
    assert "Attention and ablation agree on E0H0: a carry moves its attention" in texts(found)
    assert not any(isinstance(block, Commands) for block in found.blocks)
    table = next(block for block in found.blocks if isinstance(block, DataTable))
    assert table.columns[-3:] == ("broken with a carry", "broken without", "carry errors")


def test_which_heads_broken_answers_are_carry_errors() -> None:
    profiles = [
        failures("E0H0", (80, 200), (20, 200), faults=97),
        failures("E0H1", (50, 200), (50, 200), faults=4),
        failures("E0H2", (30, 200), (10, 200), faults=20),
        failures("E0H3", (0, 200), (0, 200)),
    ]
    results = ablation(*(effect(f"E0H{i}", 0.2) for i in range(4)), failures=profiles)
    found = section(material(subject(ablation=results)))
    require_sound(found)
    words = (
        "Whether broken answers are carry errors: mostly carry errors without E0H0 (97 of 100); mostly other errors "
    )
    assert f"{words}without E0H1 (4 of 100); undecided without E0H2." in texts(found)
    assert "95 % intervals corrected for 3 heads" in texts(found)
    opposite = [failures("E0H0", (80, 200), (20, 200), faults=4), failures("E0H1", (50, 200), (50, 200), faults=97)]
    found = section(material(subject(ablation=ablation(effect("E0H0", 0.2), effect("E0H1", 0.2), failures=opposite))))
    assert "mostly carry errors without E0H1 (97 of 100); mostly other errors without E0H0" in texts(found)


def test_what_breaks_goes_by_removal() -> None:
    removed, swapped = failures("E0H0", (80, 200), (2, 200), faults=70), failures("E0H0", (3, 200), (2, 200))
    profiles = [replace(swapped, replacement="resample"), removed]
    found = section(material(subject(ablation=ablation(effect("E0H0", 0.2), failures=profiles))))
    assert "Without E0H0, 80 of 200 sums with a carry break" in texts(found)


def test_attention_that_moves_where_nothing_breaks_is_not_confirmed() -> None:
    profiles = [failures("E0H0", (3, 200), (2, 200)), failures("E0H1", (80, 200), (2, 200))]
    results = ablation(effect("E0H0", 0.2), effect("E0H1", 0.0), failures=profiles)
    found = told(head_stats("E0H0", moved=0.4), head_stats("E0H1"), ablation=results)
    assert "Without E0H1, 80 of 200 sums with a carry" in texts(found)
    assert "Attention and ablation agree on no head" in texts(found)
    assert "Without E0H1 such sums break more often, and attention there is not shown to move; a carry moves" in texts(
        found
    )
    assert "moves the attention of E0H0, which such sums are not shown to need." in texts(found)
    assert not next(each for each in sentences(found) if "agree on no head" in each.text).is_decided


def test_where_all_sums_break_alike_it_is_undecided() -> None:
    profiles = [failures("E0H0", (80, 200), (75, 200))]
    found = section(material(subject(ablation=ablation(effect("E0H0", 0.2), failures=profiles))))
    require_sound(found)
    assert "break more often than others without any head is undecided" in texts(found)
    assert "break more often than others without any head is undecided" in found.answer.text
    profiles = [failures("E0H0", (80, 200), (2, 200))]
    found = section(material(subject(ablation=ablation(effect("E0H0", 0.2), failures=profiles))))
    assert found.answer.text.count("80 of 200") == 1


def test_where_it_is_not_stored_what_breaks_the_drop_is_told_and_the_command() -> None:
    heads = head_stats("E0H0", moved=0.4), head_stats("E0H1")
    found = told(*heads, ablation=ablation(effect("E0H0", 0.2), effect("E0H1", 0.0)))
    require_sound(found)
    assert "Of 1 head whose attention a carry moves, E0H0 (20.0 points) costs over 1 point" in texts(found)
    assert "for carries or for something else" in texts(found)
    command = next(block for block in found.blocks if isinstance(block, Commands))
    assert command.commands == ("headcount ablate runs/adder --examples",)
    found = told(*heads, ablation=ablation(effect("E0H0", 0.0), effect("E0H1", 0.5)))
    assert "Whether the model uses any of 1 head whose attention a carry moves is undecided" in texts(found)
