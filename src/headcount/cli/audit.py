"""`headcount audit MODEL...`: every known way of fooling oneself, looked for unasked."""

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
from headcount.cli._output import Line, Output, course_output
from headcount.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The models, and which checks."""
    add_models_argument(parser)
    add_json(parser, quiet=True)
    parser.add_argument("--markdown", action="store_true", help="print feedback as Markdown instead of a table")
    add_out(parser, "write feedback files into this folder: one for each student, and _summary.md")
    chosen = "run these checks only, by id or name, such as HC101,HC201"
    parser.add_argument("--only", type=comma_list, metavar="LIST", help=chosen)
    why = 'ignore a check, by id or name, and say why: HC403="classes are skewed on purpose"'
    parser.add_argument("--ignore", action="append", default=[], metavar="ID=REASON", help=why)
    add_int(parser, "--n", "number of test examples [all]")
    add_timeout(parser)


def run(args: argparse.Namespace) -> Output:
    """The cause in one line, then a table of checks; of several models, a row for each. Exit code 1 if any fails."""
    from headcount import api
    from headcount.describing.audit import audit_markdown, audit_notes, audit_tables
    from headcount.figures.training import common_error_note

    names, how = all_models(args.models), {"n": args.n, "only": args.only, "ignore": _reasons(args.ignore)}
    if args.out is not None:
        api.require_feedback_folder(args.out, names)
    if len(names) > 1 or args.out is not None:
        return _course(names, args, how)
    saved = api.audit(names[0], save=True, quiet=args.quiet or args.json, run_adapter=args.run_adapter, **how)
    found = saved.result
    lines: list[Line] = [
        found.summary,
        common_error_note(found.common_error),
        *audit_tables(found),
        *audit_notes(found),
    ]
    lines = [audit_markdown(found)] if args.markdown else lines
    return Output(found, lines, () if args.markdown else [saved], 0 if found.is_sound else 1)


def _course(names: list[str], args: argparse.Namespace, how: dict[str, Any]) -> Output:
    """A summary, then a row for each model; goes on past a broken one."""
    from headcount import api
    from headcount.describing.audit import course_summary, course_table, feedback_markdown

    clock = {"timeout": args.timeout, "quiet": args.quiet or args.json}
    course, code = course_output(lambda: api.audit_all(names, save=True, run_adapter=args.run_adapter, **clock, **how))
    found = {each.label: each.outcome for each in course.values()}
    files = api.write_feedback(course, args.out) if args.out is not None else ()
    lines: list[Line] = [*course_summary(found)]
    if args.markdown and not files:
        lines += [feedback_markdown(each.label, each.outcome, each.name, each.output) for each in course.values()]
    else:
        lines.append(course_table(found))
        lines += [f"{each.label}: {each.error}" for each in course.values() if each.error]
    lines += [f"feedback: {files[0]} and {len(files) - 1:,} files beside it"] if files else []
    models = [
        {
            "name": each.name,
            "submission": each.label,
            "audit": each.result and each.result.to_dict(),
            "error": each.error and str(each.error),
            "output": each.output,
        }
        for each in course.values()
    ]
    is_sound = all(each.result is not None and each.result.is_sound for each in course.values())
    saved = () if args.markdown else [each.saved for each in course.values() if each.saved]
    data = {"summary": course_summary(found), "models": models, "feedback": list(map(str, files))}
    return Output(data, lines, saved, code or (0 if is_sound else 1))


def _reasons(given: list[str]) -> dict[str, str]:
    """`HC403=why`, each once."""
    for text in given:
        if "=" not in text:
            raise InputError(f"--ignore {text}: no reason is given", f'say why: --ignore {text}="classes are skewed"')
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
