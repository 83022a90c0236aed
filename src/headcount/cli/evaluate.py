"""`headcount evaluate RUN`: how good a model is on a held-out set."""

from __future__ import annotations

import argparse

from headcount.cli._command import Command, add_json, add_run_argument
from headcount.cli._output import console, print_json, print_note, print_wrong


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run and the set."""
    add_run_argument(parser)
    add_json(parser)
    parser.add_argument("--split", choices=["test", "validation"], default="test", help="which held-out set [test]")


def run(args: argparse.Namespace) -> int:
    """A table by group, and what is wrong."""
    from headcount import api
    from headcount.views.training import accuracy_table, answers_note

    model = api.open_run(args.model, "evaluate")
    evaluation = api.evaluate(model, args.split)
    if args.json:
        print_json(evaluation.to_dict())
        return 0
    out = console()
    out.print(accuracy_table(evaluation))
    print_note(out, answers_note(evaluation))
    print_wrong(out, evaluation.wrong, model.output.result_file(f"evaluation-{args.split}"))
    out.print(f"figure:  {model.output.figure_file(f'accuracy-{args.split}.png')}")
    return 0


PART = Command("measure a model on held-out examples", add_arguments, run)
