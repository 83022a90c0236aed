"""`headcount stretch MODEL...`: measure how far a classifier extrapolates beyond its training lengths."""

import argparse
from dataclasses import asdict
from pathlib import Path

from headcount.cli._command import (
    Command,
    add_int,
    add_json,
    add_models_argument,
    add_out,
    add_timeout,
    all_models,
    comma_list,
    keywords,
    lengths,
)
from headcount.cli._output import Line, Output, course_output

HOW_MANY = "(default: 1000; 200 beyond length 1024 unless attention has a window)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the models and what they are measured on."""
    add_models_argument(parser)
    parser.add_argument(
        "--lengths", type=lengths, metavar="INT,...", help="lengths to test (default: 8,12,16,32,64,...,4096)"
    )
    negatives = "kinds of unsorted sequence to test (default: all four)"
    parser.add_argument("--negatives", type=comma_list, metavar="KIND,...", help=negatives)
    add_int(parser, "--n", f"examples per length and kind {HOW_MANY}")
    add_int(parser, "--draw", "which draw of new sequences (default: 0; settings were chosen on draw 0, docs use 1)")
    add_int(parser, "--batch-size", "examples per forward pass (default: depends on their length)")
    add_out(parser, "folder for the figure of several models (default: runs/stretch)")
    add_timeout(parser)
    add_json(parser, quiet=True)


def run(args: argparse.Namespace) -> Output:
    """Measure the models, and describe each of them."""
    from headcount import api
    from headcount.describing.length_generalisation import describe
    from headcount.files import require_writable

    names, code, broken = all_models(args.models), 0, list[str]()
    if len(names) == 1:
        shown = api.stretch(*names, save=True, **keywords(args, "models", "timeout"))
    else:
        asked = keywords(args, "models", "out", "quiet", "timeout", "run_adapter")
        how = {"quiet": args.quiet or args.json, "timeout": args.timeout, "run_adapter": args.run_adapter}
        require_writable(Path(args.out or "runs/stretch") / "figures")  # before anything is measured
        course, code = course_output(lambda: api.stretch_all(names, save=True, **how, **asked))
        saved = [each.saved for each in course.values() if each.saved]
        shown = api.join_stretches(saved, args.out or "runs/stretch", **asked)
        broken = [f"{each.name}: {each.error}" for each in course.values() if each.error]
    cells = [{"name": each.name, **asdict(cell)} for each in shown.result for cell in each.cells]
    lines: list[Line] = [block for each in shown.result for block in describe(each)]
    lines += [f"broken: {each}" for each in broken]
    data = {"cells": cells, "runs": [each.to_dict() for each in shown.result], "broken": broken}
    return Output(data, lines, [shown], code or int(bool(broken)))


PART = Command("measure how far a classifier extrapolates beyond its training lengths", add_arguments, run)
