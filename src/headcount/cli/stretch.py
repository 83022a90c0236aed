"""`headcount stretch MODEL...`: measure how far a model extrapolates beyond its training lengths."""

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
    advanced,
    all_models,
    comma_list,
    keywords,
    lengths,
)
from headcount.cli._exit_codes import of_failures
from headcount.cli._output import Line, Output, course_output, verification_line
from headcount.limits import LENGTHS, LONG, N_STRETCH, N_STRETCH_LONG

HOW_MANY = f"[{N_STRETCH}; {N_STRETCH_LONG} above length {LONG:,} unless attention has a window]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `stretch`: the models, the lengths, and the kinds and numbers of sequences."""
    add_models_argument(parser)
    parser.add_argument(
        "--lengths", type=lengths, metavar="INT,...", help=f"lengths to test [{','.join(map(str, LENGTHS))}]"
    )
    negatives = "kinds of examples to test, such as adjacent, shuffle and patterns, or all-carry [all]"
    parser.add_argument("--negatives", type=comma_list, metavar="KIND,...", help=negatives)
    add_int(parser, "--n", f"number of examples for each length and kind {HOW_MANY}")
    draw = "number of the random draw of test sequences; settings were chosen on draw 0, reports use draw 1 [0]"
    add_int(parser, "--draw", draw)
    add_out(parser, "folder for the figure of several models [runs/stretch]")
    add_json(parser, quiet=True)
    add_timeout(parser)
    add_int(advanced(parser), "--batch-size", "number of examples per forward pass [chosen by length]")


def run(args: argparse.Namespace) -> Output:
    """Measure how far the classifiers extrapolate beyond their training lengths, and describe each result."""
    from headcount import api
    from headcount.analysis.answer_lengths import AnswerStretch
    from headcount.describing import answer_lengths, length_generalisation
    from headcount.files import require_writable

    names, code, broken = all_models(args.models), 0, list[str]()
    if len(names) == 1:
        shown = api.stretch(*names, save=True, **keywords(args, "models", "timeout"))
    else:
        settings = keywords(args, "models", "out", "quiet", "timeout", "run_adapter")
        limits = {"quiet": args.quiet or args.json, "timeout": args.timeout, "run_adapter": args.run_adapter}
        require_writable(Path(args.out or "runs/stretch") / "figures")  # before anything is measured
        course, code = course_output(lambda: api.stretch_all(names, save=True, **limits, **settings))
        saved = [submission.saved for submission in course.values() if submission.saved]
        shown = api.join_stretches(saved, args.out or "runs/stretch", **settings)
        broken = [f"{part.name}: {part.error}" for part in course.values() if part.error]
    cells = [{"name": result.name, **asdict(cell)} for result in shown.result for cell in result.cells]
    lines: list[Line] = []
    for result in shown.result:
        if isinstance(result, AnswerStretch):
            lines += answer_lengths.describe(result)
        else:
            lines += length_generalisation.describe(result)
    if len(names) == 1:
        lines += verification_line(api.open_on_task(names[0], run_adapter=args.run_adapter))
    lines += [f"broken: {message}" for message in broken]
    data = {"cells": cells, "runs": [result.to_dict() for result in shown.result], "broken": broken}
    return Output(data, lines, [shown], of_failures(broken, interrupted=code))


PART = Command(
    "measure how far a model extrapolates beyond its training lengths",
    add_arguments,
    run,
    ("headcount stretch sample:sortedness", "headcount stretch sample:sortedness --lengths 16,64,256 --n 200"),
)
