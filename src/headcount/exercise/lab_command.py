"""`headcount lab`: run both experiments of the exercise, and write a report."""

import argparse
from pathlib import Path
from typing import Any

from headcount.cli._command import Command, add_int, add_json, add_out
from headcount.cli._output import Line, Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the folder, the seed and the choice of experiment."""
    add_out(parser, "folder for all results [runs/lab]", "runs/lab")
    add_int(parser, "--seed", "seed of everything random in training", 0)
    parser.add_argument("--only", choices=["addition", "sortedness"], help="run only one of the two experiments")
    add_json(parser, quiet=True)


def run(args: argparse.Namespace) -> Output:
    """Run the experiments, and describe the accuracy of the models."""
    from headcount.describing.evaluation import accuracy_table
    from headcount.describing.extrapolation import HARDEST
    from headcount.describing.length_generalisation import Model
    from headcount.describing.length_generalisation import accuracy_table as length_table
    from headcount.describing.verification import describe
    from headcount.exercise.lab import EXPERIMENTS, run_lab

    experiments = (args.only,) if args.only else EXPERIMENTS
    lab = run_lab(Path(args.out), seed=args.seed, quiet=args.quiet, experiments=experiments)
    data: dict[str, Any] = {"report": str(lab.report)}
    lines: list[Line] = []
    if lab.addition:
        evaluation, certificate = lab.addition.evaluation, lab.addition.certificate
        data["addition"] = {
            "run": lab.addition.run.name,
            "evaluation": evaluation.to_dict(),
            "certificate": certificate.to_dict(),
        }
        lines += [accuracy_table("accuracy", lab.addition.run.name, evaluation), *describe(certificate)]
    if lab.sortedness:
        data["sortedness"] = {name: result.to_dict() for name, result in lab.sortedness.stretches.items()}
        models = [Model(name, result) for name, result in lab.sortedness.stretches.items()]
        lines.append(length_table(models, HARDEST))
    return Output(data, [*lines, f"report:  {lab.report}"])


PART = Command(
    "run both experiments with their defaults, and write a report",
    add_arguments,
    run,
    ("headcount lab", "headcount lab --only sortedness -o runs/sortedness-lab"),
)
