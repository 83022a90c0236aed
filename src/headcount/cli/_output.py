"""What a verb prints: a table for people or, with --json, one JSON object for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table

from headcount.results import plain_json
from headcount.views.progress import Terminal, mute

SHOWN = 20
"""Wrong answers printed; the rest is in the result file."""


def print_json(data: Any) -> None:
    """One object on one line."""
    _write(sys.stdout, json.dumps(plain_json(data), allow_nan=False))


def print_text(text: str) -> None:
    """As it is, for a file or another program."""
    _write(sys.stdout, text, end="")


def print_error(text: str) -> None:
    """On standard error, if anybody reads it."""
    _write(sys.stderr, text)


def flush() -> None:
    """What is left to print, before the process ends."""
    for stream in (sys.stdout, sys.stderr):
        _write(stream, "", end="")


def _write(stream: TextIO, text: str, end: str = "\n") -> None:
    try:
        print(text, end=end, file=stream, flush=True)
    except BrokenPipeError:
        mute(stream)


def console() -> Console:
    """Standard output for people; a pipe gets lines that do not wrap."""
    out = Terminal()
    return out if out.is_terminal else Terminal(width=120, soft_wrap=True)


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


def print_files(out: Console, figures: Iterable[Path], *data: Path | None) -> None:
    """Where pictures and numbers are; beside results that were asked otherwise, which one is the newest."""
    for path in figures:
        out.print(f"figure:  {path}")
    for file in filter(None, data):
        others = sorted(each.name for each in file.parent.glob(f"{file.stem.partition('-')[0]}*.json") if each != file)
        beside = f"  (the newest of {len(others) + 1}; there are also {', '.join(others[:SHOWN])})" if others else ""
        out.print(f"numbers: {file}{beside}")
