"""`headcount routes MODEL`: which heads move an event of the task, such as the carry, and where is it held?"""

import argparse

from headcount.cli._command import Command, add_int, add_json, add_model_argument
from headcount.cli._output import Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model, the number of sets of four examples, the seed and the output flags."""
    add_model_argument(parser)
    add_int(parser, "--n", "number of sets of four examples for each route of the event, such as 1s to 10s [200]")
    add_int(parser, "--seed", "seed of the random examples [0]")
    add_json(parser, quiet=True)


def run(args: argparse.Namespace) -> Output:
    """Measure which heads move the event of the task (such as the carry), and describe the result."""
    from headcount import api
    from headcount.analysis.routes import N_SCAN
    from headcount.describing.routes import describe

    settings = {"n": N_SCAN if args.n is None else args.n, "seed": args.seed or 0}
    saved = api.routes(args.model, **settings, save=True, quiet=args.quiet, run_adapter=args.run_adapter)
    return Output(saved.result, describe(saved.result), [saved])


PART = Command(
    "show which heads move an event such as the carry, and where it is held",
    add_arguments,
    run,
    ("headcount routes sample:addition", "headcount routes sample:addition --n 400 --json"),
)
