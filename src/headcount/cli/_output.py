"""What a verb prints: a table for people or, with --json, one JSON object for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

SHOWN = 20
"""Wrong answers printed; the rest is in the result file."""


class _Console(Console):
    """Leaves a closed pipe to the command line's own handling."""

    def on_broken_pipe(self) -> None:
        """Rich would exit with code 1."""
        raise BrokenPipeError


def print_json(data: Any) -> None:
    """One object on one line."""
    print(json.dumps(data))


def console() -> Console:
    """Standard output for people; a pipe gets lines that do not wrap."""
    out = _Console(highlight=False)
    return out if out.is_terminal else _Console(highlight=False, width=120, soft_wrap=True)


def wrong_table(wrong: Iterable[Any]) -> Table:
    """The first wrong answers and what is wrong about them."""
    table = Table("example", "said", "right", "what went wrong", title_justify="left", title="wrong answers")
    for each in list(wrong)[:SHOWN]:
        table.add_row(each.example, each.said, each.right, each.why)
    return table


def print_wrong(out: Console, wrong: tuple[Any, ...], file: object) -> None:
    """Wrong answers, if there are any, and where all of them are."""
    if wrong:
        out.print(wrong_table(wrong))
    if len(wrong) > SHOWN:
        out.print(f"... and {len(wrong) - SHOWN:,} more in {file}")


def print_note(out: Console, note: str) -> None:
    """A line below a table, if there is something to say."""
    if note:
        out.print(note)
