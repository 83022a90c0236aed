"""`headcount VERB ...`: 0 when it did its job, 1 when a check failed, 2 for wrong usage."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from headcount import __version__
from headcount.errors import HeadcountError
from headcount.registry import Registry

VERBS = Registry("headcount.cli")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    args = _parser().parse_args(arguments)
    try:
        return int(args.run(args))
    except HeadcountError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output went away, as `| head` does; silence the flush at exit too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headcount",
        description="Which heads count, and how far they reach: a laboratory for attention.",
        epilog="Try: headcount predict sample:addition 374+814",
    )
    parser.add_argument("--version", action="version", version=f"headcount {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name in VERBS.names():
        verb = VERBS.get(name)
        sub = verbs.add_parser(name, help=verb.summary, description=verb.summary)
        verb.add_arguments(sub)
        # `train` hangs its tasks below itself, and they have their own --json.
        if not any(isinstance(action, argparse._SubParsersAction) for action in sub._actions):
            add_json(sub)
        sub.set_defaults(run=verb.run)
    return parser


def add_json(parser: argparse.ArgumentParser) -> None:
    """Every verb speaks to people and to programs."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
