"""`headcount verify RUN`: check every example there is; exit 0 only if all are right."""

from __future__ import annotations

import argparse

from headcount.cli._command import Command, add_json, add_quiet, add_run_argument
from headcount.cli._output import console, print_json, print_wrong


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run."""
    add_run_argument(parser)
    add_json(parser)
    add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    """The certificate."""
    from headcount import api
    from headcount.views.report import verdict

    model = api.open_run(args.model, "verify")
    certificate = api.verify(model, quiet=args.quiet)
    if args.json:
        print_json(certificate.to_dict())
        return 1 if certificate.errors else 0
    out, file = console(), model.output.result_file("certificate")
    out.print(verdict(certificate))
    print_wrong(out, certificate.wrong, file)
    out.print(f"certificate: {file}")
    return 1 if certificate.errors else 0


PART = Command("check every example there is and list every error", add_arguments, run)
