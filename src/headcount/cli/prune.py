"""`headcount prune MODEL`: which heads can go together, and a smaller run without them."""

import argparse

from headcount.cli._command import (
    Command,
    add_int,
    add_json,
    add_model_argument,
    add_out,
    advanced,
    comma_list,
    keywords,
)
from headcount.cli._output import Line, Output, file_lines, files_of
from headcount.limits import BATCH, LOSS, ORDERS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run, how much may be lost, and where the smaller run goes."""
    add_model_argument(parser, data=True)
    add_out(parser, "cut the heads out of the weights and save the smaller run or model in this folder")
    loss = f"largest drop that is allowed, as a fraction or in the unit of the metric [{LOSS}]"
    parser.add_argument("--loss", type=float, default=LOSS, metavar="FLOAT", help=loss)
    share = "remove this share of the heads, such as 0.2, whatever it costs"
    parser.add_argument("--share", type=float, metavar="FLOAT", help=share)
    heads = "remove these heads, such as E0H1,X1H2, without a search"
    parser.add_argument("--heads", type=comma_list, metavar="HEAD,...", help=heads)
    budget = "time limit for the search, such as 90s, 5m or 1h; the report says what was not measured [no limit]"
    parser.add_argument("--budget", metavar="TIME", help=budget)
    add_int(parser, "--n", "number of examples [the test set; 400 with --length]")
    add_int(parser, "--length", "length of the sequences, for a classifier")
    parser.add_argument("--metric", metavar="NAME", help="with --data: the metric [chosen by the data]")
    add_int(parser, "--fine-tune", "training steps after the heads are cut out", 0)
    folding = "add the mean output of the removed heads to the bias of their block"
    parser.add_argument("--fold-mean", action="store_true", help=folding)
    add_json(parser, quiet=True)
    add_int(advanced(parser), "--orders", "random removal orders to compare with", ORDERS)
    add_int(advanced(parser), "--batch-size", "rows per forward pass", BATCH)


def run(args: argparse.Namespace) -> Output:
    """All curves in one figure; then the cut, if it is asked for."""
    from headcount import api
    from headcount.figures.pruning import cost_table, pruning_notes, pruning_table

    shown = api.prune_heads(**keywords(args, "orders"), n_orders=args.orders, save=True)
    parts = {"pruning": shown.result, "cut": shown.cost}
    data = {name: part.to_dict() if part else None for name, part in parts.items()}
    lines: list[Line] = []
    if shown.result:
        lines += [pruning_table(shown.result), *pruning_notes(shown.result), *file_lines(shown)]
    if shown.cost:
        lines += [cost_table(shown.cost), f"written: {args.out}"]
    return Output({**data, "model": args.out if shown.model else None, "files": files_of(shown)}, lines)


PART = Command(
    "find heads that can be removed together, and cut them out of the weights",
    add_arguments,
    run,
    (
        "headcount prune sample:addition",
        "headcount prune sample:addition -o runs/small --loss 0.05",
        "headcount prune my-bert --data reviews.tsv --budget 5m",
    ),
)
