"""`headcount compare STUDY|RUN... --by encoding`: compare the stored results of runs over their seeds."""

import argparse

from headcount.cli._command import Command, add_json, add_out
from headcount.cli._output import Output
from headcount.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `compare`: the runs, the setting to compare by, the measures and output flags."""
    runs = "run folders, a folder whose subfolders are runs, or studies that were run: their names or folders"
    parser.add_argument("runs", metavar="STUDY|RUN", nargs="+", help=runs)
    by = "setting by which runs are compared, such as encoding; repeatable [all settings that differ]"
    parser.add_argument("--by", metavar="SETTING", action="append", default=[], help=by)
    measure = "measure to show, such as 'exact match' or drop; repeatable [the main measures]"
    parser.add_argument("--measure", metavar="NAME", action="append", default=[], help=measure)
    parser.add_argument("--part", metavar="NAME", help="one part of a study that has several parts [all parts]")
    parser.add_argument("--csv", metavar="FILE", help="write all stored numbers as a table (.csv or .jsonl)")
    published = "show published results (of the exercise's five reports) beside the results of the runs"
    parser.add_argument("--published", action="store_true", help=published)
    add_out(parser, "folder for the result and one figure per measure [nothing is written]")
    add_json(parser)


def run(args: argparse.Namespace) -> Output:
    """Compare the stored results of runs over their seeds, and describe the comparison."""
    from headcount import api
    from headcount.describing.comparison import describe

    if args.published:
        return _published(args)
    saved = api.compare_runs(args.runs, by=args.by, measures=args.measure, part=args.part, csv=args.csv, out=args.out)
    measures = list(dict.fromkeys(each.measure for each in saved.result.variants))
    return Output(saved.result, describe(saved.result, measures), [saved])


def _published(args: argparse.Namespace) -> Output:
    """Compare runs with published results; runs on addition and on sortedness may be named together."""
    from headcount import api

    for flag, value in (("--by", args.by), ("--measure", args.measure), ("--csv", args.csv), ("-o", args.out)):
        if value:
            raise InputError(f"--published cannot be combined with {flag}", f"leave {flag} out, or --published")
    compared = api.compare_published(args.runs)
    lines = [block for each in compared for block in each.section.blocks]
    return Output({"published": {each.name: each.result.to_dict() for each in compared}}, lines)


PART = Command(
    "compare the stored results of runs over their seeds",
    add_arguments,
    run,
    (
        "headcount compare heads",
        "headcount compare runs/a runs/b runs/c --by encoding",
        "headcount compare runs --by encoding --measure 'exact match' --csv rows.csv",
        "headcount compare runs/reports --published",
    ),
)
