"""`headcount ablate MODEL`: ablate every head, one at a time, and see what it costs."""

import argparse

from headcount.cli._command import (
    Command,
    add_int,
    add_json,
    add_model_argument,
    advanced,
    comma_list,
    keywords,
    lengths,
)
from headcount.cli._output import Line, Output, audit_line, print_error, print_text
from headcount.errors import InputError
from headcount.hooks import REPLACEMENTS
from headcount.limits import BATCH, DONORS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, what replaces heads, and what to measure."""
    add_model_argument(parser, data=True)
    replaced = f"kinds of ablation: {', '.join(REPLACEMENTS.names())} [all]"
    parser.add_argument("--replacements", type=comma_list, metavar="NAME,...", help=replaced)
    many = "number of examples [the whole split; heads that change an answer are measured again on 40,000 new ones]"
    add_int(parser, "--n", many)
    parser.add_argument("--examples", action="store_true", help="show which answers each ablation breaks, and how")
    at = "lengths at which a classifier is measured, such as 16,256 (400 examples each)"
    parser.add_argument("--lengths", type=lengths, default=(), metavar="INT,...", help=at)
    parser.add_argument("--split", metavar="{test,validation}", help="which held-out examples to use [test]")
    metric = "metric: free-running, teacher-forced, accuracy, loss; own or own-teacher-forced for an adapter's "
    metric += "metric() [chosen by the task or the data]"
    parser.add_argument("--metric", metavar="NAME", help=metric)
    printed = "print a table, Markdown or CSV [table]"
    parser.add_argument("--format", choices=("table", "markdown", "csv"), help=printed)
    add_json(parser, quiet=True)
    add_int(advanced(parser), "--donors", "examples that each example is resampled from", DONORS)
    add_int(advanced(parser), "--batch-size", "rows per forward pass", BATCH)


def run(args: argparse.Namespace) -> Output:
    """A ranking, a bar chart and a map."""
    from headcount import api
    from headcount.figures import ablation as views

    if args.json and args.format:
        raise InputError(f"--json and --format {args.format} both say what to print", "leave one out")
    if args.data is not None and args.split is not None:
        raise InputError("--data and --split both say what to ask", "leave one out")
    data = args.split if args.data is None else args.data
    shown = api.ablate_heads(data=data, save=True, **keywords(args, "data", "split", "format"))
    result = shown.result
    if args.format in ("markdown", "csv"):
        print_text(views.ablation_csv(result) if args.format == "csv" else views.ablation_markdown(result))
        if result.audit:
            print_error(audit_line(result.audit, result.name))
        return Output({}, ())
    lines: list[Line] = []
    for condition in result.conditions:
        lines += [views.ablation_table(result, condition), *views.ablation_notes(result, condition)]
        for replacement in result.replacements:
            lines += views.failure_tables(result, condition, replacement)
    return Output(result, lines, [shown])


PART = Command(
    "ablate every head alone and measure the drop in accuracy",
    add_arguments,
    run,
    (
        "headcount ablate sample:addition",
        "headcount ablate sample:addition --replacements zero --n 500 --examples",
        "headcount ablate my-bert --data reviews.tsv",
    ),
)
