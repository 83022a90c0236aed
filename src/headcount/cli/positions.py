"""`headcount positions MODEL`: what a model knows of positions, and whether it goes on past the trained ones."""

import argparse

from headcount.cli._command import Command, add_int, add_json, add_model_argument
from headcount.cli._output import Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, and how far to look."""
    add_model_argument(parser)
    add_int(parser, "--n", "number of positions to show [twice the trained ones]")
    add_json(parser)


def run(args: argparse.Namespace) -> Output:
    """The mathematics in plain words, and where the pictures are."""
    from headcount import api
    from headcount.figures.positions import positions_table

    shown = api.show_positions(args.model, args.n, save=True, run_adapter=args.run_adapter)
    return Output(shown.result, [positions_table(shown.result)], [shown])


PART = Command(
    "show how a model represents positions, trained and beyond",
    add_arguments,
    run,
    ("headcount positions sample:addition", "headcount positions sample:sortedness --n 64"),
)
