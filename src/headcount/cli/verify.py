"""`headcount verify MODEL`: check every example there is; exit 0 only if all are right."""

import argparse

from headcount.cli._command import Command, add_json, add_model_argument
from headcount.cli._output import Output, wrong_lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model."""
    add_model_argument(parser)
    add_json(parser, quiet=True)


def run(args: argparse.Namespace) -> Output:
    """The certificate."""
    from headcount import api
    from headcount.describing.certificate import verdict

    model = api.open_on_task(args.model, run_adapter=args.run_adapter)
    certificate = api.verify(model, save=True, quiet=args.quiet)
    file = model.output.result_file("certificate")
    lines = verdict(certificate), *wrong_lines(certificate.wrong, file), f"certificate: {file}"
    return Output(certificate, lines, exit_code=1 if certificate.errors else 0)


PART = Command(
    "check a model on every example of its task, and list every error",
    add_arguments,
    run,
    ("headcount verify sample:addition", "headcount verify my_adapter.py:Model --json"),
)
