"""Blocks in a terminal: nothing is lost at any width."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from headcount.describing.blocks import Block, Cell, Commands, Conclusions, DataTable, Notice, Sentence
from headcount.rendering.terminal import terminal_lines

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


def printed(*blocks: Block, width: int) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width)
    for line in terminal_lines(blocks):
        console.print(line)
    return out.getvalue()


@pytest.mark.parametrize("width", [40, 80, 120, 240])
def test_no_number_is_cut_at_any_width(width: int) -> None:
    text = printed(TABLE, width=width)
    assert all(text.count(number) == 2 for number in NUMBERS)
    assert max(map(len, text.splitlines())) <= width
    assert text.count("E0H1") == text.count("E0H0") >= 1


def test_a_narrow_terminal_gets_several_tables_that_repeat_the_first_column() -> None:
    assert printed(TABLE, width=240).count("E0H0") == 1
    assert printed(TABLE, width=80).count("E0H0") > 1


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
