"""`headcount prune MODEL`: find heads that can be removed together, and cut them out."""

import argparse

from headcount.cli._command import (
    Command,
    add_data,
    add_int,
    add_json,
    add_model_argument,
    add_out,
    advanced,
    comma_list,
    keywords,
)
from headcount.cli._output import Line, Output, file_lines, files_of
from headcount.limits import BATCH, LOSS, N_LENGTH, ORDERS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `prune`: the model, the largest allowed drop and the smaller model's folder."""
    add_model_argument(parser)
    add_out(parser, "cut the heads out of the weights and save the smaller run or model in this folder")
    loss = f"largest drop that is allowed: 0.01 is one point of accuracy; other metrics have their own unit [{LOSS}]"
    parser.add_argument("--loss", type=float, default=LOSS, metavar="FLOAT", help=loss)
    share = "remove this fraction of the heads, such as 0.2, however much accuracy that costs"
    parser.add_argument("--share", type=float, metavar="FLOAT", help=share)
    heads = "remove these heads, such as E0H1,X1H2, without a search"
    parser.add_argument("--heads", type=comma_list, metavar="HEAD,...", help=heads)
    add_data(parser)
    parser.add_argument("--metric", metavar="NAME", help="with --data: the metric [chosen by the data]")
    budget = "time limit for the search, such as 90s, 5m or 1h; the report says what was not measured [no limit]"
    parser.add_argument("--budget", metavar="TIME", help=budget)
    add_int(parser, "--n", f"number of examples [the test set; {N_LENGTH} with --length]")
    add_int(parser, "--length", "length of the sequences, for a classifier")
    add_int(parser, "--fine-tune", "training steps after the heads are cut out", 0)
    folding = "add the mean output of the removed heads to the bias of their block"
    parser.add_argument("--fold-mean", action="store_true", help=folding)
    add_json(parser, quiet=True)
    add_int(advanced(parser), "--orders", "number of random removal orders to compare with", ORDERS)
    add_int(advanced(parser), "--batch-size", "number of rows per forward pass", BATCH)


def run(args: argparse.Namespace) -> Output:
    """Search for heads that can be removed together, cut them out if a folder is given, and describe the result."""
    from headcount import api
    from headcount.describing.sections.pruning import describe, describe_cost

    shown = api.prune_heads(**keywords(args, "orders"), n_orders=args.orders, save=True)
    parts = {"pruning": shown.result, "cut": shown.cost}
    data = {name: part.to_dict() if part else None for name, part in parts.items()}
    lines: list[Line] = []
    if shown.result:
        lines += [*describe(shown.result), *file_lines(shown)]
    if shown.cost:
        lines += [*describe_cost(shown.cost), f"written: {args.out}"]
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
