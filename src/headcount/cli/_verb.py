"""What a verb is, and the arguments that several verbs share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from headcount.errors import InputError


class Parser(argparse.ArgumentParser):
    """Errors look like headcount's other errors."""

    def error(self, message: str) -> NoReturn:
        """Say what was wrong and where help is; exit code 2."""
        self.exit(2, f"error: {message}\n  see: {self.prog} --help\n")


@dataclass(frozen=True)
class Verb:
    """One verb of the command line; `run` returns the exit code."""

    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def add_run_argument(parser: argparse.ArgumentParser) -> None:
    """The run that a verb is about."""
    parser.add_argument("model", metavar="RUN", help="a run folder, sample:addition or sample:sortedness")


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    """For verbs that take models of others too."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a run folder, sample:addition or sample:sortedness; a Hugging Face model's folder; my_adapter.py:Class",
    )
    parser.add_argument(
        "--run-adapter",
        action="store_true",
        help="MODEL is a folder pruned from an adapter's model: run the adapter's Python file that it names",
    )


def add_data_argument(parser: argparse.ArgumentParser) -> None:
    """What models of others are asked."""
    parser.add_argument(
        "--data",
        metavar="FILE",
        help="a Hugging Face model: plain text, or a table with tabs and a header (text label; first second score; "
        "source target)",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Every verb speaks to people and to programs."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """For verbs that take long."""
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def listed(text: str) -> list[str]:
    """Names with commas between them."""
    return [name.strip() for name in text.split(",")]


def numbers(text: str) -> list[int]:
    """Lengths with commas between them."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{text!r} is not a list of lengths", "write it as 16,64,256") from None


def folder_name(text: str) -> str:
    """A name that is one."""
    if not text:
        raise argparse.ArgumentTypeError("an empty name is none: give a folder")
    return text
