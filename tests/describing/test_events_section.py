"""Heads and carries: what attention shows, what ablation adds, and that the first is no proof."""

from dataclasses import replace

from heads_by_hand import (
    ablation,
    effect,
    failures,
    head_stats,
    model_results,
    report_results,
    require_sound,
    sentences,
    stats,
    texts,
)

from headcount.describing.blocks import Commands, DataTable, Paragraph
from headcount.describing.sections.events import section


def told(*heads, **results):
    return section(report_results(model_results(stats=stats(*heads), **results)))


def test_only_adders_that_were_contrasted_have_a_section() -> None:
    assert section(report_results(model_results())) is None
    assert (
        section(report_results(model_results("sorter", "sortedness", stats=stats(head_stats("L0H0", moved=0.5)))))
        is None
    )
    assert section(report_results(model_results(ablation=ablation(effect("E0H0", 0.1))))) is None


def test_the_most_sensitive_head_with_a_corrected_interval() -> None:
    found = told(head_stats("E0H0", moved=0.4), head_stats("E0H1", moved=0.1), head_stats("E0H2"))
    require_sound(found)
    assert (
        "2 of 3 heads of adder respond to a carry, E0H0 most: changing one token moves 40.0 percentage points more of "
        "its attention" in found.answer.text
    )
    assert "95 % CI 37.6-42.4 corrected for 3 heads, n = 400)" in found.answer.text  # not 38.0 to 42.0
    assert "no other head responds as much" in found.answer.text
    assert "(one seed)" in found.answer.text
    words = next(block.text for block in found.blocks if isinstance(block, Paragraph))
    assert "correlation, not proof" in words


def test_another_head_may_be_as_sensitive() -> None:
    assert "E0H1 may respond as much" in told(head_stats("E0H0", moved=0.4), head_stats("E0H1", moved=0.39)).answer.text
    assert "E0H1 most" in told(head_stats("E0H0", moved=0.1), head_stats("E0H1", moved=0.4)).answer.text


def test_where_no_head_stands_out_it_is_undecided() -> None:
    found = told(head_stats("E0H0", moved=0.02), head_stats("E0H1", moved=-0.3))
    require_sound(found)
    assert "It is undecided whether the attention of any head of adder responds to a carry" in found.answer.text
    assert not found.answer.is_decided


def test_the_same_number_is_less_sure_among_more_heads() -> None:
    few, many = ([head_stats(f"E0H{i}", moved=0.025 * (not i)) for i in range(n)] for n in (2, 24))
    assert "1 of 2 heads of adder respond to a carry" in told(*few).answer.text
    assert "is undecided" in told(*many).answer.text


def test_attention_by_condition() -> None:
    found = told(head_stats("E0H0", carry=(0.9, 0.5)), head_stats("E0H1"))
    assert "E0H0 gives 90.0 % of its attention to the aligned column when a carry comes in and 50.0 %" in texts(found)
    assert "difference +40.0 points" in texts(found)
    assert "In 1 of 2 such comparisons, the difference is significant" in texts(found)
    found = told(head_stats("E0H0", carry=(0.51, 0.5)), head_stats("E0H1"))
    assert "undecided whether a carry changes the attention of any head" in texts(found)
    require_sound(found)


def test_what_breaks_without_a_head() -> None:
    profiles = [failures("E0H0", (80, 200), (2, 200), faults=70), failures("E0H1", (3, 200), (2, 200))]
    results = ablation(effect("E0H0", 0.2), effect("E0H1", 0.0), failures=profiles)
    found = told(head_stats("E0H0", moved=0.4), head_stats("E0H1"), ablation=results)
    require_sound(found)
    assert "Without E0H0, the answers to 80 of 200 sums with a carry (40.0 %" in texts(found)
    assert "; without E0H0, the answers to 80 of 200 sums with a carry" in found.answer.text
    assert "2 of 200 sums without one (1.0 %" in texts(found)
    assert "Attention and ablation agree on E0H0: attention responds to a carry" in texts(found)
    assert not any(isinstance(block, Commands) for block in found.blocks)
    table = next(block for block in found.blocks if isinstance(block, DataTable))
    assert table.columns[-3:] == ("broken with a carry", "broken without a carry", "carry errors")


