"""`headcount evaluate MODEL...`: how good models are on a held-out set of their task."""

import argparse

from headcount.cli._command import Command, add_json, add_models_argument, add_timeout, all_models
from headcount.cli._output import Line, Output, course_output, wrong_lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The models and the set."""
    add_models_argument(parser)
    add_json(parser, quiet=True)
    split = "which held-out examples to use [test]"
    parser.add_argument("--split", choices=["test", "validation"], default="test", help=split)
    add_timeout(parser)


def run(args: argparse.Namespace) -> Output:
    """A table by group, and what is wrong; of several models, a row for each."""
    from headcount import api
    from headcount.figures.training import accuracy_table, evaluation_notes

    names = all_models(args.models)
    if len(names) > 1:
        return _survey(names, args)
    model = api.open_on_task(names[0], run_adapter=args.run_adapter)
    found = api.evaluate(model, args.split, save=True)
    wrong = wrong_lines(found.wrong, model.output.result_file(f"evaluation-{args.split}"))
    figure = f"figure:  {model.output.figure_file(f'accuracy-{args.split}.png')}"
    return Output(found, [accuracy_table(found), *evaluation_notes(found), *wrong, figure])


def _survey(names: list[str], args: argparse.Namespace) -> Output:
    """Goes on past a broken one; exit code 1 if there is any."""
    from headcount import api
    from headcount.figures.training import survey_summary, survey_table

    clock = {"timeout": args.timeout, "quiet": args.quiet or args.json}
    course, code = course_output(
        lambda: api.evaluate_all(names, args.split, save=True, run_adapter=args.run_adapter, **clock)
    )
    found = {each.label: each.outcome for each in course.values()}
    models = [
        {
            "name": each.name,
            "submission": each.label,
            "evaluation": each.result and each.result.to_dict(),
            "error": each.error and str(each.error),
            "output": each.output,
        }
        for each in course.values()
    ]
    notes = [f"{each.name}: {each.error}" for each in course.values() if each.error]
    lines: list[Line] = [*survey_summary(found), survey_table(found, args.split), *notes]
    return Output({"models": models}, lines, exit_code=code or (1 if notes else 0))


PART = Command(
    "measure the accuracy of models on held-out examples",
    add_arguments,
    run,
    ("headcount evaluate sample:addition", "headcount evaluate 'submissions/*/my_adapter.py:Model'"),
)
