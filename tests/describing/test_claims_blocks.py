"""What is said about a claim follows from its numbers: opposite results, the opposite sentence."""

from __future__ import annotations

from typing import Any

import pytest

from headcount.claims.base import ClaimResult, ClaimsResult, Evidence, Statement, verdict_of
from headcount.describing.blocks import Cell, Conclusions, DataTable
from headcount.describing.claims import describe, describe_all


def evidence(value: float, half: float = 0.01, unit: str = "share", n: int = 400) -> Evidence:
    return Evidence("the patch moves {}", value, value - half, value + half, n, "quartets", unit)


def result(*parts: Evidence, name: str = "runs/a", **more: Any) -> ClaimResult:
    verdict: Any = verdict_of(parts, more.get("controls", ())) if parts else "not judged"
    return ClaimResult(name, "digest", "E0 mine", f"E0 of {name} is mine", verdict, parts, **more)


def sentences(one: ClaimResult) -> list[str]:
    (block,) = (block for block in describe(one) if isinstance(block, Conclusions))
    return [sentence.text for sentence in block.sentences]


@pytest.mark.parametrize(
    ("one", "first"),
    [
        (
            result(evidence(0.91).at_least(0.5)),
            "Supported: E0 of runs/a is mine: the patch moves 91.0 % (95 % CI 90.0-92.0, n = 400 quartets).",
        ),
        (
            result(evidence(0.1).at_least(0.5)),
            "Refuted: E0 of runs/a is mine: the patch moves 10.0 % (95 % CI 9.0-11.0, n = 400 quartets).",
        ),
        (
            result(evidence(0.91).at_least(0.5), evidence(0.0, unit="points").at_least(0.05)),
            "Refuted: E0 of runs/a is mine: the patch moves 0.0 points (95 % CI -1.0 to 1.0, n = 400 quartets).",
        ),
        (
            result(evidence(0.1).at_least(0.5), by_construction="it sees nothing"),
            "Refuted (by construction): E0 of runs/a is mine: the patch moves 10.0 % "
            "(95 % CI 9.0-11.0, n = 400 quartets).",
        ),
        (result(reason="there is no such head."), "Not judged: E0 of runs/a is mine: there is no such head."),
    ],
)
def test_the_first_sentence_is_the_verdict(one: ClaimResult, first: str) -> None:
    assert sentences(one)[0] == first


def test_an_undecided_claim_says_why() -> None:
    wide = sentences(result(evidence(0.55, 0.08).at_least(0.5)))
    assert wide[0].startswith("Undecided: ")
    assert wide[1].startswith("About ")
    near = sentences(result(evidence(0.51, 0.08).at_least(0.5)))
    assert near[1].startswith("The number of examples that would decide this claim cannot be estimated")
    failed = result(evidence(0.9).at_least(0.5), controls=(evidence(0.3).within(0.1),))
    assert sentences(failed)[0].startswith("Undecided (a control fails): ")
    assert sentences(failed)[1].endswith("; this number must be between -0.1 and 0.1.")
    assert sentences(failed)[2] == "More examples would not decide this claim, because a control fails."


def test_the_table_has_a_row_for_each_number() -> None:
    one = result(evidence(0.9).at_least(0.5), controls=(evidence(0.0).within(0.1), evidence(0.2, unit="points")))
    (table,) = (block for block in describe(one) if isinstance(block, DataTable))
    assert [row[1] for row in table.rows] == ["evidence", "control", "shown"]
    assert [row[-1] for row in table.rows] == ["yes", "yes", "-"]
    assert not [block for block in describe(result(reason="no")) if isinstance(block, DataTable)]


def test_several_models_are_counted() -> None:
    statement = Statement("E0 mine", "report 9")
    parts = (
        result(evidence(0.9).at_least(0.5)),
        result(evidence(0.1).at_least(0.5), name="runs/b"),
        result(reason="it has no E0", name="runs/c"),
    )
    conclusions, table = describe_all(ClaimsResult(("runs/a", "runs/b", "runs/c"), (statement,), parts))
    assert isinstance(conclusions, Conclusions)
    assert isinstance(table, DataTable)
    text = conclusions.sentences[0].text
    assert text.startswith("E0 mine: supported in 1 of 2 models, refuted in 1; mean effect 50.0 % (95 % CI ")
    assert table.columns == ("claim", "who says it", "runs/a", "runs/b", "runs/c", "supported in")
    assert table.rows[0][1] == "report 9"
    assert "Not judged: E0 mine on runs/c: it has no E0." in table.note


def test_the_table_of_several_models_says_which_n_would_decide() -> None:
    parts = (
        result(evidence(0.55, 0.08).at_least(0.5)),
        result(evidence(0.51, 0.08).at_least(0.5), name="runs/b"),
        result(evidence(0.9).at_least(0.5), controls=(evidence(0.3).within(0.1),), name="runs/c"),
    )
    conclusions, table = describe_all(ClaimsResult(("runs/a", "runs/b", "runs/c"), (Statement("E0 mine"),), parts))
    assert isinstance(conclusions, Conclusions)
    assert isinstance(table, DataTable)
    assert ", refuted in 0, undecided in 3;" in conclusions.sentences[0].text
    assert [cell.text.partition(":")[0] for cell in table.rows[0][2:5] if isinstance(cell, Cell)] == [
        f"undecided (--n {parts[0].n_needed} would decide)",
        "undecided (effect at the threshold)",
        "undecided (a control fails)",
    ]


def test_a_notebook_shows_the_verdict() -> None:
    assert "Supported: E0 of runs/a is mine" in result(evidence(0.91).at_least(0.5))._repr_html_()
