"""What a verb prints: a table for people or, with --json, one JSON object for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import RenderableType
from rich.table import Table

from headcount.describing.blocks import Block
from headcount.rendering.progress import Steady, Terminal
from headcount.rendering.terminal import block_lines
from headcount.results import Result, plain_json

if TYPE_CHECKING:
    from headcount.api import Saved, Submission

Line = RenderableType | Block
"""A block of a description, a table, or a note."""
R = TypeVar("R", bound=Result)
WIDE = 240
"""Columns of a pipe or a file: no line of a table wraps."""
SHOWN = 20
"""Wrong answers printed; the rest is in the result file."""


@dataclass(frozen=True)
class Output:
    """What a verb found; below either form of it come the files that were written."""

    data: Result | dict[str, Any]
    """For programs."""
    lines: Iterable[Line]
    """For people: tables and notes; an empty note is left out."""
    saved: Sequence[Saved[Any]] = ()
    exit_code: int = 0


def print_output(found: Output, *, as_json: bool) -> None:
    """One JSON object on one line, or line by line."""
    if as_json:
        data = found.data.to_dict() if isinstance(found.data, Result) else found.data
        files = {"files": files_of(*found.saved)} if found.saved else {}
        print_text(json.dumps(plain_json({**data, **files}), allow_nan=False) + "\n")
        return
    out = Terminal()
    if not out.is_terminal:
        out = Terminal(width=WIDE, soft_wrap=True)
    for lines in (found.lines, file_lines(*found.saved), audit_lines(found)):
        for line in lines:
            for printed in block_lines(line) if isinstance(line, Block) else (line,):
                if printed != "":
                    out.print(printed)


def course_output(measure: Callable[[], dict[str, Submission[R]]]) -> tuple[dict[str, Submission[R]], int]:
    """Return a course and exit code 0; one that the user ended, as far as it came, with that signal's exit code."""
    from headcount.api import CourseInterrupted

    try:
        return measure(), 0
    except CourseInterrupted as stop:
        print_error("interrupted: what was finished before is shown")
        return stop.finished, stop.exit_code


def audit_lines(found: Output) -> Iterator[str]:
    """What quick checks found wrong with the model, whatever it was asked for; nothing if they found nothing."""
    parts = (each.result if isinstance(each.result, tuple) else (each.result,) for each in found.saved)
    results = (found.data, *(result for part in parts for result in part))
    faults = dict.fromkeys((getattr(each, "name", ""), getattr(each, "audit", "")) for each in results)
    yield from (audit_line(fault, name) for name, fault in faults if fault)


def audit_line(fault: str, name: str = "") -> str:
    """The one line that a verb prints of it; empty without a fault."""
    return fault and f"AUDIT:   {f'{name}: ' if name else ''}{fault} (more: headcount audit MODEL)"


def print_text(text: str) -> None:
    """As it is, for a file or another program."""
    Steady(sys.stdout).write(text)


def print_error(text: str) -> None:
    """On standard error, if anybody reads it."""
    Steady(sys.stderr).write(f"{text}\n")


def wrong_lines(wrong: Sequence[Any], file: object) -> Iterator[Line]:
    """The first wrong answers and what is wrong about them, if there are any, and where all of them are."""
    if wrong:
        table = Table("example", "predicted", "right", "what went wrong", title_justify="left", title="wrong answers")
        for each in wrong[:SHOWN]:
            table.add_row(each.example, each.predicted, each.right, each.explanation)
        yield table
    if len(wrong) > SHOWN:
        yield f"... and {len(wrong) - SHOWN:,} more in {file}"


def files_of(*saved: Saved[Any]) -> dict[str, list[str]]:
    """For JSON: where numbers, pictures and tables are."""
    others = [path for each in saved for path in each.others]
    figures = [path for each in saved for path in each.figures] + [path for path in others if path.suffix == ".png"]
    return {
        "data": [str(path) for each in saved for path in each.data],
        "pictures": [str(path) for path in figures],
        "tables": [str(path) for path in others if path.suffix != ".png"],
    }


def file_lines(*saved: Saved[Any]) -> Iterator[str]:
    """Where pictures and numbers are; beside results that were asked otherwise, which one is the newest."""
    yield from (f"figure:  {path}" for each in saved for path in each.figures)
    others = [path for each in saved for path in each.others]
    pictures = [path for path in others if path.suffix == ".png"]
    if len(pictures) > 1:
        yield f"also:    one picture per head ({len(pictures)}): {pictures[0].parent}"
    elif pictures:
        yield f"page:    {pictures[0]}"
    yield from (f"table:   {path}" for path in others if path.suffix != ".png")
    for file in (path for each in saved for path in each.data):
        older = sorted(each.name for each in file.parent.glob(f"{file.stem.partition('-')[0]}*.json") if each != file)
        beside = f"  (the newest of {len(older) + 1}; there are also {', '.join(older[:SHOWN])})" if older else ""
        yield f"numbers: {file}{beside}"
