"""`headcount evaluate MODEL...`: measure the accuracy of models on a held-out set of their task."""

import argparse

from headcount.cli._command import Command, add_json, add_models_argument, add_timeout, all_models
from headcount.cli._exit_codes import of_failures
from headcount.cli._output import Line, Output, course_output, submission_json, verification_line, wrong_lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `evaluate`: the models and the held-out set."""
    add_models_argument(parser)
    split = "which held-out examples to use [test]"
    parser.add_argument("--split", choices=["test", "validation"], default="test", help=split)
    add_json(parser, quiet=True)
    add_timeout(parser)


def run(args: argparse.Namespace) -> Output:
    """Describe the accuracy of one model by group of examples, or return a table of several models."""
    from headcount import api
    from headcount.describing.evaluation import describe

    names = all_models(args.models)
    if len(names) > 1:
        return _survey(names, args)
    model = api.open_on_task(names[0], run_adapter=args.run_adapter)
    evaluation = api.evaluate(model, args.split, save=True)
    wrong = wrong_lines(evaluation.wrong, model.output.result_file(f"evaluation-{args.split}"))
    figure = f"figure:  {model.output.figure_file(f'accuracy-{args.split}.png')}"
    return Output(evaluation, [*describe(evaluation, model.name), *wrong, *verification_line(model), figure])


def _survey(names: list[str], args: argparse.Namespace) -> Output:
    """Measure several models, and return one table; a model that fails has a note in its row and sets exit code 1."""
    from headcount import api
    from headcount.describing.evaluation import describe_several

    limits = {"timeout": args.timeout, "quiet": args.quiet or args.json}
    course, code = course_output(
        lambda: api.evaluate_all(names, args.split, save=True, run_adapter=args.run_adapter, **limits)
    )
    outcomes = [(submission.label, submission.outcome) for submission in course.values()]
    models = [submission_json(submission, "evaluation") for submission in course.values()]
    notes = [f"{submission.name}: {submission.error}" for submission in course.values() if submission.error]
    lines: list[Line] = [*describe_several(outcomes, args.split), *notes]
    return Output({"models": models}, lines, exit_code=of_failures(notes, interrupted=code))


PART = Command(
    "measure the accuracy of models on held-out examples",
    add_arguments,
    run,
    ("headcount evaluate sample:addition", "headcount evaluate 'submissions/*/my_adapter.py:Model'"),
)
