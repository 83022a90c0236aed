"""Results as tables: their rows and columns, as CSV, and as the short text that `repr` prints.

The columns of a row are the fields of a dataclass, such as one head of an ablation. To add a column, add a field there.
"""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

SHOWN_ROWS, SHOWN_WIDTH = 6, 110
"""Largest number of rows, and largest number of characters per line, in the table that `repr` of a result prints."""


def rows_at(holder: Any, path: list[str]) -> Iterator[dict[str, Any]]:
    """Yield one table row for each entry of a field that is nested in `holder`.

    `path` has the names of the fields from `holder` to the entries. Each row also has the scalar fields of all objects
    on this path.
    """
    entries = getattr(holder, path[0])
    for entry in entries if isinstance(entries, (tuple, list)) else (entries,):
        own = scalars(entry)
        yield from ({**own, **row} for row in rows_at(entry, path[1:])) if len(path) > 1 else (own,)


def scalars(entry: Any, prefix: str = "") -> dict[str, Any]:
    """Return the scalar fields of a dataclass by name: numbers, texts, None and pairs of numbers.

    Fields of nested dataclasses are included, named `part.field`.
    """
    row: dict[str, Any] = {}
    for field in fields(entry):
        value, name = getattr(entry, field.name), f"{prefix}{field.name}"
        if is_dataclass(value):
            row |= scalars(value, f"{name}.")
        elif value is None or isinstance(value, (str, int, float)) or _is_pair(value):
            row[name] = value
    return row


def csv_text(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> str:
    """Return table rows as CSV in full precision; unknown values are empty cells.

    Each row maps column names to values. `columns` chooses the columns (default: all).
    """
    names = list(columns) or list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: without_formula(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def without_formula(value: Any) -> Any:
    """Put an apostrophe before a text that a spreadsheet would read as a formula; return other values as they are."""
    return f"'{value}" if isinstance(value, str) and value.startswith(tuple("=+-@\t\r")) else value


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(isinstance(number, (int, float)) for number in value)


def text_table(rows: list[dict[str, Any]]) -> str:
    """Format rows as a plain-text table: the first `SHOWN_ROWS` rows, with as many columns as fit on a line."""
    shown = rows[:SHOWN_ROWS]
    columns = []
    for name in dict.fromkeys(name for row in shown for name, value in row.items() if value not in (None, "")):
        part, _, last = name.rpartition(".")
        if last == "weights_sha256" or (last != "rate" and f"{part}.rate" in shown[0]):
            continue  # a proportion is shown by its rate alone
        cells = [name, *(_cell(row.get(name)) for row in shown)]
        width = max(map(len, cells))
        columns.append([cell.ljust(width) for cell in cells])
    while sum(len(column[0]) + 2 for column in columns) > SHOWN_WIDTH and len(columns) > 1:
        columns.pop()
    lines = ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]
    return "\n".join([*lines, *([f"... {len(rows) - len(shown):,} more"] if len(rows) > len(shown) else [])])


def _cell(value: Any) -> str:
    """Format a value for a printed table: numbers with four significant digits, texts with at most 40 characters."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(_cell, value))}]"
    if isinstance(value, float):
        return f"{value:.4g}"
    text = "" if value is None else " ".join(str(value).split())
    return text if len(text) <= 40 else f"{text[:39]}…"
