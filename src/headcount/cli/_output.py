"""Print the output of a verb: blocks of text for people or, with `--json`, one JSON object for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from headcount.describing.blocks import Block
from headcount.rendering.progress import Steady, Terminal
from headcount.rendering.terminal import block_lines
from headcount.results import Result, plain_json

if TYPE_CHECKING:
    from headcount.api import Saved, Submission
    from headcount.experiments.models import OpenModel

Line = str | Block
"""A block of a description, or a line of text."""
R = TypeVar("R", bound=Result)
WIDE = 240
"""Width of output to a pipe or a file, in characters, so that no line of a table wraps."""
OLDER = 20
"""Largest number of older result files whose names are printed beside that of the newest file."""


@dataclass(frozen=True)
class Output:
    """The output of a verb: data (for `--json`) and text. The paths of saved files are printed below the text."""

    data: Result | dict[str, Any]
    """The data that --json prints."""
    lines: Iterable[Line]
    """Blocks and lines of text to print; empty lines are left out."""
    saved: Sequence[Saved[Any]] = ()
    exit_code: int = 0


def print_output(output: Output, *, as_json: bool) -> None:
    """Print one JSON object on one line, or blocks and lines of text."""
    if as_json:
        data = output.data.to_dict() if isinstance(output.data, Result) else output.data
        files = {"files": files_of(*output.saved)} if output.saved else {}
        print_text(json.dumps(plain_json({**data, **files}), allow_nan=False) + "\n")
        return
    out = Terminal()
    if not out.is_terminal:
        out = Terminal(width=WIDE, soft_wrap=True)
    for line in (*output.lines, *file_lines(*output.saved), *audit_lines(output)):
        for printed in block_lines(line) if isinstance(line, Block) else (line,):
            if printed != "":
                out.print(printed)


def course_output(measure: Callable[[], dict[str, Submission[R]]]) -> tuple[dict[str, Submission[R]], int]:
    """Measure the models of a course; return the submissions and the exit code.

    If the user interrupts, only the finished submissions are returned.
    """
    from headcount.api import CourseInterrupted

    try:
        return measure(), 0
    except CourseInterrupted as stop:
        print_error("interrupted: only the finished submissions are shown")
        return stop.finished, stop.exit_code


def submission_json(submission: Submission[Any], result: str) -> dict[str, Any]:
    """Return one submission of a course as data for `--json`; `result` is the key for its result."""
    return {
        "name": submission.name,
        "submission": submission.label,
        result: submission.result and submission.result.to_dict(),
        "error": submission.error and str(submission.error),
        "output": submission.output,
    }


def audit_lines(output: Output) -> Iterator[str]:
    """Yield a line with the fault of each model in which the quick audit (a check for known mistakes) found one."""
    parts = (saved.result if isinstance(saved.result, tuple) else (saved.result,) for saved in output.saved)
    results = (output.data, *(result for part in parts for result in part))
    faults = dict.fromkeys((getattr(result, "name", ""), getattr(result, "audit", "")) for result in results)
    yield from (audit_line(fault, name) for name, fault in faults if fault)


def audit_line(fault: str, name: str = "") -> str:
    """Return the line that a verb prints about a fault found by the quick audit (a check for known mistakes), or ""."""
    return fault and f"AUDIT:   {f'{name}: ' if name else ''}{fault} (more: headcount audit MODEL)"


def print_text(text: str) -> None:
    """Print text unchanged, for a file or another program."""
    Steady(sys.stdout).write(text)


def print_error(text: str) -> None:
    """Print text on standard error, and ignore a closed stream."""
    Steady(sys.stderr).write(f"{text}\n")


def wrong_lines(wrong: Sequence[Any], file: object) -> Iterator[Line]:
    """Yield a table of the first wrong answers, and a line that names the file with all of them, if there are any."""
    from headcount.describing.wrong_answers import SHOWN, wrong_table

    yield from wrong_table("wrong", wrong, "Wrong answers", SHOWN, len(wrong))
    if len(wrong) > SHOWN:
        yield f"... and {len(wrong) - SHOWN:,} more in {file}"


def verification_line(model: OpenModel) -> Iterator[Line]:
    """Yield the verdict that `headcount verify` has stored about a model, or nothing."""
    from headcount import api
    from headcount.describing.blocks import Conclusions
    from headcount.describing.verification import verdict

    outcome = api.stored_verification(model)
    if outcome is not None:
        yield Conclusions((verdict(outcome, model.name),))


def files_of(*saved: Saved[Any]) -> dict[str, list[str]]:
    """Return the paths of saved results, figures and tables, as data for --json."""
    others = [path for each in saved for path in each.others]
    figures = [path for each in saved for path in each.figures] + [path for path in others if path.suffix == ".png"]
    return {
        "data": [str(path) for each in saved for path in each.data],
        "pictures": [str(path) for path in figures],
        "tables": [str(path) for path in others if path.suffix != ".png"],
    }


def file_lines(*saved: Saved[Any]) -> Iterator[str]:
    """Yield lines with the paths of saved figures, tables and results, and the names of older results."""
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
        beside = (
            f"  (the newest of {len(older) + 1} such files; the others: {', '.join(older[:OLDER])})" if older else ""
        )
        yield f"numbers: {file}{beside}"
