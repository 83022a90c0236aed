"""Tables for other programs: Markdown for a page, CSV for a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import astuple, fields
from typing import TYPE_CHECKING

from headcount.views.ablation import ablation_notes, ablation_rows, ablation_title

if TYPE_CHECKING:
    from headcount.analysis.ablation import Ablation, Condition


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells that hold what Markdown reads as its own are escaped."""
    lines = [list(map(_escaped, head)), ["---"] * len(head), *(list(map(_escaped, row)) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def ablation_markdown(result: Ablation) -> str:
    """The ranking as it is printed, with its notes below; one table per length."""
    return "\n\n".join(_condition(result, condition) for condition in result.conditions) + "\n"


def _condition(result: Ablation, condition: Condition) -> str:
    head, rows = ablation_rows(result, condition)
    notes = "\n".join(f"- {_escaped(note)}" for note in ablation_notes(result, condition))
    return "\n\n".join([_escaped(ablation_title(result, condition)), markdown_table(head, rows), notes])


def ablation_csv(result: Ablation) -> str:
    """One row per length, kind and head in full precision; what is not known is empty."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    if result.heads:
        writer.writerow(field.name for field in fields(result.heads[0]))
    writer.writerows([_harmless(value) for value in astuple(effect)] for effect in result.heads)
    return out.getvalue()


def _harmless(value: object) -> object:
    """A text that a spreadsheet would take for a formula begins with an apostrophe."""
    return f"'{value}" if isinstance(value, str) and value.startswith(tuple("=+-@\t\r")) else value


def _escaped(text: str) -> str:
    for char in "\\|*`":
        text = text.replace(char, f"\\{char}")
    return " ".join(text.split())
