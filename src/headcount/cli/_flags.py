"""Flags made from settings: a field `n_heads` is the flag `--n-heads`, its docstring is the help.

Values stay text until the whole configuration is checked at once, so that every fault is told together.
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any, get_args

from pydantic.fields import FieldInfo

from headcount.config import PartOf

_TITLES = {"task": "data", "model": "model", "training": "training"}


def add_settings(parser: argparse.ArgumentParser, sections: dict[str, type]) -> None:
    """One flag per setting, grouped by section."""
    for section, cls in sections.items():
        group = parser.add_argument_group(_TITLES[section])
        for field in dataclasses.fields(cls):
            _add_flag(group, field.name, cls.__pydantic_fields__[field.name])  # type: ignore[attr-defined]


def given_settings(args: argparse.Namespace, sections: dict[str, type]) -> dict[str, Any]:
    """The settings that were on the command line."""
    names = [field.name for cls in sections.values() for field in dataclasses.fields(cls)]
    given = {name: getattr(args, name) for name in names if hasattr(args, name)}
    return {name: None if value == "none" else value for name, value in given.items()}


def _add_flag(group: argparse._ArgumentGroup, name: str, field: FieldInfo) -> None:
    flag, text = name.replace("_", "-"), (field.description or "").replace("%", "%%")
    if field.annotation is bool:
        spelled = f"--no-{flag}" if field.default else f"--{flag}"
        group.add_argument(
            spelled, dest=name, action="store_const", const=not field.default, default=argparse.SUPPRESS, help=text
        )
        return
    choices = [str(choice) for choice in get_args(field.annotation) if isinstance(choice, str)]
    choices += [name for mark in field.metadata if isinstance(mark, PartOf) for name in mark.registry.names()]
    hint = f" One of: {', '.join(choices)}." if choices else ""
    default = "" if field.default is None else f" [{field.default}]"
    group.add_argument(f"--{flag}", dest=name, default=argparse.SUPPRESS, metavar="X", help=text + hint + default)
