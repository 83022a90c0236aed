"""What an analysis hands to a view: a frozen value that round-trips through JSON.

A result is a frozen dataclass that inherits `Result`. Its JSON names its type and a schema version, so that a file
written by an older headcount is refused with a reason instead of being misread.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import ValidationError

from headcount.config import type_adapter
from headcount.errors import InputError


class Result:
    """The base of every result. Subclasses raise `SCHEMA` when a field changes its meaning or its name."""

    SCHEMA: ClassVar[int] = 1
    FORMER: ClassVar[Mapping[str, str]] = {}
    """Fields that the version before had under other names: a file of that version is read by these."""

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