def test_which_heads_broken_answers_are_carry_errors() -> None:
    profiles = [
        failures("E0H0", (80, 200), (20, 200), faults=97),
        failures("E0H1", (50, 200), (50, 200), faults=4),
        failures("E0H2", (30, 200), (10, 200), faults=20),
        failures("E0H3", (0, 200), (0, 200)),
    ]
    results = ablation(*(effect(f"E0H{i}", 0.2) for i in range(4)), failures=profiles)
    found = section(report_results(model_results(ablation=results)))
    require_sound(found)
    words = "Carry errors are the majority of broken answers without E0H0 (97 of 100); "
    assert f"{words}the minority without E0H1 (4 of 100); it is undecided without E0H2 (" in texts(found)
    assert "95 % CIs corrected for 3 heads" in texts(found)
    opposite = [failures("E0H0", (80, 200), (20, 200), faults=4), failures("E0H1", (50, 200), (50, 200), faults=97)]
    found = section(
        report_results(model_results(ablation=ablation(effect("E0H0", 0.2), effect("E0H1", 0.2), failures=opposite)))
    )
    assert "the majority of broken answers without E0H1 (97 of 100); the minority without E0H0" in texts(found)


def test_what_breaks_goes_by_removal() -> None:
    removed, swapped = failures("E0H0", (80, 200), (2, 200), faults=70), failures("E0H0", (3, 200), (2, 200))
    profiles = [replace(swapped, replacement="resample"), removed]
    found = section(report_results(model_results(ablation=ablation(effect("E0H0", 0.2), failures=profiles))))
    assert "Without E0H0, the answers to 80 of 200 sums with a carry" in texts(found)


def test_attention_that_moves_where_nothing_breaks_is_not_confirmed() -> None:
    profiles = [failures("E0H0", (3, 200), (2, 200)), failures("E0H1", (80, 200), (2, 200))]
    results = ablation(effect("E0H0", 0.2), effect("E0H1", 0.0), failures=profiles)
    found = told(head_stats("E0H0", moved=0.4), head_stats("E0H1"), ablation=results)
    assert "Without E0H1, the answers to 80 of 200 sums with a carry" in texts(found)
    assert "Attention and ablation agree on no head" in texts(found)
    assert (
        "Sums with a carry need E0H1, whose attention is not shown to respond to it; E0H0 respond to a carry"
        in texts(found)
    )
    assert "and sums with a carry are not shown to need them." in texts(found)
    assert not next(each for each in sentences(found) if "agree on no head" in each.text).is_decided


def test_where_all_sums_break_alike_it_is_undecided() -> None:
    profiles = [failures("E0H0", (80, 200), (75, 200))]
    found = section(report_results(model_results(ablation=ablation(effect("E0H0", 0.2), failures=profiles))))
    require_sound(found)
    assert "It is undecided whether sums with a carry break more often than others without some head" in texts(found)
    assert (
        "It is undecided whether sums with a carry break more often than others without some head" in found.answer.text
    )
    profiles = [failures("E0H0", (80, 200), (2, 200))]
    found = section(report_results(model_results(ablation=ablation(effect("E0H0", 0.2), failures=profiles))))
    assert found.answer.text.count("80 of 200") == 1


def test_where_it_is_not_stored_what_breaks_the_drop_is_told_and_the_command() -> None:
    heads = head_stats("E0H0", moved=0.4), head_stats("E0H1")
    found = told(*heads, ablation=ablation(effect("E0H0", 0.2), effect("E0H1", 0.0)))
    require_sound(found)
    assert "Of the 1 head that responds to a carry, E0H0 (20.0 points) costs over 1 point" in texts(found)
    assert "for the carry or for something else" in texts(found)
    command = next(block for block in found.blocks if isinstance(block, Commands))
    assert command.commands == ("headcount ablate runs/adder --examples",)
    found = told(*heads, ablation=ablation(effect("E0H0", 0.0), effect("E0H1", 0.5)))
    assert "It is undecided whether the model uses the 1 head that responds to a carry" in texts(found)
