"""The command line: one verb, one file.

Each verb's module defines `PART`, a `Command`. Slow imports are inside `run`, so that help appears at once.
`headcount VERB ...` exits with 0 on success, 1 if a check failed, 2 for wrong usage, and 128 + N for signal N.
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
from headcount.registry import Registry
from headcount.rendering.progress import LOST, Steady, Terminal
from headcount.suggestions import suggestion

VERBS = Registry("headcount.cli")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb with its arguments (default: those of the process), and return the exit code."""
    # Threads that wait by spinning are a hundred times slower once another process needs a core.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ["MPLBACKEND"] = "agg"  # never open a window, whatever backend the user has set
    _make_streams_printable()
    LOST.clear()
    try:
        with _signals_as_exceptions():
            code = _run(sys.argv[1:] if arguments is None else list(arguments))
    finally:
        Steady(sys.stdout).flush()
        Steady(sys.stderr).flush()
    if LOST and not code:
        print_error(f"error: could not print everything: {LOST[0]}")
    return code or (2 if LOST else 0)


def _run(arguments: list[str]) -> int:
    try:
        if not arguments:
            print_text(_parser().format_help())
            return 0
        args = read_arguments(arguments)
        output = args.run(args)
        print_output(output, as_json=args.json)
        return int(output.exit_code)
    except Interrupted as stopped:
        print_error(str(stopped))
        return stopped.exit_code
    except HeadcountError as error:
        print_error(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt as stopped:
        Terminal(stderr=True).show_cursor()  # a progress bar may have hidden it
        print_error("error: interrupted")
        return getattr(stopped, "exit_code", 130)
    except (OSError, MemoryError) as error:
        print_error(f"error: {str(error) or 'out of memory'}")
        return 2
    except RuntimeError as error:  # PyTorch raises this when memory runs out
        if "allocate" not in str(error):
            raise
        what = f"error: out of memory: {shortened(str(error))}"
        print_error(f"{what}\n  use a smaller model, --n or --batch-size")
        return 2


def read_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the parsed arguments of a command line without running it; raise an error for an unknown flag."""
    parser = _parser(*(word for word in arguments[:1] if word in VERBS.names()))
    args, unknown = parser.parse_known_args(arguments)
    if unknown:
        raise _unknown(unknown[0], args.parser)
    return args


def _make_streams_printable() -> None:
    """Let streams replace characters that they cannot encode; send output for a closed stream to the null device."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        if isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="replace")


@contextlib.contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    """Return a context in which SIGTERM and SIGHUP act like Ctrl-C, so that cleanup runs; exit codes: 143 and 129."""
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    if threading.current_thread() is not threading.main_thread():
        numbers = []

    def stop(number: int, frame: object) -> None:
        raise Terminated(number)

    # A signal that is ignored, as under nohup, stays ignored.
    before = {number: signal.signal(number, stop) for number in numbers if signal.getsignal(number) != signal.SIG_IGN}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _parser(*verbs: str) -> Parser:
    """Return the argument parser for these verbs (default: all); only the modules of these verbs are imported."""
    parser = Parser(
        prog="headcount",
        description="Measure which attention heads matter, and how far a model extrapolates.",
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
        return InputError(f"{parser.prog} got an extra argument {shortened(argument)!r}", see)

    known = [name for action in parser._actions for name in action.option_strings if name.startswith("--")]
    return InputError(f"{parser.prog} has no option {shortened(flag)!r}", suggestion(flag, known), see)
