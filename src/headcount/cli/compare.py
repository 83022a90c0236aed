"""`headcount compare STUDY|RUN... --by encoding`: compare the stored results of runs over their seeds."""

import argparse

from headcount.cli._command import Command, add_json, add_out
from headcount.cli._output import Output
from headcount.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the runs, the setting to compare by, the measures and the output flags."""
    runs = "run folders, a folder whose subfolders are runs, or studies that were run: their names or folders"
    parser.add_argument("runs", metavar="STUDY|RUN", nargs="+", help=runs)
    by = "setting that defines a variant, such as encoding; several times for several [all that differ]"
    parser.add_argument("--by", metavar="SETTING", action="append", default=[], help=by)
    measure = "measure to show, such as 'exact match' or drop; several times for several [the main ones]"
    parser.add_argument("--measure", metavar="NAME", action="append", default=[], help=measure)
    parser.add_argument("--part", metavar="NAME", help="the part of a study that has several [all parts]")
    parser.add_argument("--csv", metavar="FILE", help="write all stored numbers as a table (.csv or .jsonl)")
    published = "show published figures beside those of the runs (of the exercise's five reports)"
    parser.add_argument("--published", action="store_true", help=published)
    add_out(parser, "folder for the result and one figure per measure [nothing is written]")
    add_json(parser)


def run(args: argparse.Namespace) -> Output:
    """Compare the runs, and describe the result."""
    from headcount import api
    from headcount.describing.comparison import describe

    if args.published:
        return _published(args)
    saved = api.compare_runs(args.runs, by=args.by, measures=args.measure, part=args.part, csv=args.csv, out=args.out)
    measures = list(dict.fromkeys(each.measure for each in saved.result.variants))
    return Output(saved.result, describe(saved.result, measures), [saved])


def _published(args: argparse.Namespace) -> Output:
    """Compare the runs with published figures; runs of both tasks may be named."""
    from headcount import api

    for flag, value in (("--by", args.by), ("--measure", args.measure), ("--csv", args.csv), ("-o", args.out)):
        if value:
            raise InputError(f"--published cannot be combined with {flag}", "compare the runs by another call")
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
