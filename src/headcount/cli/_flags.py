"""Flags made from settings: a field `n_heads` is the flag `--n-heads`, its docstring is the help.

Values stay text until the whole configuration is checked at once, so that every fault is told together.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, get_args, get_origin

from pydantic.fields import FieldInfo

from headcount.config import PartOf

_TITLES = {"task": "data", "model": "model", "training": "training"}
SHORT = 32
"""Letters of all choices of a setting up to which they stand beside the flag instead of behind its help."""


def add_settings(
    parser: argparse.ArgumentParser, sections: dict[str, type], defaults: Mapping[str, Mapping[str, Any]]
) -> None:
    """One flag per setting, grouped by section; `defaults` go before those of the settings' class."""
    for section, cls in sections.items():
        group = parser.add_argument_group(_TITLES[section])
        for field in dataclasses.fields(cls):
            info: FieldInfo = cls.__pydantic_fields__[field.name]  # type: ignore[attr-defined]
            default = defaults.get(section, {}).get(field.name, info.default)
            _add_flag(group, field.name, info, _help(cls, field.name), default)


def given_settings(args: argparse.Namespace, sections: dict[str, type]) -> dict[str, Any]:
    """The settings that were on the command line; `none` means None where a setting may be without a value."""
    given = {}
    for cls in sections.values():
        for name, info in cls.__pydantic_fields__.items():  # type: ignore[attr-defined]
            if hasattr(args, name):
                value = getattr(args, name)
                given[name] = None if value == "none" and type(None) in get_args(info.annotation) else value
    return given


def _help(cls: type, name: str) -> str:
    """The docstring under a setting, which pydantic knows only in the class that it stands in."""
    fields = [vars(base).get("__pydantic_fields__", {}).get(name) for base in cls.__mro__]
    return next((field.description for field in fields if field and field.description), "")


def _add_flag(group: argparse._ArgumentGroup, name: str, field: FieldInfo, text: str, default: Any) -> None:
    # argparse takes every flag that begins with --no- for the negation of another.
    assert not name.startswith("no_"), f"say it the positive way round: --{name} cannot be switched on"
    flag, text = f"--{name.replace('_', '-')}", " ".join(text.split())
    if field.annotation is bool:
        # Both ways, so that what a preset switches on can be switched off.
        action, shown = argparse.BooleanOptionalAction, f"{text} [{'on' if default else 'off'}]".replace("%", "%%")
        group.add_argument(flag, dest=name, action=action, default=argparse.SUPPRESS, help=shown)
        return
    choices = [str(choice) for choice in get_args(field.annotation) if isinstance(choice, str)]
    choices += [name for mark in field.metadata if isinstance(mark, PartOf) for name in mark.registry.names()]
    few = f"{{{','.join(choices)}}}" if choices and sum(map(len, choices)) <= SHORT else None
    hint = f" One of: {', '.join(choices)}." if choices and not few else ""
    shown = f"{text}{hint}{'' if default in (None, ()) else f' [{default}]'}".replace("%", "%%")
    metavar = few or ("NAME" if choices else _metavar(field.annotation))
    group.add_argument(flag, dest=name, default=argparse.SUPPRESS, metavar=metavar, help=shown)


def _metavar(annotation: Any) -> str:
    """What kind of value a flag takes: `INT`, `FLOAT|none`, `NAME,...`."""
    if get_origin(annotation) is tuple:
        return "NAME,..."
    if get_origin(annotation) is Annotated:
        return _metavar(get_args(annotation)[0])
    if args := get_args(annotation):
        return "|".join("none" if part is type(None) else _metavar(part) for part in args)
    return {int: "INT", float: "FLOAT"}.get(annotation, "TEXT")
