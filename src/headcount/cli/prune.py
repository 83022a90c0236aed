"""`headcount prune MODEL`: which heads can go together, and a smaller run without them."""

from __future__ import annotations

import argparse

from headcount.cli._command import (
    Command,
    add_data_argument,
    add_json,
    add_model_argument,
    add_quiet,
    comma_list,
    folder_name,
)
from headcount.cli._output import console, files_of, print_files, print_json
from headcount.limits import BATCH, LOSS, ORDERS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run, how much may be lost, and where the smaller run goes."""
    add_model_argument(parser)
    add_data_argument(parser)
    parser.add_argument("--metric", metavar="NAME", help="with --data: what is measured [by the data]")
    parser.add_argument(
        "-o", "--out", type=folder_name, metavar="DIR", help="cut the heads out and save the smaller run or model here"
    )
    parser.add_argument(
        "--loss",
        type=float,
        default=LOSS,
        metavar="FLOAT",
        help=f"what may be lost, in the metric's unit or as a share [{LOSS}]",
    )
    parser.add_argument("--heads", metavar="HEAD,...", help="cut just these, such as E0H1,X1H2, without a search")
    parser.add_argument(
        "--fold-mean", action="store_true", help="put the mean of what cut heads output into the bias that stays"
    )
    parser.add_argument("--fine-tune", type=int, default=0, metavar="INT", help="steps to train after the cut [0]")
    parser.add_argument("--length", type=int, metavar="INT", help="a classifier: sequences of this length")
    parser.add_argument("--n", type=int, metavar="INT", help="examples to measure on [the test set; 400 per length]")
    orders = f"random orders to compare with [{ORDERS}]"
    parser.add_argument("--orders", type=int, default=ORDERS, metavar="INT", help=orders)
    parser.add_argument("--batch-size", type=int, default=BATCH, metavar="INT", help=f"rows per forward pass [{BATCH}]")
    add_json(parser)
    add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    """All curves in one figure; then the cut, if it is asked for."""
    from headcount import api
    from headcount.views.pruning import cost_table, pruning_notes, pruning_table

    shown = api.prune_heads(
        args.model,
        args.out,
        data=args.data,
        metric=args.metric,
        loss=args.loss,
        heads=None if args.heads is None else comma_list(args.heads),
        fold_mean=args.fold_mean,
        fine_tune=args.fine_tune,
        length=args.length,
        n=args.n,
        n_orders=args.orders,
        batch_size=args.batch_size,
        quiet=args.quiet,
        run_adapter=args.run_adapter,
    )
    if args.json:
        parts = {"pruning": shown.result, "cut": shown.cost}
        told = {name: part.to_dict() if part else None for name, part in parts.items()}
        print_json({**told, "model": args.out if shown.model else None, "files": files_of(shown)})
        return 0
    out = console()
    if shown.result:
        out.print(pruning_table(shown.result))
        for note in pruning_notes(shown.result):
            out.print(note)
        print_files(out, shown)
    if shown.cost:
        out.print(cost_table(shown.cost))
    return 0


PART = Command("find heads that can go together, and cut them out for real", add_arguments, run)
