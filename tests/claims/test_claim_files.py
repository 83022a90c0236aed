"""Files of claims: those that come with headcount parse, and mistakes in others are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from headcount.claims._files import read_statements, shipped
from headcount.claims.base import Statement, heads_of, parse
from headcount.errors import InputError
from headcount.experiments.models import OpenModel


@pytest.mark.parametrize("name", shipped())
def test_a_file_that_comes_with_headcount_parses(name: str) -> None:
    from headcount import api

    statements = read_statements(name)
    assert len(set(statements)) == len(statements) > 5
    model: OpenModel = api.open_model("sample:addition")
    assert all(heads_of(model, parse(statement.text).subject) for statement in statements)


def test_the_reports_are_named_by_their_numbers() -> None:
    assert set(shipped()) == {"adder", "reports"}
    says = {statement.says for statement in read_statements("reports")}
    for number in ("000", "001", "002", "003", "004"):
        assert any(number in each for each in says)


def test_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[[claim]]\ntext = "D1  prunable-together"\n[[claim]]\ntext = "D0 induction"\nsays = "me"\n')
    assert read_statements(file) == (Statement("D1 prunable-together"), Statement("D0 induction", "me"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("claim =", "is not valid TOML"),
        ("", "has no claims"),
        ("claim = 3", "has no claims"),
        ("claim = [3]", "has no claims"),
        ("[[claim]]\nsays = 'me'", "claim 1 .* has no text"),
        ("[[claim]]\ntext = 3", "claim 1 .* has no text"),
        ("[[claim]]\ntexts = 'D1 induction'", "did you mean 'text'"),
        ("[[claim]]\ntext = 'D1 induction'\n[[claim]]\ntext = 'D1 inducton'", "claim 2 .*\n.*'induction'"),
    ],
)
def test_a_mistake_in_a_file_is_named(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=why):
        read_statements(file)


def test_a_missing_file_names_those_that_come_with_headcount(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="adder, reports"):
        read_statements(tmp_path / "none.toml")
