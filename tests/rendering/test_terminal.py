"""Blocks in a terminal: nothing is lost at any width."""

from __future__ import annotations

from dataclasses import replace

import pytest
from printing import printed

from headcount.describing.blocks import Cell, Commands, Conclusions, DataTable, Notice, Sentence

NUMBERS = [f"{10 * i}.25 [{10 * i - 1}.5, {10 * i + 1}.5]" for i in range(1, 6)]
TABLE = DataTable(
    "t",
    "Ranking of the heads of [red]a model[/red]",
    ("head", "label", *(f"column {i}" for i in range(5))),
    (
        ("E0H0", "mostly the digit above, more when a carry comes in", *(Cell(text, 1.0) for text in NUMBERS)),
        ("E0H1", "", *(Cell(text, 1.0, "strong") for text in NUMBERS)),
    ),
    note="A note with `code`.",
)


@pytest.mark.parametrize("width", [40, 80, 120, 240])
def test_no_number_is_cut_at_any_width(width: int) -> None:
    text = printed(TABLE, width=width)
    assert all(text.count(number) == 2 for number in NUMBERS)
    assert max(map(len, text.splitlines())) <= width
    assert text.count("E0H1") == text.count("E0H0") >= 1


def test_a_narrow_terminal_gets_several_tables_that_repeat_the_first_column() -> None:
    assert printed(TABLE, width=240).count("E0H0") == 1
    assert printed(TABLE, width=80).count("E0H0") > 1


def test_every_column_that_names_a_row_is_repeated() -> None:
    text = printed(replace(TABLE, columns=("head", "partner", *TABLE.columns[2:]), n_keys=2), width=80)
    assert text.count("partner") == text.count("E0H0") > 1
    assert all(text.count(number) == 2 for number in NUMBERS)


def test_numbers_keep_their_width_beside_long_texts() -> None:
    long = "a sentence that is much longer than a line has room for, " * 3
    table = DataTable(
        "t", "Checks", ("id", "evidence", "p", "cause"), (("HC101", long, Cell("0.123456789", 0.1), long),)
    )
    text = printed(table, width=80)
    assert "0.123456789" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_caption_is_one_line_whatever_it_quotes() -> None:
    text = printed(replace(TABLE, caption="on \n\x1b[31ma text"), width=240)
    assert text.startswith("on \\n\\x1b[31ma text\n")


def test_marked_cells_have_a_star() -> None:
    assert printed(TABLE, width=240).count("*") == len(NUMBERS)


def test_text_is_printed_as_it_is() -> None:
    text = printed(TABLE, Conclusions((Sentence("[bold]no markup[/bold] and `code`"),)), width=240)
    assert "[red]a model[/red]" in text
    assert "A note with code." in text
    assert "[bold]no markup[/bold] and code" in text


def test_notices_and_commands() -> None:
    text = printed(Notice("fail", "the mask is missing", "HC110"), Commands(("headcount lab",), "Next:"), width=80)
    assert text.splitlines() == ["FAIL HC110: the mask is missing", "Next:", "  headcount lab"]
