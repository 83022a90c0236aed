"""Results of analyses: frozen dataclasses that inherit `Result` and round-trip through JSON.

The JSON names the result's type and a schema version, so that a file of another version is refused with a clear error.

A file is read only if it is consistent. Fields have types with bounds (`Count`, `Share`, `HeadName`), and no number may
be infinite. A dataclass at any depth may have a method `contradictions`, which compares its fields with each other.
Finally, each field must match the digest that `to_json` wrote beside it. An error names the field that failed.
"""

import csv
import hashlib
import io
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from importlib import import_module
from typing import Annotated, Any, ClassVar, Self, get_args, get_type_hints

from annotated_types import Ge, Le
from pydantic import AfterValidator, ConfigDict, ValidationError

from headcount.config import plain_message, type_adapter
from headcount.errors import Fault, HeadcountError, InputError, ResultError
from headcount.heads import HeadId

ROUNDING = 1e-6
"""Relative and absolute tolerance when a stored number is compared with one that is computed from other numbers."""


def _head_name(text: str) -> str:
    try:
        name = str(HeadId.parse(text))
    except HeadcountError as error:
        raise ValueError(error.what) from error
    if name != text:
        raise ValueError(f"must be written as {name}")
    return text


Count = Annotated[int, Ge(0)]
Positive = Annotated[int, Ge(1)]
Size = Annotated[float, Ge(0)]
Share = Annotated[float, Ge(-ROUNDING), Le(1 + ROUNDING)]
HeadName = Annotated[str, AfterValidator(_head_name)]
Contradiction = tuple[str, str]
"""An inconsistency in a result: the name of a field, and a description of what its value should be."""


class Result:
    """Base class of all results; a subclass increments `SCHEMA` when a field changes its meaning or its name."""

    SCHEMA: ClassVar[int] = 1
    INDENT: ClassVar[int | None] = 1
    """Spaces by which the JSON is indented; None writes it on one line."""
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(allow_inf_nan=False)

    ROWS: ClassVar[tuple[str, ...]] = ()
    """Paths to the lists whose entries become rows of the table, such as `curves.points`; empty for a single row."""

    def __init_subclass__(cls) -> None:
        if "__repr__" not in cls.__dict__:  # the default of `dataclass` prints every number
            cls.__repr__ = Result.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        name = getattr(self, "name", None)
        return f"{type(self).__name__}{f' of {name}' if name else ''}\n{_text_table(self.printed_rows())}"

    def to_rows(self) -> list[dict[str, Any]]:
        """Return the result as a table with one row per head, length or group; lists within rows are left out."""
        rows = [row for path in self.ROWS for row in _rows_at(self, path.split("."))]
        return rows or [_scalars(self)]

    def printed_rows(self) -> list[dict[str, Any]]:
        """Return the rows of the table in the order in which they are printed: the most important first."""
        return self.to_rows()

    def to_frame(self) -> Any:
        """Return the table as a pandas DataFrame; pandas must be installed."""
        try:
            pandas = import_module("pandas")
        except ImportError as error:
            raise InputError("to_frame() needs pandas", "pip install pandas, or use to_rows()") from error
        return pandas.DataFrame(self.to_rows())

    def to_csv(self) -> str:
        """Return the table of `to_rows` as CSV in full precision; unknown values are empty."""
        return csv_text(self.to_rows())

    def plot(self, which: str | None = None) -> Any:
        """Draw the result and return the matplotlib Figure; `which` chooses one of several figures (default: first)."""
        # Imported here because the room `figures` imports this module.
        return import_module("headcount.figures.plotting").plot(self, which)

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows: the report's section about this result."""
        html: str = import_module("headcount.rendering.notebook").result_html(self)
        return html

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data, ready for JSON."""
        return {"type": type(self).__name__, "schema": self.SCHEMA, **type_adapter(type(self)).dump_python(self)}

    def to_json(self) -> str:
        """Return the result as one JSON object with a digest of each field, which reveals later edits."""
        data = plain_json(self.to_dict())
        data["digests"] = {name: _digest(value) for name, value in data.items()}
        separators = (",", ":") if self.INDENT is None else None
        return json.dumps(data, indent=self.INDENT, separators=separators, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str, file: object = None) -> Self:
        """Parse the output of `to_json`; error messages name `file` as the source of the text."""
        source, again = ("this", "measure it again") if file is None else (file, f"delete {file} to measure it again")
        try:
            data = dict(json.loads(text))
        except (ValueError, TypeError, RecursionError) as error:
            raise ResultError(f"{source} is not a {cls.__name__} but {text[:40]!r}", again) from error
        digests = data.pop("digests", None)
        changed = list(_changed(data, digests))
        name, schema = data.pop("type", None), data.pop("schema", None)
        if (name, schema) != (cls.__name__, cls.SCHEMA):
            raise InputError(
                f"{source} is not a {cls.__name__} of version {cls.SCHEMA} but {name} of version {schema}",
                "measure it again with this version of headcount",
            )
        try:
            result: Self = type_adapter(cls).validate_python(data)
            faults = [*contradictions(result), *changed]
        except ValidationError as error:
            details = error.errors()
            faults = [Fault(_path(item["loc"]), _Brief(item["input"]), plain_message(item["msg"])) for item in details]
        if faults:
            more = f" (and {len(faults) - 1:,} more)" if faults[1:] else ""
            what = f"{source} {cls.__name__}" if file is None else source
            raise ResultError(f"{what} is damaged: {faults[0]}{more}", again)
        return result


# --- consistency of a stored result -----------------------------------------------------------------------------------


def contradictions(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[Fault]:
    """Yield the fields of a result that contradict other fields, starting with the innermost parts."""
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
    """Yield the ends of a confidence interval that lie on the wrong side of the estimate."""
    middle, least, most = (getattr(owner, name) for name in (estimate, low, high))
    if least > middle and not is_close(least, middle):
        yield low, f"at most {estimate}, {middle}"
    if most < middle and not is_close(most, middle):
        yield high, f"at least {estimate}, {middle}"


def unequal(owner: Any, **expected: Any) -> Iterator[Contradiction]:
    """Yield the fields that differ from their expected values; numbers may differ by rounding."""
    for name, right in expected.items():
        given = getattr(owner, name)
        is_number = isinstance(given, float) or isinstance(right, float)
        if not (is_close(given, right) if is_number and None not in (given, right) else given == right):
            yield name, f"{right}"


def misnamed(owner: Any) -> Iterator[Contradiction]:
    """Yield the fields (short name, stack, layer, kind) that disagree with the head's name."""
    head = HeadId.parse(owner.head)
    parts = {"short": head.short, "stack": head.site.stack, "layer": head.site.layer, "kind": head.site.kind}
    return unequal(owner, **{name: part for name, part in parts.items() if hasattr(owner, name)})


