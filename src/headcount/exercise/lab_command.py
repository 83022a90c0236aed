"""The verb `headcount lab`: run both experiments of the exercise, and write a report."""

import argparse
from pathlib import Path
from typing import Any

from headcount.cli._command import Command, add_int, add_json, add_out, advanced
from headcount.cli._output import Line, Output
from headcount.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `headcount lab`: the folder, the seed, one of the experiments, and the processes."""
    add_out(parser, "folder for all results [runs/lab]", "runs/lab")
    add_int(parser, "--seed", "seed of everything random in training", 0)
    parser.add_argument("--only", choices=["addition", "sortedness"], help="run only one of the two experiments")
    add_int(parser, "--processes", "number of parts that run at the same time, each with one thread [number of cores]")
    add_json(parser, quiet=True)
    one = "run only this part of the lab, in this process (the names of parts are those of the files in logs/)"
    advanced(parser).add_argument("--part", metavar="NAME", help=one)


def run(args: argparse.Namespace) -> Output:
    """Run the experiments, and return tables of the models' accuracy, or run the one part that `--part` names."""
    from headcount.describing.evaluation import accuracy_table
    from headcount.describing.extrapolation import HARDEST
    from headcount.describing.length_generalisation import Model
    from headcount.describing.length_generalisation import accuracy_table as length_table
    from headcount.describing.verification import describe
    from headcount.exercise.lab import EXPERIMENTS, run_lab, run_part
    from headcount.studies.running import n_cores

    out, experiments = Path(args.out), (args.only,) if args.only else EXPERIMENTS
    if args.part is not None:
        code = run_part(out, args.part, seed=args.seed, experiments=experiments)
        return Output({"part": args.part}, [f"part:    {args.part}"] if code == 0 else [], exit_code=code)
    processes = n_cores() if args.processes is None else args.processes
    if processes < 1:
        raise InputError(
            f"--processes must be at least 1, got {processes}",
            "it is the number of trainings and measurements that run at the same time",
        )
    lab = run_lab(out, seed=args.seed, quiet=args.quiet, experiments=experiments, processes=processes)
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
