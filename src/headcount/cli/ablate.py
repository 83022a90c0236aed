"""`headcount ablate MODEL`: ablate every head, one at a time, and see what it costs."""

import argparse

from headcount.cli._command import Command, add_int, add_json, add_model_argument, comma_list, keywords, lengths
from headcount.cli._output import Output, audit_line, print_error, print_text
from headcount.errors import InputError
from headcount.hooks import REPLACEMENTS
from headcount.limits import BATCH, DONORS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, what replaces heads, and what to measure."""
    add_model_argument(parser, data=True)
    replaced = f"what replaces the output of a head, of: {', '.join(REPLACEMENTS.names())} [all]"
    parser.add_argument("--replacements", type=comma_list, metavar="NAME,...", help=replaced)
    metric = "free-running, teacher-forced, accuracy, loss; an adapter's metric(): own, own-teacher-forced; ... "
    metric += "[by task or data]"
    parser.add_argument("--metric", metavar="NAME", help=metric)
    parser.add_argument("--split", metavar="{test,validation}", help="the examples [test]")
    many = "how many; beyond the split, fresh ones [all, and 40000 more for heads that matter; 400 per length]"
    add_int(parser, "--n", many)
    add_int(parser, "--donors", "other examples that replace each by resample", DONORS)
    at = "a classifier at these lengths, such as 16,256"
    parser.add_argument("--lengths", type=lengths, default=(), metavar="INT,...", help=at)
    parser.add_argument("--examples", action="store_true", help="say what broke: which digits, which carries")
    add_int(parser, "--batch-size", "rows per forward pass", BATCH)
    printed = "what is printed: the table, or the same as Markdown or CSV [table]"
    parser.add_argument("--format", choices=("table", "markdown", "csv"), help=printed)
    add_json(parser, quiet=True)


def run(args: argparse.Namespace) -> Output:
    """A ranking, a bar chart and a map."""
    from headcount import api
    from headcount.describing.ablation import describe
    from headcount.rendering.markdown import markdown_text

    if args.json and args.format:
        raise InputError(f"--json and --format {args.format} both say what to print", "leave one out")
    if args.data is not None and args.split is not None:
        raise InputError("--data and --split both say what to ask", "leave one out")
    data = args.split if args.data is None else args.data
    shown = api.ablate_heads(data=data, save=True, **keywords(args, "data", "split", "format"))
    result = shown.result
    if args.format in ("markdown", "csv"):
        print_text(result.to_csv() if args.format == "csv" else markdown_text(describe(result)))
        if result.audit:
            print_error(audit_line(result.audit, result.name))
        return Output({}, ())
    return Output(result, describe(result), [shown])


PART = Command("ablate every head alone and see what it costs", add_arguments, run)
