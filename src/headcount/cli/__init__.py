"""The command line: one verb, one file.

A verb's module names its `PART`, a `Command`. It imports what computes only inside `run`, so that help is instant.
`headcount VERB ...` exits with 0 when it did its job, 1 when a check failed, 2 for wrong usage, 128 + N for signal N.
"""

import argparse
import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence

from headcount import __version__
from headcount.cli._command import Command, Parser
from headcount.cli._output import print_error, print_output, print_text
from headcount.errors import HeadcountError, InputError, Interrupted, Terminated, shortened
from headcount.registry import Registry, suggestion
from headcount.rendering.progress import LOST, Steady, Terminal

VERBS = Registry("headcount.cli")
FORMER = {"--kinds": "--replacements", "--narrow": "--small-steps", "--matched": "--paired"}
"""Flags that had other names."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    # Threads that wait by spinning are a hundred times slower as soon as something else wants a core.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ["MPLBACKEND"] = "agg"  # no window is ever opened, whatever the user has set for others
    _print_anything()
    LOST.clear()
    try:
        with _ending_in_good_order():
            code = _run(sys.argv[1:] if arguments is None else list(arguments))
    finally:
        Steady(sys.stdout).flush()
        Steady(sys.stderr).flush()
    if LOST and not code:
        print_error(f"error: could not print everything: {LOST[0]}")
    return code or (2 if LOST else 0)


def _run(arguments: list[str]) -> int:
    try:
        parser = _parser(*(word for word in arguments[:1] if word in VERBS.names()))
        if not arguments:
            print_text(parser.format_help())
            return 0
        args, unknown = parser.parse_known_args(arguments)
        if unknown:
            raise _unknown(unknown[0], args.parser)
        found = args.run(args)
        print_output(found, as_json=args.json)
        return int(found.exit_code)
    except Interrupted as stopped:
        print_error(str(stopped))
        return stopped.exit_code
    except HeadcountError as error:
        print_error(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt as stopped:
        Terminal(stderr=True).show_cursor()  # a bar that was just being opened has hidden it
        print_error("error: interrupted")
        return getattr(stopped, "exit_code", 130)
    except (OSError, MemoryError) as error:
        print_error(f"error: {str(error) or 'out of memory'}")
        return 2
    except RuntimeError as error:  # PyTorch's own way of saying that memory is out
        if "allocate" not in str(error):
            raise
        what = f"error: out of memory: {shortened(str(error))}"
        print_error(f"{what}\n  ask for less: a smaller model, --n or --batch-size")
        return 2


def _print_anything() -> None:
    """A character that the terminal or a pipe cannot show is replaced by one that it can; a closed stream gets all."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        if isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="replace")


@contextlib.contextmanager
def _ending_in_good_order() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP unwind as Ctrl-C does: the cursor comes back, drafts go, exit code 143 or 129."""
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    if threading.current_thread() is not threading.main_thread():
        numbers = []

    def stop(number: int, frame: object) -> None:
        raise Terminated(number)

    # One that is ignored, as under nohup, stays so.
    before = {number: signal.signal(number, stop) for number in numbers if signal.getsignal(number) != signal.SIG_IGN}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _parser(*verbs: str) -> Parser:
    """Of the verbs that are named, which are then all that is imported; else of all."""
    parser = Parser(
        prog="headcount",
        description="A laboratory for attention: which heads count, and how far they reach.",
        epilog="Try: headcount predict sample:addition 374+814",
    )
    parser.add_argument("--version", action="version", version=f"headcount {__version__}")
    parsers = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name in verbs or VERBS.names():
        verb: Command = VERBS.get(name)
        sub = parsers.add_parser(
            name,
            help=verb.summary,
            description=f"{verb.summary[0].upper()}{verb.summary[1:]}.",
            epilog="\n".join(["examples:", *(f"  {example}" for example in verb.examples)]) if verb.examples else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.set_defaults(run=verb.run, parser=sub)
        verb.add_arguments(sub)
    return parser


def _unknown(argument: str, parser: argparse.ArgumentParser) -> InputError:
    flag, see = argument.partition("=")[0], f"see: {parser.prog} --help"
    if not argument.startswith("-"):
        return InputError(f"{parser.prog} takes no further {shortened(argument)!r}", see)
    if flag in FORMER:
        return InputError(f"{flag} is called {FORMER[flag]} now", see)
    known = [name for action in parser._actions for name in action.option_strings if name.startswith("--")]
    return InputError(f"{parser.prog} has no {shortened(flag)!r}", suggestion(flag, known), see)
