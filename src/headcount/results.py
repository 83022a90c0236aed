"""What an analysis hands to a view: a frozen value that round-trips through JSON.

A result is a frozen dataclass that inherits `Result`. Its JSON names its type and a schema version, so that a file
written by an older headcount is refused with a reason instead of being misread.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any, ClassVar, Self

from pydantic import ValidationError

from headcount.config import type_adapter
from headcount.errors import InputError


class Result:
    """The base of every result. Subclasses raise `SCHEMA` when a field changes its meaning or its name."""

    SCHEMA: ClassVar[int] = 1
    FORMER: ClassVar[Mapping[str, str]] = {}
    """Fields that the version before had under other names: a file of that version is read by these."""

    ROWS: ClassVar[tuple[str, ...]] = ()
    """The fields whose entries are the rows of its table, by path (`curves.points`); none if it is a row itself."""

    def __init_subclass__(cls) -> None:
        if "__repr__" not in cls.__dict__:  # `dataclass` would print every number
            cls.__repr__ = Result.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        name = getattr(self, "name", None)
        return f"{type(self).__name__}{f' of {name}' if name else ''}\n{_text_table(self.printed_rows())}"

    def to_rows(self) -> list[dict[str, Any]]:
        """Its table: one row per head, length or group; lists within rows are left to `to_dict`."""
        found = [row for path in self.ROWS for row in _rows_at(self, path.split("."))]
        return found or [_scalars(self)]

    def printed_rows(self) -> list[dict[str, Any]]:
        """Return the rows of its table in the order in which they are printed: the most important first."""
        return self.to_rows()

    def to_frame(self) -> Any:
        """Its table as a pandas DataFrame, where pandas is installed."""
        try:
            pandas = import_module("pandas")
        except ImportError as error:
            raise InputError("to_frame() needs pandas", "pip install pandas, or use to_rows()") from error
        return pandas.DataFrame(self.to_rows())

    def plot(self, which: str | None = None) -> Any:
        """Its matplotlib Figure, without a file; `which` of several, the first unless it is named."""
        # Views are made from results, so they stand after them; they are loaded when somebody wants to see something.
        return import_module("headcount.views.plotting").plot(self, which)

    def _repr_html_(self) -> str:
        """What a notebook shows: the section of a report about it, offline."""
        shown: str = import_module("headcount.reporting.notebook").result_html(self)
        return shown

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {"type": type(self).__name__, "schema": self.SCHEMA, **type_adapter(type(self)).dump_python(self)}

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(plain_json(self.to_dict()), indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read back what `to_json` wrote."""
        try:
            data = dict(json.loads(text))
        except (ValueError, TypeError, RecursionError) as error:
            raise InputError(f"this is not a {cls.__name__} but {text[:40]!r}", "make it again") from error
        name, schema = data.pop("type", None), data.pop("schema", None)
        if name is None and cls.FORMER and schema == cls.SCHEMA - 1:
            name, schema, data = data.pop("kind", None), cls.SCHEMA, _renamed(data, cls.FORMER)
        if (name, schema) != (cls.__name__, cls.SCHEMA):
            what = name or data.get("kind")
            raise InputError(
                f"this is not a {cls.__name__} of version {cls.SCHEMA} but {what} of version {schema}",
                "make it again with this version of headcount",
            )
        try:
            result: Self = type_adapter(cls).validate_python(data)
        except ValidationError as error:
            raise InputError(f"this {cls.__name__} is damaged: {error}", "make it again") from error
        return result


def _renamed(data: Any, names: Mapping[str, str]) -> Any:
    """The same with other keys, everywhere inside."""
    if isinstance(data, dict):
        return {names.get(key, key): _renamed(value, names) for key, value in data.items()}
    return [_renamed(value, names) for value in data] if isinstance(data, list) else data


def plain_json(data: Any) -> Any:
    """The same data in numbers that JSON knows: one that is not finite becomes null."""
    if isinstance(data, dict):
        return {key: plain_json(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [plain_json(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


# --- tables -----------------------------------------------------------------------------------------------------------

SHOWN_ROWS, SHOWN_WIDTH = 6, 110


def _rows_at(holder: Any, path: list[str]) -> Iterator[dict[str, Any]]:
    """The entries at a path, each with what its holders below the result say of it."""
    found = getattr(holder, path[0])
    for each in found if isinstance(found, (tuple, list)) else (found,):
        own = _scalars(each)
        yield from ({**own, **row} for row in _rows_at(each, path[1:])) if len(path) > 1 else (own,)


def _scalars(each: Any, prefix: str = "") -> dict[str, Any]:
    """Fields that are one number or text, or a pair of them; those of parts by `part.field`."""
    row: dict[str, Any] = {}
    for field in fields(each):
        value, name = getattr(each, field.name), f"{prefix}{field.name}"
        if is_dataclass(value):
            row |= _scalars(value, f"{name}.")
        elif value is None or isinstance(value, (str, int, float)) or _is_pair(value):
            row[name] = value
    return row


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(isinstance(each, (int, float)) for each in value)


def _text_table(rows: list[dict[str, Any]]) -> str:
    """The first rows, as many columns as a line has room for."""
    shown = rows[:SHOWN_ROWS]
    columns = []
    for name in dict.fromkeys(name for row in shown for name, value in row.items() if value not in (None, "")):
        part, _, last = name.rpartition(".")
        if last == "weights_sha256" or (last != "rate" and f"{part}.rate" in shown[0]):
            continue  # of a share, its rate is enough to look at
        cells = [name, *(_cell(row.get(name)) for row in shown)]
        width = max(map(len, cells))
        columns.append([cell.ljust(width) for cell in cells])
    while sum(len(column[0]) + 2 for column in columns) > SHOWN_WIDTH and len(columns) > 1:
        columns.pop()
    lines = ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]
    return "\n".join([*lines, *([f"... {len(rows) - len(shown):,} more"] if len(rows) > len(shown) else [])])


def _cell(value: Any) -> str:
    """Short: four digits of a number, the beginning of a text."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(_cell, value))}]"
    if isinstance(value, float):
        return f"{value:.4g}"
    text = "" if value is None else " ".join(str(value).split())
    return text if len(text) <= 40 else f"{text[:39]}…"
