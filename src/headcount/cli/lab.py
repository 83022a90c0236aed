"""`headcount lab`: both experiments on their defaults, with a report at the end."""

import argparse
from pathlib import Path
from typing import Any

from headcount.cli._command import Command, add_int, add_json, add_out
from headcount.cli._output import Line, Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to, and which seed."""
    add_out(parser, "folder for all results [runs/lab]", "runs/lab")
    add_int(parser, "--seed", "seed of everything random in training", 0)
    parser.add_argument("--only", choices=["addition", "sortedness"], help="run only one of the two experiments")
    add_json(parser, quiet=True)


def run(args: argparse.Namespace) -> Output:
    """Train, verify, stretch, draw; a lab that was interrupted goes on where it was."""
    from headcount.api.lab import EXPERIMENTS, run_lab
    from headcount.describing.certificate import verdict
    from headcount.figures.length_generalisation import reach_table
    from headcount.figures.training import accuracy_table

    experiments = (args.only,) if args.only else EXPERIMENTS
    lab = run_lab(Path(args.out), seed=args.seed, quiet=args.quiet, experiments=experiments)
    data: dict[str, Any] = {"report": str(lab.report)}
    lines: list[Line] = []
    if lab.addition:
        evaluation, certificate = lab.addition.evaluation, lab.addition.certificate
        found = {"evaluation": evaluation.to_dict(), "certificate": certificate.to_dict()}
        data["addition"] = {"run": lab.addition.run.name, **found}
        lines += [accuracy_table(evaluation), verdict(certificate)]
    if lab.sortedness:
        data["sortedness"] = {name: result.to_dict() for name, result in lab.sortedness.stretches.items()}
        lines.append(reach_table(lab.sortedness.stretches, "adjacent"))
    return Output(data, [*lines, f"report:  {lab.report}"])


PART = Command(
    "run both experiments with their defaults, and write a report",
    add_arguments,
    run,
    ("headcount lab", "headcount lab --only sortedness -o runs/sortedness-lab"),
)