def is_close(one: float, other: float) -> bool:
    """Return whether two numbers are equal up to rounding."""
    return math.isclose(one, other, rel_tol=ROUNDING, abs_tol=ROUNDING)


def is_hits(share: float, n: int) -> bool:
    """Return whether a share can be a number of hits divided by `n`, up to rounding."""
    return n > 0 and 0 <= round(share * n) <= n and abs(share * n - round(share * n)) < 1e-3


def head_names(value: Any) -> Iterator[str]:
    """Yield every head name that a result contains, from the fields of type `HeadName` at any depth."""
    if is_dataclass(value):
        naming = _naming_fields(value.__class__)
        for field in fields(value):
            part = getattr(value, field.name)
            if field.name in naming:
                yield from (part,) if isinstance(part, str) else part or ()
            else:
                yield from head_names(part)
    elif isinstance(value, tuple) and value and is_dataclass(value[0]):
        for item in value:
            yield from head_names(item)


def require_heads(result: Result, known: Collection[str], file: object) -> None:
    """Raise an error if a stored result names a head that the model does not have."""
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
    """Yield the fields that do not match their digest; the output of `--json` has no digests and is accepted."""
    if digests is None:
        return
    known = digests if isinstance(digests, dict) else {}
    for name in dict.fromkeys((*data, *known)):
        if known.get(name) != _digest(data.get(name)):
            yield Fault(name, _Brief(data.get(name)), "somebody changed it: it is not what headcount wrote")


@dataclass(frozen=True)
class _Brief:
    """A value whose `repr` fits into an error message: a list or a mapping is shown by its size only."""

    value: Any

    def __repr__(self) -> str:
        if isinstance(self.value, (list, tuple, Mapping)):
            return f"[{len(self.value):,} entries]"
        return "{...}" if is_dataclass(self.value) else repr(self.value)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def _path(parts: Sequence[str | int]) -> str:
    """Return the path of a field, such as `cells[3].recall[0].n`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".")


def plain_json(data: Any) -> Any:
    """Convert data to what JSON can hold: keys become strings, and numbers that are not finite become null."""
    if isinstance(data, dict):
        return {str(key): plain_json(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [plain_json(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


# --- tables -----------------------------------------------------------------------------------------------------------

SHOWN_ROWS, SHOWN_WIDTH = 6, 110
"""Largest number of rows, and of characters per line, in the table that `repr` prints."""


def _rows_at(holder: Any, path: list[str]) -> Iterator[dict[str, Any]]:
    """Yield one row per entry at a path; each row also has the scalar fields of the objects along the path."""
    entries = getattr(holder, path[0])
    for entry in entries if isinstance(entries, (tuple, list)) else (entries,):
        own = _scalars(entry)
        yield from ({**own, **row} for row in _rows_at(entry, path[1:])) if len(path) > 1 else (own,)


def _scalars(entry: Any, prefix: str = "") -> dict[str, Any]:
    """Return the fields that are a number, a text or a pair of numbers; a nested field is named `part.field`."""
    row: dict[str, Any] = {}
    for field in fields(entry):
        value, name = getattr(entry, field.name), f"{prefix}{field.name}"
        if is_dataclass(value):
            row |= _scalars(value, f"{name}.")
        elif value is None or isinstance(value, (str, int, float)) or _is_pair(value):
            row[name] = value
    return row


def csv_text(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> str:
    """Return rows as CSV in full precision, with these columns (default: all); unknown values are empty."""
    names = list(columns) or list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: without_formula(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def without_formula(value: Any) -> Any:
    """Put an apostrophe before a text that a spreadsheet would read as a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(tuple("=+-@\t\r")) else value


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(isinstance(number, (int, float)) for number in value)


def _text_table(rows: list[dict[str, Any]]) -> str:
    """Format the first rows, with as many columns as fit on a line."""
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
    """Format a value briefly: four digits of a number, the first characters of a text."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(_cell, value))}]"
    if isinstance(value, float):
        return f"{value:.4g}"
    text = "" if value is None else " ".join(str(value).split())
    return text if len(text) <= 40 else f"{text[:39]}…"
