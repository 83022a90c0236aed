"""What a verb is."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Verb:
    """One verb of the command line; `run` returns the exit code."""

    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def add_run_argument(parser: argparse.ArgumentParser) -> None:
    """The run that a verb is about."""
    parser.add_argument("model", metavar="RUN", help="a run folder, or sample:addition")


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """For verbs that take long."""
    parser.add_argument("--quiet", action="store_true", help="show no progress")
