"""What an analysis hands to a view: a frozen value that round-trips through JSON.

A result is a frozen dataclass that inherits `Result`. Its JSON names its type and a schema version, so that a file
written by an older headcount is refused with a reason instead of being misread.

A file is read only if it can be true. Fields have types with bounds (`Count`, `Share`, `HeadName`), and no number may
be infinite. A dataclass at any depth may have a method `contradictions`, which compares its fields with each other.
Last, each field must have the digest that `to_json` wrote beside it. An error names the field that failed.
"""

import hashlib
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from importlib import import_module
from typing import Annotated, Any, ClassVar, Self, get_args, get_type_hints

from annotated_types import Ge, Le
from pydantic import AfterValidator, ConfigDict, ValidationError

from headcount.config import type_adapter
from headcount.errors import Fault, HeadcountError, InputError, ResultError
from headcount.heads import HeadId

ROUNDING = 1e-6
"""Relative and absolute: stored figures that follow from each other differ by no more."""


def _head_name(text: str) -> str:
    try:
        name = str(HeadId.parse(text))
    except HeadcountError as error:
        raise ValueError(error.what) from error
    if name != text:
        raise ValueError(f"should be written {name}")
    return text


Count = Annotated[int, Ge(0)]
Positive = Annotated[int, Ge(1)]
Size = Annotated[float, Ge(0)]
Share = Annotated[float, Ge(-ROUNDING), Le(1 + ROUNDING)]
HeadName = Annotated[str, AfterValidator(_head_name)]
Contradiction = tuple[str, str]
"""A field, and what its value should be."""


class Result:
    """The base of every result. Subclasses raise `SCHEMA` when a field changes its meaning or its name."""

    SCHEMA: ClassVar[int] = 1
    FORMER: ClassVar[Mapping[str, str]] = {}
    """Fields that the version before had under other names: a file of that version is read by these."""

    INDENT: ClassVar[int | None] = 1
    """Of the JSON; None writes it on one line."""
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(allow_inf_nan=False)

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
        return import_module("headcount.figures.plotting").plot(self, which)

    def _repr_html_(self) -> str:
        """What a notebook shows: the section of a report about it, offline."""
        shown: str = import_module("headcount.rendering.notebook").result_html(self)
        return shown

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {"type": type(self).__name__, "schema": self.SCHEMA, **type_adapter(type(self)).dump_python(self)}

    def to_json(self) -> str:
        """Return one JSON object; the digests of its fields show later whether somebody changed one."""
        data = plain_json(self.to_dict())
        data["digests"] = {name: _digest(value) for name, value in data.items()}
        separators = (",", ":") if self.INDENT is None else None
        return json.dumps(data, indent=self.INDENT, separators=separators, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str, file: object = None) -> Self:
        """Read back what `to_json` wrote; `file` is where the text comes from, for errors."""
        source, again = ("this", "make it again") if file is None else (file, f"delete {file} to measure it again")
        try:
            data = dict(json.loads(text))
        except (ValueError, TypeError, RecursionError) as error:
            raise ResultError(f"{source} is not a {cls.__name__} but {text[:40]!r}", again) from error
        digests = data.pop("digests", None)
        changed = list(_changed(data, digests))
        name, schema = data.pop("type", None), data.pop("schema", None)
        if name is None and cls.FORMER and schema == cls.SCHEMA - 1:
            name, schema, data = data.pop("kind", None), cls.SCHEMA, _renamed(data, cls.FORMER)
        if (name, schema) != (cls.__name__, cls.SCHEMA):
            what = name or data.get("kind")
            raise InputError(
                f"{source} is not a {cls.__name__} of version {cls.SCHEMA} but {what} of version {schema}",
                "make it again with this version of headcount",
            )
        try:
            result: Self = type_adapter(cls).validate_python(data)
            faults = [*contradictions(result), *changed]
        except ValidationError as error:
            faults = [Fault(_path(each["loc"]), _Brief(each["input"]), _plain(each["msg"])) for each in error.errors()]
        if faults:
            more = f" (and {len(faults) - 1:,} more)" if faults[1:] else ""
            what = f"{source} {cls.__name__}" if file is None else source
            raise ResultError(f"{what} is damaged: {faults[0]}{more}", again)
        return result


# --- what a stored result must fulfil ---------------------------------------------------------------------------------


