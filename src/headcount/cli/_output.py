"""What a verb prints: a table for people or, with --json, one JSON object for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from headcount.results import plain_json
from headcount.views.progress import Steady, Terminal

if TYPE_CHECKING:
    from headcount.api import Saved

WIDE = 240
"""Columns of a pipe or a file: no line of a table wraps."""
SHOWN = 20
"""Wrong answers printed; the rest is in the result file."""


def print_json(data: Any) -> None:
    """One object on one line."""
    print_text(json.dumps(plain_json(data), allow_nan=False) + "\n")


def print_text(text: str) -> None:
    """As it is, for a file or another program."""
    Steady(sys.stdout).write(text)


def print_error(text: str) -> None:
    """On standard error, if anybody reads it."""
    Steady(sys.stderr).write(f"{text}\n")


def flush() -> None:
    """What is left to print, before the process ends."""
    Steady(sys.stdout).flush()
    Steady(sys.stderr).flush()


def console() -> Console:
    """Standard output for people; a pipe gets lines that do not wrap."""
    out = Terminal()
    return out if out.is_terminal else Terminal(width=WIDE, soft_wrap=True)


def wrong_table(wrong: Iterable[Any]) -> Table:
    """The first wrong answers and what is wrong about them."""
    table = Table("example", "predicted", "right", "what went wrong", title_justify="left", title="wrong answers")
    for each in list(wrong)[:SHOWN]:
        table.add_row(each.example, each.predicted, each.right, each.explanation)
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


def files_of(*saved: Saved[Any]) -> dict[str, list[str]]:
    """For JSON: where numbers, pictures and tables are."""
    others = [path for each in saved for path in each.others]
    return {
        "data": [str(path) for each in saved for path in each.data],
        "pictures": [str(path) for each in saved for path in each.figures] + [str(x) for x in others if _is_picture(x)],
        "tables": [str(path) for path in others if not _is_picture(path)],
    }


def _is_picture(path: Path) -> bool:
    return path.suffix == ".png"


def print_files(out: Console, *saved: Saved[Any]) -> None:
    """Where pictures and numbers are; beside results that were asked otherwise, which one is the newest."""
    for path in (path for each in saved for path in each.figures):
        out.print(f"figure:  {path}")
    others = [path for each in saved for path in each.others]
    if pictures := [path for path in others if _is_picture(path)]:
        out.print(
            f"also:    one picture per head ({len(pictures)}): {pictures[0].parent}"
            if pictures[1:]
            else f"page:    {pictures[0]}"
        )
    for path in (path for path in others if not _is_picture(path)):
        out.print(f"table:   {path}")
    for file in (path for each in saved for path in each.data):
        older = sorted(each.name for each in file.parent.glob(f"{file.stem.partition('-')[0]}*.json") if each != file)
        beside = f"  (the newest of {len(older) + 1}; there are also {', '.join(older[:SHOWN])})" if older else ""
        out.print(f"numbers: {file}{beside}")
