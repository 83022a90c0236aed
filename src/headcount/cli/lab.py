"""`headcount lab`: both experiments on their defaults, with a report at the end."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headcount.cli._command import Command, add_json, add_quiet, folder_name
from headcount.cli._output import console, print_json

if TYPE_CHECKING:
    from headcount.api.lab import Lab


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to, and which seed."""
    parser.add_argument(
        "-o", "--out", type=folder_name, metavar="DIR", default="runs/lab", help="where everything goes [runs/lab]"
    )
    parser.add_argument("--seed", type=int, metavar="INT", default=0, help="decides everything random in training [0]")
    parser.add_argument("--only", choices=["addition", "sortedness"], help="run one of the two experiments")
    add_json(parser)
    add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    """Train, verify, stretch, draw; a lab that was interrupted goes on where it was."""
    from headcount.api.lab import EXPERIMENTS, run_lab
    from headcount.views.length_generalisation import reach_table
    from headcount.views.report import verdict
    from headcount.views.training import accuracy_table

    lab = run_lab(
        Path(args.out), seed=args.seed, quiet=args.quiet, experiments=(args.only,) if args.only else EXPERIMENTS
    )
    if args.json:
        print_json({"report": str(lab.report), **_data(lab)})
        return 0
    out = console()
    if lab.addition:
        out.print(accuracy_table(lab.addition.evaluation))
        out.print(verdict(lab.addition.certificate))
    if lab.sortedness:
        out.print(reach_table(lab.sortedness.stretches, "adjacent"))
    out.print(f"report:  {lab.report}")
    return 0


def _data(lab: Lab) -> dict[str, Any]:
    data: dict[str, Any] = {}
    if lab.addition:
        found = {"evaluation": lab.addition.evaluation, "certificate": lab.addition.certificate}
        data["addition"] = {"run": lab.addition.run.name, **{name: result.to_dict() for name, result in found.items()}}
    if lab.sortedness:
        data["sortedness"] = {name: result.to_dict() for name, result in lab.sortedness.stretches.items()}
    return data


PART = Command("run both experiments on their defaults, and write a report", add_arguments, run)
