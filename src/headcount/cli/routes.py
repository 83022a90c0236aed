"""`headcount routes MODEL...`: which heads move an event of the task (such as the carry), and where is it held?"""

import argparse

from headcount.cli._command import Command, add_int, add_json, add_models_argument, add_out, all_models
from headcount.cli._output import Output
from headcount.limits import N_SCAN


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `routes`: the models, the number of quartets and the output flags."""
    add_models_argument(parser)
    add_int(
        parser,
        "--n",
        f"number of quartets (sets of four examples) for each way, such as from the 1s to the 10s [{N_SCAN}]",
    )
    add_int(parser, "--seed", "seed with which the quartets are drawn [0]")
    add_out(parser, "folder for the figure of several models [runs/routes]")
    add_json(parser, quiet=True)


def run(args: argparse.Namespace) -> Output:
    """Measure which heads move the event of the task (such as the carry), and describe the result of each model."""
    from headcount import api
    from headcount.describing.routes import describe

    settings = {"n": N_SCAN if args.n is None else args.n, "seed": args.seed or 0, "quiet": args.quiet}
    models = all_models(args.models)
    saved = api.routes_all(models, **settings, out=args.out, save=True, run_adapter=args.run_adapter)
    blocks = [block for result in saved.result for block in describe(result)]
    data = saved.result[0] if len(models) == 1 else {"runs": [result.to_dict() for result in saved.result]}
    return Output(data, blocks, [saved])


PART = Command(
    "show which heads move an event such as the carry, and where it is held",
    add_arguments,
    run,
    (
        "headcount routes sample:addition",
        "headcount routes sample:addition --n 400 --json",
        "headcount routes sample:addition runs/a runs/b",
    ),
)
