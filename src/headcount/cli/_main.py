"""`headcount VERB ...`: 0 when it did its job, 1 when a check failed, 2 for wrong usage."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from headcount import __version__
from headcount.cli._verb import Parser, Verb
from headcount.config import suggestion
from headcount.errors import HeadcountError, InputError, Interrupted
from headcount.registry import Registry

VERBS = Registry("headcount.cli")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    # Threads that wait by spinning are a hundred times slower as soon as something else wants a core.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    args, unknown = _parser().parse_known_args(arguments)
    try:
        if unknown:
            raise _unknown(unknown[0], args.parser)
        return int(args.run(args))
    except Interrupted as stopped:
        print(stopped, file=sys.stderr)
        return stopped.exit_code
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
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> Parser:
    parser = Parser(
        prog="headcount",
        description="Which heads count, and how far they reach: a laboratory for attention.",
        epilog="Try: headcount predict sample:addition 374+814",
    )
    parser.add_argument("--version", action="version", version=f"headcount {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name in VERBS.names():
        verb: Verb = VERBS.get(name)
        sub = verbs.add_parser(name, help=verb.summary, description=verb.summary)
        sub.set_defaults(run=verb.run, parser=sub)
        verb.add_arguments(sub)
    return parser


def _unknown(argument: str, parser: argparse.ArgumentParser) -> InputError:
    if not argument.startswith("-"):
        return InputError(f"{parser.prog} takes no further {argument!r}", f"see: {parser.prog} --help")
    known = [flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")]
    flag = argument.partition("=")[0]
    return InputError(f"{parser.prog} has no {flag!r}", suggestion(flag, known), f"see: {parser.prog} --help")
