"""What each head does: labels as sentences, and that none is none."""

import pytest
from heads_by_hand import head_stats, model_results, report_results, require_sound, sentences, stats, texts
from printing import printed

from headcount.analysis.roles import NAMING, HeadRole, HeadRoles, RoleInputs, RoleScore
from headcount.describing.blocks import DataTable
from headcount.describing.sections.roles import describe, section
from headcount.describing.words import interval
from headcount.heads import HeadId


def told(*labels):
    heads = [head_stats(f"E0H{i}", label, carry=(0.9 - 0.1 * i,) * 2) for i, label in enumerate(labels)]
    return section(report_results(model_results(stats=stats(*heads))))


def test_a_model_whose_heads_were_not_measured_has_no_section() -> None:
    assert section(report_results(model_results())) is None


def test_which_heads_have_a_label_and_what_it_means() -> None:
    found = told("mostly aligned column (0.87)", "mostly aligned column (0.73), more when a carry comes in", "")
    require_sound(found)
    assert "2 of 3 heads of adder have a label, because they prefer one kind of token" in found.answer.text
    assert "1 has none" in found.answer.text
    assert "(one seed)" in found.answer.text
    assert "E0H0 and E0H1 attend mostly to the aligned column, the digits" in texts(found)
    assert f"E0H0 most, with 90.0 % of its attention ({interval(0.88, 0.92)}; n = 400" in texts(found)


def test_the_most_is_another_head_if_that_has_more() -> None:
    heads = [head_stats("E0H0", "mostly aligned column (0.5)", carry=(0.6, 0.6))]
    heads += [head_stats("E0H1", "mostly aligned column (0.9)", carry=(0.9, 0.9))]
    assert "E0H1 most" in texts(section(report_results(model_results(stats=stats(*heads)))))


def test_without_labels_it_is_undecided() -> None:
    found = told("", "")
    require_sound(found)
    assert "attend to: none of 2 heads prefers" in found.answer.text
    assert not found.answer.is_decided


def test_a_label_in_one_column_is_not_one_over_all() -> None:
    heads = [head_stats("X0H0", "mostly aligned column in 1s (0.87)", columns=("1s",))]
    found = section(report_results(model_results(stats=stats(*heads))))
    assert "Only for queries at the position in brackets, X0H0 (1s) attends mostly to the aligned column" in texts(
        found
    )
    assert "90.0 % of its attention" in texts(found)  # in that column, not 50 % over all


def test_the_table_sorts_by_value_and_has_the_contrast() -> None:
    table = next(block for block in told("", "").blocks if isinstance(block, DataTable))
    assert table.columns[-1] == "carry sensitivity (%)"
    assert table.rows[0][2].text == "90.0 ± 2.0"
    assert table.rows[0][2].value == pytest.approx(0.9)


# --- models without a task --------------------------------------------------------------------------------------------


def roles_of(*shares, role="induction"):
    heads = []
    for i, share in enumerate(shares):
        rank = 1 + sum(other > share for other in shares)
        standing = RoleScore(
            role, "texts", share, share - 0.05, share + 0.05, 0.1, 50, 40, rank, rank, rank, 9.0, share > 0.5
        )
        head = HeadId.parse(f"L0H{i}")
        heads.append(HeadRole(str(head), head.short, "layer", 0, "self", (standing,)))
    inputs = (RoleInputs("texts", 3, 300, ""),)
    return HeadRoles("bert", "digest", inputs, (), NAMING, ("shuffled",), 19, (), tuple(heads))


def roles(*shares):
    return section(report_results(model_results("bert", None, {}, roles=roles_of(*shares))))


def test_what_heads_of_a_model_without_a_task_stand_out_for() -> None:
    found = roles(0.9, 0.7, 0.1)
    require_sound(found)
    assert "2 of 3 heads of bert stand out in at least one role, on 300 tokens of texts" in found.answer.text
    assert "(one model)" in found.answer.text
    assert "L0H0 and L0H1 stand out for attention to the token after an earlier copy (induction)" in texts(found)
    assert "L0H0 most, with 90.0 %" in texts(found)
    assert "L0H2 most" in texts(roles(0.6, 0.1, 0.8))


def test_where_none_stands_out_it_is_undecided() -> None:
    found = roles(0.3, 0.2)
    require_sound(found)
    assert not sentences(found)[0].is_decided
    assert "none of 2 heads stands out" in texts(found)


def test_the_terminal_cuts_neither_a_number_nor_a_name() -> None:
    text = printed(*describe(roles_of(0.9, 0.7, 0.1, role="duplicate")), width=80)
    assert "…" not in text
    assert "90.0 [85.0, 95.0] *" in text
    assert "duplicate token on texts" in text