def contradictions(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[Fault]:
    """Find the fields of a result that contradict other fields, those of its parts first."""
    parts: Sequence[tuple[str | int, Any]] = ()
    if is_dataclass(value):
        parts = [(field.name, getattr(value, field.name)) for field in fields(value)]
    elif isinstance(value, Mapping):
        parts = list(value.items())
    elif isinstance(value, tuple):
        parts = list(enumerate(value))
    for name, part in parts:
        if not isinstance(part, (str, int, float)):
            yield from contradictions(part, (*path, name))
    for name, right in getattr(value, "contradictions", tuple)() if is_dataclass(value) else ():
        yield Fault(_path((*path, name)), _Brief(getattr(value, name)), f"expected {right}")


def outside(owner: Any, estimate: str, low: str = "low", high: str = "high") -> Iterator[Contradiction]:
    """Find the end of an interval that excludes the estimate it belongs to."""
    middle, least, most = (getattr(owner, name) for name in (estimate, low, high))
    if least > middle and not is_close(least, middle):
        yield low, f"at most {estimate}, {middle}"
    if most < middle and not is_close(most, middle):
        yield high, f"at least {estimate}, {middle}"


def unequal(owner: Any, **expected: Any) -> Iterator[Contradiction]:
    """Find the fields that differ from what follows from other fields; numbers may differ by rounding."""
    for name, right in expected.items():
        given = getattr(owner, name)
        both = isinstance(given, float) or isinstance(right, float)
        if not (is_close(given, right) if both and None not in (given, right) else given == right):
            yield name, f"{right}"


def misnamed(owner: Any) -> Iterator[Contradiction]:
    """Find the fields that disagree with the name of a head: its short name, its stack, its layer and its kind."""
    head = HeadId.parse(owner.head)
    parts = {"short": head.short, "stack": head.site.stack, "layer": head.site.layer, "kind": head.site.kind}
    return unequal(owner, **{name: part for name, part in parts.items() if hasattr(owner, name)})


def is_close(one: float, other: float) -> bool:
    """Whether two figures are the same but for rounding."""
    return math.isclose(one, other, rel_tol=ROUNDING, abs_tol=ROUNDING)


def is_hits(share: float, n: int) -> bool:
    """Whether a share is a whole number of hits among `n` examples."""
    return n > 0 and 0 <= round(share * n) <= n and abs(share * n - round(share * n)) < 1e-3


def head_names(value: Any) -> Iterator[str]:
    """List the heads that a result names, as far as its fields are of the type `HeadName`."""
    if is_dataclass(value):
        naming = _naming_fields(value.__class__)
        for field in fields(value):
            part = getattr(value, field.name)
            if field.name in naming:
                yield from (part,) if isinstance(part, str) else part or ()
            else:
                yield from head_names(part)
    elif isinstance(value, tuple) and value and is_dataclass(value[0]):
        for each in value:
            yield from head_names(each)


def require_heads(result: Result, known: Collection[str], file: object) -> None:
    """Refuse a stored result that names a head the model does not have."""
    for name in head_names(result):
        if name not in known:
            what = f"{file} is damaged: it names the head {name}, which the model does not have"
            raise ResultError(what, f"delete {file} to measure it again")


@cache
def _naming_fields(cls: type) -> frozenset[str]:
    def names_heads(hint: Any) -> bool:
        return hint == HeadName or any(map(names_heads, get_args(hint)))

    hints = get_type_hints(cls, include_extras=True)
    return frozenset(name for name, hint in hints.items() if names_heads(hint))


def _changed(data: Mapping[str, Any], digests: Any) -> Iterator[Fault]:
    """Find the fields that are not what `to_json` wrote; a file of an older version has no digests."""
    if digests is None:
        return
    known = digests if isinstance(digests, dict) else {}
    for name in dict.fromkeys((*data, *known)):
        if known.get(name) != _digest(data.get(name)):
            yield Fault(name, _Brief(data.get(name)), "somebody changed it: it is not what headcount wrote")


@dataclass(frozen=True)
class _Brief:
    """A value as errors show it: a number or a text as it is, a list or a table by its size."""

    value: Any

    def __repr__(self) -> str:
        if isinstance(self.value, (list, tuple, Mapping)):
            return f"[{len(self.value):,} entries]"
        return "{...}" if is_dataclass(self.value) else repr(self.value)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def _path(parts: Sequence[str | int]) -> str:
    """Where a field stands: `cells[3].recall[0].n`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".")


def _plain(message: str) -> str:
    return message.removeprefix("Value error, ").removeprefix("Input ")


def _renamed(data: Any, names: Mapping[str, str]) -> Any:
    """The same with other keys, everywhere inside."""
    if isinstance(data, dict):
        return {names.get(key, key): _renamed(value, names) for key, value in data.items()}
    return [_renamed(value, names) for value in data] if isinstance(data, list) else data


def plain_json(data: Any) -> Any:
    """The same data in numbers that JSON knows: one that is not finite becomes null."""
    if isinstance(data, dict):
        return {str(key): plain_json(value) for key, value in data.items()}
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
