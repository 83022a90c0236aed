"""`headcount prune MODEL`: find heads that can be removed together, and cut them out."""

import argparse

from headcount.cli._command import Command, add_int, add_json, add_model_argument, add_out, comma_list, keywords
from headcount.cli._output import Line, Output, file_lines, files_of
from headcount.limits import BATCH, LOSS, ORDERS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model, how much may be lost, and the folder of the smaller model."""
    add_model_argument(parser, data=True)
    parser.add_argument("--metric", metavar="NAME", help="metric to measure with --data [chosen by the data]")
    add_out(parser, "cut the heads out and save the smaller model in this folder")
    loss = f"largest drop allowed: 0.01 is one point of accuracy, or 0.01 in the metric's unit [{LOSS}]"
    parser.add_argument("--loss", type=float, default=LOSS, metavar="FLOAT", help=loss)
    share = "remove this fraction of the heads, such as 0.2, and report what that costs"
    parser.add_argument("--share", type=float, metavar="FLOAT", help=share)
    heads = "cut exactly these heads, such as E0H1,X1H2, without a search"
    parser.add_argument("--heads", type=comma_list, metavar="HEAD,...", help=heads)
    folding = "add the mean output of the cut heads to the bias of their block"
    parser.add_argument("--fold-mean", action="store_true", help=folding)
    add_int(parser, "--fine-tune", "training steps after the cut", 0)
    add_int(parser, "--length", "measure a classifier on sequences of this length")
    add_int(parser, "--n", "number of examples to measure on [the test set; 400 per length]")
    add_int(parser, "--orders", "random orders of removal to compare with", ORDERS)
    budget = "time limit of the search; what it did not measure is listed"
    parser.add_argument("--budget", metavar="TIME", help=f"{budget}; 90s, 5m, 1h [no limit]")
    add_int(parser, "--batch-size", "rows of a forward pass", BATCH)
    add_json(parser, quiet=True)


def run(args: argparse.Namespace) -> Output:
    """Search for heads, cut them out if a folder is given, and print the description."""
    from headcount import api
    from headcount.describing.pruning import describe, describe_cost

    shown = api.prune_heads(**keywords(args, "orders"), n_orders=args.orders, save=True)
    parts = {"pruning": shown.result, "cut": shown.cost}
    data = {name: part.to_dict() if part else None for name, part in parts.items()}
    lines: list[Line] = []
    if shown.result:
        lines += [*describe(shown.result), *file_lines(shown)]
    if shown.cost:
        lines += [*describe_cost(shown.cost), f"written: {args.out}"]
    return Output({**data, "model": args.out if shown.model else None, "files": files_of(shown)}, lines)


PART = Command("find heads that can be removed together, and cut them out", add_arguments, run)
