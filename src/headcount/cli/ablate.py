"""`headcount ablate MODEL`: ablate the heads one at a time and measure what each costs."""

import argparse

from headcount.cli._command import Command, add_int, add_json, add_model_argument, comma_list, keywords, lengths
from headcount.cli._output import Output, audit_line, print_error, print_text
from headcount.errors import InputError
from headcount.hooks import REPLACEMENTS
from headcount.limits import BATCH, DONORS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model, the replacements, and what to measure."""
    add_model_argument(parser, data=True)
    replaced = f"what replaces a head's output: {', '.join(REPLACEMENTS.names())} [all]"
    parser.add_argument("--replacements", type=comma_list, metavar="NAME,...", help=replaced)
    metric = "free-running, teacher-forced, accuracy, loss; own or own-teacher-forced for an adapter's metric() "
    metric += "[chosen by task or data]"
    parser.add_argument("--metric", metavar="NAME", help=metric)
    parser.add_argument("--split", metavar="{test,validation}", help="split of the task to measure on [test]")
    n = "number of examples [the whole split, and 40,000 new ones for heads that change an answer; 400 per length]"
    add_int(parser, "--n", n)
    add_int(parser, "--donors", "other examples whose output replaces each example's under resample ablation", DONORS)
    at = "measure a classifier at these lengths, such as 16,256"
    parser.add_argument("--lengths", type=lengths, default=(), metavar="INT,...", help=at)
    parser.add_argument(
        "--examples",
        action="store_true",
        help="show what broke without each head: which tokens, which kinds of error, and examples",
    )
    add_int(parser, "--batch-size", "rows of a forward pass", BATCH)
    printed = "print tables and sentences, the same as Markdown, or all numbers as CSV [table]"
    parser.add_argument("--format", choices=("table", "markdown", "csv"), help=printed)
    add_json(parser, quiet=True)


def run(args: argparse.Namespace) -> Output:
    """Ablate the heads, save figures and tables, and print the description."""
    from headcount import api
    from headcount.describing.ablation import describe
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


PART = Command("ablate each head alone and measure what it costs", add_arguments, run)
