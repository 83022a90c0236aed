"""Define settings classes, which are frozen and validated when they are built; one error lists all invalid settings.

Each part of headcount (a task, the model, the training loop) defines its settings beside its code, as a class with the
decorator `@config`. The docstring below a field is the field's help text on the command line.

>>> @config
... class Oven:
...     degrees: int = 180
...     rack: int = 1
>>> parse({"oven": Oven}, {"oven": {"degrees": "hot", "colour": "red"}})
Traceback (most recent call last):
    ...
headcount.errors.ConfigError: 2 faults in the configuration
  oven.degrees = 'hot': should be a valid integer, unable to parse string as an integer
  oven.colour = 'red': no such setting; there are: degrees, rack
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar, dataclass_transform

from pydantic import ConfigDict, GetCoreSchemaHandler, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass
from pydantic_core import InitErrorDetails, PydanticCustomError
from pydantic_core.core_schema import CoreSchema, no_info_after_validator_function

from headcount.errors import ConfigError, Fault
from headcount.registry import Registry
from headcount.suggestions import suggestion

T = TypeVar("T")
_ADAPTERS: dict[type, TypeAdapter[Any]] = {}


@dataclass_transform(frozen_default=True, kw_only_default=True)
def config(cls: type[T]) -> type[T]:
    """Turn a class into a frozen settings class, whose constructor refuses unknown names and invalid values."""
    # Defaults are checked too: the default of 4 heads is a fault if d_model is 30.
    rules = ConfigDict(extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False, validate_default=True)
    settings: type[T] = checked_dataclass(frozen=True, kw_only=True, config=rules)(cls)  # type: ignore[assignment]
    return settings


@dataclasses.dataclass(frozen=True)
class NameIn:
    """A type annotation for a setting whose value must be a name in a registry: `Annotated[str, NameIn(ENCODINGS)]`."""

    registry: Registry

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_after_validator_function(self._check, handler(source))

    def _check(self, name: str) -> str:
        if name not in self.registry.names():
            raise ValueError(suggestion(name, self.registry.names()))
        return name


def parse(classes: Mapping[str, type], sections: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Build the settings object of each section from plain data, such as parsed TOML.

    `classes` maps section names to settings classes, and `sections` maps them to the given values. One `ConfigError`
    lists the faults of all sections.
    """
    parsed: dict[str, Any] = {}
    faults: list[Fault] = []
    for section, cls in classes.items():
        given = sections.get(section, {})
        if not isinstance(given, Mapping):
            faults.append(Fault(section, given, "should be a section of settings, such as [model] in TOML"))
            continue
        try:
            parsed[section] = type_adapter(cls).validate_python(dict(given))
        except ValidationError as error:
            faults += [_fault(section, cls, detail) for detail in error.errors()]
    if faults:
        raise ConfigError(faults)
    return parsed


def misfit(name: str, given: object, why: str) -> ValidationError:
    """Build the error for a setting that contradicts another setting, such as 4 heads with d_model = 30.

    `name` is the setting, `given` its value, and `why` the message.
    """
    error = PydanticCustomError("misfit", "{why}", {"why": why})
    return ValidationError.from_exception_data(name, [InitErrorDetails(type=error, loc=(name,), input=given)])


def field_names(cls: type) -> tuple[str, ...]:
    """Return the names of the fields of a settings class, in the order of their definition."""
    return tuple(field.name for field in dataclasses.fields(cls))


def type_adapter(cls: type) -> TypeAdapter[Any]:
    """Return the pydantic adapter of a dataclass, which validates and converts plain data; the adapter is cached."""
    if cls not in _ADAPTERS:
        _ADAPTERS[cls] = TypeAdapter(cls)
    return _ADAPTERS[cls]


def plain_message(message: str) -> str:
    """Return an error message of pydantic without its standard beginnings, such as "Value error, "."""
    return message.removeprefix("Value error, ").removeprefix("Input ")


def _fault(section: str, cls: type, detail: Any) -> Fault:
    where = ".".join([section, *map(str, detail["loc"])])
    if detail["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        why = f"no such setting; {suggestion(str(detail['loc'][-1]), field_names(cls))}"
    else:
        why = plain_message(detail["msg"])
    return Fault(where, detail["input"], why)
