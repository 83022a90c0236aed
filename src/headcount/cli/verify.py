"""`headcount verify MODEL`: is every answer right? Exit code 1 if an answer is wrong, 0 otherwise."""

import argparse

from headcount.cli._command import Command, add_int, add_json, add_model_argument
from headcount.cli._exit_codes import of_verification
from headcount.cli._output import Output
from headcount.limits import SEARCH_SECONDS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `verify`: the model, and seconds and seed of a search for wrong answers."""
    add_model_argument(parser)
    parser.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        help=f"seconds to search for wrong answers, if the model cannot be proved right [{SEARCH_SECONDS:g}]",
    )
    add_int(parser, "--seed", "seed of the search for wrong answers [0]")
    add_json(parser, quiet=True)


def run(args: argparse.Namespace) -> Output:
    """Verify a model and describe the outcome; exit code 1 if an answer is wrong, 0 otherwise."""
    from headcount import api
    from headcount.describing.verification import describe

    model = api.open_on_task(args.model, run_adapter=args.run_adapter)
    seconds = SEARCH_SECONDS if args.seconds is None else args.seconds
    outcome = api.verify(model, seconds=seconds, seed=args.seed or 0, save=True, quiet=args.quiet)
    lines = *describe(outcome), f"saved: {model.output.result_file('certificate')}"
    return Output(outcome, lines, exit_code=of_verification(outcome.verdict))


PART = Command(
    "prove that every answer of a model is right, or find an answer that is wrong",
    add_arguments,
    run,
    (
        "headcount verify sample:addition",
        "headcount verify sample:sortedness",
        "headcount verify my_adapter.py:Model --seconds 60",
    ),
)
