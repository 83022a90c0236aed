"""`headcount verify MODEL`: check every example of the task; exit code 0 only if every answer is right."""

import argparse

from headcount.cli._command import Command, add_json, add_model_argument
from headcount.cli._output import Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model and the output flags."""
    add_model_argument(parser)
    add_json(parser, quiet=True)


def run(args: argparse.Namespace) -> Output:
    """Check every example; exit code 1 if an answer is wrong."""
    from headcount import api
    from headcount.describing.certificate import describe

    model = api.open_on_task(args.model, run_adapter=args.run_adapter)
    certificate = api.verify(model, save=True, quiet=args.quiet)
    file = model.output.result_file("certificate")
    lines = *describe(certificate), f"certificate: {file}"
    return Output(certificate, lines, exit_code=1 if certificate.errors else 0)


PART = Command(
    "check a model on every example of its task, and list every error",
    add_arguments,
    run,
    ("headcount verify sample:addition", "headcount verify my_adapter.py:Model --json"),
)
