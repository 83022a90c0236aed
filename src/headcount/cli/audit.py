"""`headcount audit MODEL...`: check models and their results for known mistakes."""

import argparse
from typing import Any

from headcount.cli._command import (
    Command,
    add_int,
    add_json,
    add_models_argument,
    add_out,
    add_timeout,
    all_models,
    comma_list,
)
from headcount.cli._exit_codes import of_failures
from headcount.cli._output import Line, Output, course_output, submission_json
from headcount.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `audit`: the models, the checks, and the form of the output."""
    add_models_argument(parser)
    chosen = "run these checks only, by id or name, such as HC101,HC201"
    parser.add_argument("--only", type=comma_list, metavar="LIST", help=chosen)
    why = 'ignore a check, by id or name, and say why: HC403="classes are skewed on purpose"'
    parser.add_argument("--ignore", action="append", default=[], metavar="ID=REASON", help=why)
    add_int(parser, "--n", "number of test examples [all]")
    add_out(parser, "write feedback files into this folder: one for each student, and _summary.md")
    parser.add_argument("--markdown", action="store_true", help="print feedback as Markdown instead of a table")
    add_json(parser, quiet=True)
    add_timeout(parser)


def run(args: argparse.Namespace) -> Output:
    """Audit one model, or several as a course; exit code 1 if a check fails."""
    from headcount import api
    from headcount.describing.sections.audit import audit_page, describe
    from headcount.rendering.markdown import report_text

    names, settings = all_models(args.models), {"n": args.n, "only": args.only, "ignore": _reasons(args.ignore)}
    if args.out is not None:
        api.require_feedback_folder(args.out, names)
    if len(names) > 1 or args.out is not None:
        return _course(names, args, settings)
    saved = api.audit(names[0], save=True, quiet=args.quiet or args.json, run_adapter=args.run_adapter, **settings)
    code = of_failures(not saved.result.is_sound)
    if args.markdown:
        return Output(saved.result, [report_text(audit_page(saved.result))], exit_code=code)
    return Output(saved.result, describe(saved.result), [saved], code)


def _course(names: list[str], args: argparse.Namespace, settings: dict[str, Any]) -> Output:
    """Audit several models, such as the submissions of a course; return one table. A failing model stops no other."""
    from headcount import api
    from headcount.describing.sections.audit import course_summary, course_table, feedback_page
    from headcount.rendering.markdown import report_text

    limits = {"timeout": args.timeout, "quiet": args.quiet or args.json}
    course, code = course_output(
        lambda: api.audit_all(names, save=True, run_adapter=args.run_adapter, **limits, **settings)
    )
    outcomes = {submission.label: submission.outcome for submission in course.values()}
    files = api.write_feedback(course, args.out) if args.out is not None else ()
    lines: list[Line] = [*course_summary(outcomes)]
    if args.markdown and not files:
        pages = [feedback_page(each.label, each.outcome, each.name, each.output) for each in course.values()]
        lines += map(report_text, pages)
    else:
        lines.append(course_table(outcomes))
        lines += [f"{submission.label}: {submission.error}" for submission in course.values() if submission.error]
    lines += [f"feedback: {files[0]} and {len(files) - 1:,} files beside it"] if files else []
    models = [submission_json(submission, "audit") for submission in course.values()]
    is_sound = all(submission.result is not None and submission.result.is_sound for submission in course.values())
    saved = () if args.markdown else [submission.saved for submission in course.values() if submission.saved]
    data = {"summary": course_summary(outcomes), "models": models, "feedback": list(map(str, files))}
    return Output(data, lines, saved, of_failures(not is_sound, interrupted=code))


def _reasons(given: list[str]) -> dict[str, str]:
    """Return the user's reason for each ignored check, read from texts such as `HC403=classes are skewed`."""
    for text in given:
        if "=" not in text:
            raise InputError(f"--ignore {text} gives no reason", f'give one: --ignore {text}="classes are skewed"')
    pairs = (text.partition("=") for text in given)
    return {name.strip(): reason.strip() for name, _, reason in pairs}


PART = Command(
    "check a model and its results for known mistakes",
    add_arguments,
    run,
    (
        "headcount audit sample:addition",
        "headcount audit my_adapter.py:Model --markdown",
        "headcount audit 'submissions/*/my_adapter.py:Model' -o feedback",
    ),
)
