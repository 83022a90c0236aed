"""`headcount ablate MODEL`: ablate the heads one at a time, and measure the drop in accuracy that each one causes."""

import argparse

from headcount.cli._command import (
    Command,
    add_data,
    add_int,
    add_json,
    add_model_argument,
    advanced,
    comma_list,
    keywords,
    lengths,
)
from headcount.cli._output import Output, audit_line, print_error, print_text
from headcount.errors import InputError
from headcount.hooks import REPLACEMENTS
from headcount.limits import BATCH, DONORS, N_DECIDING, N_LENGTH, PRECISION


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `ablate`: the model, the kinds of ablation, the examples and the metric."""
    add_model_argument(parser)
    replaced = f"kinds of ablation: {', '.join(REPLACEMENTS.names())} [all]"
    parser.add_argument("--replacements", type=comma_list, metavar="NAME,...", help=replaced)
    narrow = (
        "measure each head until its band (such as critical or redundant) is decided and its 95 %% CI reaches at most "
    )
    narrow += f"this many points (or hundredths of another unit) to either side [{100 * PRECISION:g}]"
    parser.add_argument("--precision", type=points, metavar="POINTS", default=PRECISION, help=narrow)
    parser.add_argument("--budget", metavar="TIME", help="stop after this time, such as 30s or 5m [no limit]")
    add_int(
        parser, "--n", f"measure exactly this number of examples [as many as each head needs, up to {N_DECIDING:,}]"
    )
    parser.add_argument(
        "--examples", action="store_true", help="show which answers become wrong under each ablation, and how"
    )
    add_data(parser)
    at = f"lengths at which a classifier is measured, such as 16,256 ({N_LENGTH} examples each)"
    parser.add_argument("--lengths", type=lengths, default=(), metavar="INT,...", help=at)
    parser.add_argument("--split", metavar="{test,validation}", help="which held-out examples to use [test]")
    metric = "metric: free-running, teacher-forced, accuracy, loss; own or own-teacher-forced for an adapter's "
    metric += "metric() [chosen by the task or the data]"
    parser.add_argument("--metric", metavar="NAME", help=metric)
    printed = "print a table, Markdown or CSV [table]"
    parser.add_argument("--format", choices=("table", "markdown", "csv"), help=printed)
    add_json(parser, quiet=True)
    whole = f"measure the whole split, and heads that change an answer again on {N_DECIDING:,} new examples (slow)"
    advanced(parser).add_argument("--exhaust", action="store_true", help=whole)
    donors = (
        f"number of other examples whose head outputs resample ablation takes in turn [{DONORS}; 1 with new examples]"
    )
    add_int(advanced(parser), "--donors", donors)
    add_int(advanced(parser), "--batch-size", "number of rows per forward pass", BATCH)


def points(text: str) -> float:
    """Return a number of percentage points, given as text, as a fraction: 1 point is 0.01.

    >>> points("1"), points("0.5")
    (0.01, 0.005)
    """
    try:
        return float(text) / 100
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of percentage points, such as 1 or 0.5") from error


def run(args: argparse.Namespace) -> Output:
    """Ablate each head, save figures and tables, and describe the drops in accuracy."""
    from headcount import api
    from headcount.describing.sections.ablation import describe
    from headcount.rendering.markdown import markdown_text

    if args.json and args.format:
        raise InputError(f"--json and --format {args.format} cannot be combined", "leave one out")
    if args.data is not None and args.split is not None:
        raise InputError("--data and --split cannot be combined", "leave one out")
    data = args.split if args.data is None else args.data
    shown = api.ablate_heads(data=data, save=True, **keywords(args, "data", "split", "format"))
    result = shown.result
    if args.format in ("markdown", "csv"):
        print_text(result.to_csv() if args.format == "csv" else markdown_text(describe(result)))
        if result.audit:
            print_error(audit_line(result.audit, result.name))
        return Output({}, ())
    return Output(result, describe(result), [shown])


PART = Command(
    "ablate every head alone and measure the drop in accuracy",
    add_arguments,
    run,
    (
        "headcount ablate sample:addition",
        "headcount ablate sample:addition --budget 10s",
        "headcount ablate sample:addition --replacements zero --n 500 --examples",
        "headcount ablate my-bert --data reviews.tsv",
    ),
)
