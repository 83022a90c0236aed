"""Store the results of analyses: frozen dataclasses that inherit `Result` and round-trip through JSON.

The JSON names the result's type and a schema version, so that a file of another version is refused with a clear error.

A stored result is read only if it is consistent. Fields have types with bounds (`Count`, `Share`, `HeadName`), and no
number may be infinite. Any dataclass inside a result may have a method `contradictions`, which checks that its fields
agree with each other. Finally, each field must match the digest (hash) that `to_json` wrote. The error names the field
that is wrong.
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

from headcount.config import plain_message, type_adapter
from headcount.errors import Fault, HeadcountError, InputError, ResultError
from headcount.heads import HeadId
from headcount.result_tables import csv_text, rows_at, scalars, text_table

ROUNDING = 1e-6
"""Relative and absolute tolerance within which two numbers count as equal up to rounding."""


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
"""An inconsistency in a stored result: the name of the wrong field, and a description of the value it should have."""


class Result:
    """Base class of all results of analyses.

    A subclass is a frozen dataclass. Its version number `SCHEMA` is increased whenever a field changes its name or
    meaning.
    """

    SCHEMA: ClassVar[int] = 1
    INDENT: ClassVar[int | None] = 1
    """Number of spaces by which `to_json` indents; None writes the JSON on one line."""
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(allow_inf_nan=False)

    ROWS: ClassVar[tuple[str, ...]] = ()
    """Paths of the fields whose entries become the rows of the table of `to_rows`, such as `curves.points`.

    If there are none, the table has a single row.
    """

    def __init_subclass__(cls) -> None:
        if "__repr__" not in cls.__dict__:  # the default of `dataclass` prints every number
            cls.__repr__ = Result.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        name = getattr(self, "name", None)
        return f"{type(self).__name__}{f' of {name}' if name else ''}\n{text_table(self.printed_rows())}"

    def to_rows(self) -> list[dict[str, Any]]:
        """Return the result as a table: a list of rows, for example one per head, that map column names to values.

        Fields that are lists are left out.
        """
        rows = [row for path in self.ROWS for row in rows_at(self, path.split("."))]
        return rows or [scalars(self)]

    def printed_rows(self) -> list[dict[str, Any]]:
        """Return the rows of `to_rows` in the order in which `repr` prints them: the most important row first."""
        return self.to_rows()

    def to_frame(self) -> Any:
        """Return the result as a table in a pandas DataFrame; pandas must be installed."""
        try:
            pandas = import_module("pandas")
        except ImportError as error:
            raise InputError(
                "to_frame() needs pandas, which is not installed",
                "install it with pip install pandas, or call to_rows()",
            ) from error
        return pandas.DataFrame(self.to_rows())

    def to_csv(self) -> str:
        """Return the result as a table in CSV format, in full precision; unknown values are empty cells."""
        return csv_text(self.to_rows())

    def plot(self, which: str | None = None) -> Any:
        """Draw the result and return the matplotlib Figure.

        `which` is the name of a figure, if the result has several; the default is the first one.
        """
        # Imported here because the room `figures` imports this module.
        return import_module("headcount.figures.plotting").plot(self, which)

    def _repr_html_(self) -> str:
        """Return the report's section about this result as HTML; a notebook calls this to display the result."""
        html: str = import_module("headcount.rendering.notebook").result_html(self)
        return html

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dictionary of plain data, with its type and schema version."""
        return {"type": type(self).__name__, "schema": self.SCHEMA, **type_adapter(type(self)).dump_python(self)}

    def to_json(self) -> str:
        """Return the result as a JSON object, with a digest (hash) of each field that reveals later edits."""
        data = plain_json(self.to_dict())
        data["digests"] = {name: _digest(value) for name, value in data.items()}
        separators = (",", ":") if self.INDENT is None else None
        return json.dumps(data, indent=self.INDENT, separators=separators, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str, file: object = None) -> Self:
        """Build a result from the output of `to_json`.

        Raise an error if the text is damaged, has another schema version or contradicts itself. The message names
        `file` as the source of the text.
        """
        source, again = (
            ("this text", "measure it again") if file is None else (file, f"delete {file} to measure it again")
        )
        try:
            data = dict(json.loads(text))
        except (ValueError, TypeError, RecursionError) as error:
            raise ResultError(
                f"{source} does not hold a result of the type {cls.__name__}, but {text[:40]!r}", again
            ) from error
        digests = data.pop("digests", None)
        changed = list(_changed(data, digests))
        name, schema = data.pop("type", None), data.pop("schema", None)
        if (name, schema) != (cls.__name__, cls.SCHEMA):
            raise InputError(
                f"{source} does not hold a {cls.__name__} of format version {cls.SCHEMA}, but {name} of version "
                f"{schema}",
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
            what = f"this {cls.__name__}" if file is None else source
            raise ResultError(f"{what} is damaged: {faults[0]}{more}", again)
        return result


# --- consistency of a stored result -----------------------------------------------------------------------------------


def contradictions(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[Fault]:
    """Yield a fault for each field of a result, at any depth, that contradicts other fields; innermost fields first."""
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
    """Yield a contradiction for each end of a confidence interval that lies on the wrong side of the estimate.

    `estimate`, `low` and `high` are the names of the fields of `owner` that hold the estimate and the ends of its
    interval.
    """
    middle, least, most = (getattr(owner, name) for name in (estimate, low, high))
    if least > middle and not is_close(least, middle):
        yield low, f"at most {middle}, the value of {estimate}"
    if most < middle and not is_close(most, middle):
        yield high, f"at least {middle}, the value of {estimate}"


def unequal(owner: Any, **expected: Any) -> Iterator[Contradiction]:
    """Yield a contradiction for each field of `owner` that differs from its expected value by more than rounding.

    The keyword arguments give the expected value of each field.
    """
    for name, right in expected.items():
        given = getattr(owner, name)
        is_number = isinstance(given, float) or isinstance(right, float)
        if not (is_close(given, right) if is_number and None not in (given, right) else given == right):
            yield name, f"{right}"


def misnamed(owner: Any) -> Iterator[Contradiction]:
    """Yield a contradiction for each field of `owner` that does not fit the name of its head.

    The fields short, stack, layer and kind, where present, must agree with the name in the field head.
    """
    head = HeadId.parse(owner.head)
    parts = {"short": head.short, "stack": head.site.stack, "layer": head.site.layer, "kind": head.site.kind}
    return unequal(owner, **{name: part for name, part in parts.items() if hasattr(owner, name)})


def is_close(one: float, other: float) -> bool:
    """Return whether two numbers are equal within the tolerance `ROUNDING`."""
    return math.isclose(one, other, rel_tol=ROUNDING, abs_tol=ROUNDING)


def is_hits(share: float, n: int) -> bool:
    """Return whether `share` is a possible fraction of n examples: k / n for a whole number k, up to rounding."""
    return n > 0 and 0 <= round(share * n) <= n and abs(share * n - round(share * n)) < 1e-3


def head_names(value: Any) -> Iterator[str]:
    """Yield the names of all heads in a result: the values of its fields of type `HeadName`, at any depth."""
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
    """Yield a fault for each field of a stored result that does not match its digest, a hash that was stored with it.

    Data without any digests (the output of `--json`) has no faults.
    """
    if digests is None:
        return
    known = digests if isinstance(digests, dict) else {}
    for name in dict.fromkeys((*data, *known)):
        if known.get(name) != _digest(data.get(name)):
            yield Fault(name, _Brief(data.get(name)), "somebody changed it: this is not the value that headcount wrote")


@dataclass(frozen=True)
class _Brief:
    """A value in an error message: its `repr` shows only the number of entries of a list or mapping."""

    value: Any

    def __repr__(self) -> str:
        if isinstance(self.value, (list, tuple, Mapping)):
            return f"[{len(self.value):,} entries]"
        return "{...}" if is_dataclass(self.value) else repr(self.value)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def _path(parts: Sequence[str | int]) -> str:
    """Join names and indices to the path of a field, such as `cells[3].recall[0].n`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".")


def plain_json(data: Any) -> Any:
    """Convert nested data to what JSON can hold: keys become strings; infinite numbers and NaN become None."""
    if isinstance(data, dict):
        return {str(key): plain_json(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [plain_json(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
