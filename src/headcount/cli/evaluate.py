"""`headcount evaluate RUN`: how good a model is on a held-out set."""

import argparse

from headcount.cli._command import Command, add_json, add_run_argument
from headcount.cli._output import Output, wrong_lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run and the set."""
    add_run_argument(parser)
    add_json(parser)
    parser.add_argument("--split", choices=["test", "validation"], default="test", help="which held-out set [test]")


def run(args: argparse.Namespace) -> Output:
    """A table by group, and what is wrong."""
    from headcount import api
    from headcount.views.training import accuracy_table, answers_note

    model = api.open_run(args.model, "evaluate")
    found, output = api.evaluate(model, args.split), model.output
    wrong = wrong_lines(found.wrong, output.result_file(f"evaluation-{args.split}"))
    figure = f"figure:  {output.figure_file(f'accuracy-{args.split}.png')}"
    return Output(found, [accuracy_table(found), answers_note(found), *wrong, figure])


PART = Command("measure a model on held-out examples", add_arguments, run)
