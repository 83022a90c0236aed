"""`headcount prune MODEL`: which heads can go together, and a smaller run without them."""

import argparse

from headcount.cli._command import Command, add_int, add_json, add_model_argument, add_out, comma_list, keywords
from headcount.cli._output import Line, Output, file_lines, files_of
from headcount.limits import BATCH, LOSS, ORDERS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run, how much may be lost, and where the smaller run goes."""
    add_model_argument(parser, data=True)
    parser.add_argument("--metric", metavar="NAME", help="with --data: what is measured [by the data]")
    add_out(parser, "cut the heads out and save the smaller run or model here")
    loss = f"what may be lost, in the metric's unit or as a share [{LOSS}]"
    parser.add_argument("--loss", type=float, default=LOSS, metavar="FLOAT", help=loss)
    share = "remove heads until this share of them is gone, such as 0.2, and say what that costs"
    parser.add_argument("--share", type=float, metavar="FLOAT", help=share)
    heads = "cut just these, such as E0H1,X1H2, without a search"
    parser.add_argument("--heads", type=comma_list, metavar="HEAD,...", help=heads)
    folding = "put the mean of what cut heads output into the bias that stays"
    parser.add_argument("--fold-mean", action="store_true", help=folding)
    add_int(parser, "--fine-tune", "steps to train after the cut", 0)
    add_int(parser, "--length", "a classifier: sequences of this length")
    add_int(parser, "--n", "examples to measure on [the test set; 400 per length]")
    add_int(parser, "--orders", "random orders to compare with", ORDERS)
    budget = "what the search may take: the best answer that fits, and what was not measured"
    parser.add_argument("--budget", metavar="TIME", help=f"{budget}; 90s, 5m, 1h [no limit]")
    add_int(parser, "--batch-size", "rows per forward pass", BATCH)
    add_json(parser, quiet=True)


def run(args: argparse.Namespace) -> Output:
    """All curves in one figure; then the cut, if it is asked for."""
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


PART = Command("find heads that can go together, and cut them out for real", add_arguments, run)
