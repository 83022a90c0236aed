"""`headcount evaluate MODEL...`: measure the accuracy of models on a held-out set of their task."""

import argparse

from headcount.cli._command import Command, add_json, add_models_argument, add_timeout, all_models
from headcount.cli._output import Line, Output, course_output, wrong_lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the models and the held-out set."""
    add_models_argument(parser)
    add_json(parser, quiet=True)
    parser.add_argument("--split", choices=["test", "validation"], default="test", help="held-out set (default: test)")
    add_timeout(parser)


def run(args: argparse.Namespace) -> Output:
    """Describe the accuracy of one model by group, or tabulate several models."""
    from headcount import api
    from headcount.describing.evaluation import describe

    names = all_models(args.models)
    if len(names) > 1:
        return _survey(names, args)
    model = api.open_on_task(names[0], run_adapter=args.run_adapter)
    evaluation = api.evaluate(model, args.split, save=True)
    wrong = wrong_lines(evaluation.wrong, model.output.result_file(f"evaluation-{args.split}"))
    figure = f"figure:  {model.output.figure_file(f'accuracy-{args.split}.png')}"
    return Output(evaluation, [*describe(evaluation, model.name), *wrong, figure])


def _survey(names: list[str], args: argparse.Namespace) -> Output:
    """Measure several models; a broken one becomes a note, and exit code 1."""
    from headcount import api
    from headcount.describing.evaluation import describe_several

    clock = {"timeout": args.timeout, "quiet": args.quiet or args.json}
    course, code = course_output(
        lambda: api.evaluate_all(names, args.split, save=True, run_adapter=args.run_adapter, **clock)
    )
    outcomes = [(each.label, each.outcome) for each in course.values()]
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
    lines: list[Line] = [*describe_several(outcomes, args.split), *notes]
    return Output({"models": models}, lines, exit_code=code or (1 if notes else 0))


PART = Command("measure the accuracy of models on held-out examples", add_arguments, run)
