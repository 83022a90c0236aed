"""`headcount positions MODEL`: how a model represents position, inside and beyond its training lengths."""

import argparse

from headcount.cli._command import Command, add_int, add_json, add_model_argument
from headcount.cli._output import Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `positions`: the model and the number of positions."""
    add_model_argument(parser)
    add_int(parser, "--n", "number of positions to show [twice the number of trained positions]")
    add_json(parser)


def run(args: argparse.Namespace) -> Output:
    """Describe how the model's encoding represents position, and name the files of the figures."""
    from headcount import api
    from headcount.describing.sections.positions import describe

    shown = api.show_positions(args.model, args.n, save=True, run_adapter=args.run_adapter)
    return Output(shown.result, describe(shown.result), [shown])


PART = Command(
    "show how a model represents positions, inside and beyond the training lengths",
    add_arguments,
    run,
    ("headcount positions sample:addition", "headcount positions sample:sortedness --n 64"),
)
