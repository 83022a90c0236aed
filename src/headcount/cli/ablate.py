"""`headcount ablate MODEL`: ablate every head, one at a time, and see what it costs."""

from __future__ import annotations

import argparse

from headcount.cli._command import (
    Command,
    add_data_argument,
    add_json,
    add_model_argument,
    add_quiet,
    comma_list,
    numbers,
)
from headcount.cli._output import console, files_of, print_files, print_json, print_text
from headcount.errors import InputError
from headcount.hooks import REPLACEMENTS
from headcount.limits import BATCH, DONORS

FORMATS = ("table", "markdown", "csv")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, what replaces heads, and what to measure."""
    add_model_argument(parser)
    add_data_argument(parser)
    names = ", ".join(REPLACEMENTS.names())
    replaced = f"what replaces the output of a head, of: {names} [all]"
    parser.add_argument("--replacements", metavar="NAME,...", help=replaced)
    parser.add_argument(
        "--metric", metavar="NAME", help="free-running, teacher-forced, accuracy, loss, ... [by task or data]"
    )
    parser.add_argument("--split", metavar="{test,validation}", help="the examples [test]")
    parser.add_argument(
        "--n",
        type=int,
        metavar="INT",
        help="how many; beyond the split, fresh ones [all, and 40000 more for heads that matter; 400 per length]",
    )
    donors = f"other examples that replace each by resample [{DONORS}]"
    parser.add_argument("--donors", type=int, default=DONORS, metavar="INT", help=donors)
    parser.add_argument("--lengths", metavar="INT,...", help="a classifier at these lengths, such as 16,256")
    parser.add_argument("--examples", action="store_true", help="say what broke: which digits, which carries")
    parser.add_argument("--batch-size", type=int, default=BATCH, metavar="INT", help=f"rows per forward pass [{BATCH}]")
    printed = "what is printed: the table, or the same as Markdown or CSV [table]"
    parser.add_argument("--format", choices=FORMATS, help=printed)
    add_json(parser)
    add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    """A ranking, a bar chart and a map."""
    from headcount import api
    from headcount.views.ablation import (
        ablation_csv,
        ablation_markdown,
        ablation_notes,
        ablation_table,
        failure_tables,
    )

    if args.json and args.format:
        raise InputError(f"--json and --format {args.format} both say what to print", "leave one out")
    shown = api.ablate_heads(
        args.model,
        _data(args),
        args.metric,
        replacements=None if args.replacements is None else comma_list(args.replacements),
        n=args.n,
        donors=args.donors,
        lengths=() if args.lengths is None else numbers(args.lengths),
        examples=args.examples,
        batch_size=args.batch_size,
        quiet=args.quiet,
        run_adapter=args.run_adapter,
    )
    if args.json:
        print_json({**shown.result.to_dict(), "files": files_of(shown)})
        return 0
    if args.format in ("markdown", "csv"):
        print_text(ablation_csv(shown.result) if args.format == "csv" else ablation_markdown(shown.result))
        return 0
    out = console()
    for condition in shown.result.conditions:
        out.print(ablation_table(shown.result, condition))
        for note in ablation_notes(shown.result, condition):
            out.print(note)
        for replacement in shown.result.replacements:
            for table in failure_tables(shown.result, condition, replacement):
                out.print(table)
    print_files(out, shown)
    return 0


def _data(args: argparse.Namespace) -> str | None:
    if args.data is not None and args.split is not None:
        raise InputError("--data and --split both say what to ask", "leave one out")
    data: str | None = args.split if args.data is None else args.data
    return data


PART = Command("ablate every head alone and see what it costs", add_arguments, run)
