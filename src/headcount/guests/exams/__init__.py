"""Data and metrics for real models: one file per kind of data.

A file of plain text, or a table with tabs whose header says what it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from headcount.errors import InputError
from headcount.guests.exams.base import Candidate, Exam, ExamKind
from headcount.registry import Registry
from headcount.runs.storage import read_bytes

EXAMS = Registry("headcount.guests.exams")
MOST_DATA = 2**30
"""Bytes of a file of data."""


def read_exam(file: str | Path, candidate: Candidate) -> Exam:
    """The exam that a file makes: by its header, or by what the model says of plain text."""
    path = Path(file)
    try:
        text = read_bytes(path, MOST_DATA).decode("utf-8-sig").replace("\r\n", "\n")  # as spreadsheets write it
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no text in UTF-8: {error}", "save it as plain text, in UTF-8") from error
    header = tuple(text.partition("\n")[0].rstrip("\r").split("\t"))
    kinds: dict[str, ExamKind] = {name: EXAMS.get(name) for name in EXAMS.names()}
    for kind in kinds.values():
        if kind.columns and set(kind.columns) <= set(header):
            return kind.make(path.name, _rows(path, text, header, kind.columns), candidate)
    if len(header) > 1:
        known = "; ".join(f"{' and '.join(kind.columns)} ({kind.summary})" for kind in kinds.values() if kind.columns)
        raise InputError(
            f"{path} has the columns {', '.join(header)}", f"known tables have, with tabs between: {known}"
        )
    for kind in kinds.values():
        if kind.columns and set(kind.columns) <= {cell.strip() for cell in re.split("[,;]", header[0])}:
            raise InputError(f"the cells of {path} are not parted by tabs", "write it with tabs between cells")
    name = _for_text(candidate)
    return kinds[name].make(path.name, text, candidate)


def _for_text(candidate: Candidate) -> str:
    """Which exam plain text makes for a model."""
    classes = " ".join(getattr(candidate.config, "architectures", None) or ()) + type(candidate.model.model).__name__
    candidate.require_one_text()
    if "CausalLM" in classes or "LMHead" in classes:
        return "next-token"
    if "MaskedLM" in classes:
        return "masked-token"
    raise InputError(
        f"{type(candidate.model.model).__name__} says no tokens, so plain text asks it nothing",
        "load it with a language-modelling head, or give a table: text and label, or first, second and score",
    )


def _rows(path: Path, text: str, header: Sequence[str], wanted: Sequence[str]) -> list[tuple[str, ...]]:
    """The wanted columns, line by line."""
    places, rows = [list(header).index(name) for name in wanted], []
    for number, line in enumerate(text.splitlines()[1:], start=2):
        if not line.strip():
            continue
        cells = line.split("\t")
        if len(cells) != len(header):
            raise InputError(
                f"line {number} of {path} has {len(cells)} cells, the header has {len(header)}",
                "cells are parted by one tab each, and hold no tabs or line breaks themselves",
            )
        rows.append(tuple(cells[place].strip() for place in places))
        if not all(rows[-1]):
            raise InputError(f"line {number} of {path} has an empty cell", f"fill in {', '.join(wanted)}")
    if len(rows) < 2:
        raise InputError(f"{path} has {len(rows)} examples", "give at least 2")
    return rows
