"""`headcount lab`: the whole experiment on its defaults, with a report at the end."""

from __future__ import annotations

import argparse
from pathlib import Path

from headcount.cli._output import console, print_json
from headcount.cli._verb import Verb, add_json, add_quiet


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to, and which seed."""
    parser.add_argument("-o", "--out", metavar="DIR", default="runs/lab", help="where everything goes [runs/lab]")
    parser.add_argument("--seed", type=int, metavar="N", default=0, help="decides everything random in training [0]")
    add_json(parser)
    add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    """Train, verify, draw; a lab that was interrupted goes on where it was."""
    from headcount.lab import run_lab
    from headcount.views.accuracy import accuracy_table
    from headcount.views.report import verdict

    lab = run_lab(Path(args.out), seed=args.seed, quiet=args.quiet)
    if args.json:
        parts = {"evaluation": lab.evaluation.to_dict(), "certificate": lab.certificate.to_dict()}
        print_json({"report": str(lab.report), "run": lab.run.name, **parts})
        return 0
    out = console()
    out.print(accuracy_table(lab.evaluation))
    out.print(verdict(lab.certificate))
    out.print(f"run:     {lab.run.name}\nreport:  {lab.report}")
    return 0


PART = Verb("train, verify and draw on the defaults, and write a report", add_arguments, run)
