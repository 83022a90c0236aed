"""`headcount audit MODEL...`: every known way of fooling oneself, looked for unasked."""

import argparse

from headcount.cli._command import Command, add_int, add_json, add_models_argument, all_models, comma_list
from headcount.cli._output import Line, Output
from headcount.errors import HeadcountError, InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The models, and which checks."""
    add_models_argument(parser)
    add_json(parser, quiet=True)
    add_int(parser, "--n", "examples of the test set that are looked at [all]")
    some = "these checks alone, by id or name: HC101,HC201"
    parser.add_argument("--only", type=comma_list, metavar="LIST", help=some)
    why = 'a check that finds no fault here, by id or name, and why: HC403="classes are skewed on purpose"'
    parser.add_argument("--ignore", action="append", default=[], metavar="ID=REASON", help=why)
    parser.add_argument("--markdown", action="store_true", help="print feedback as Markdown instead of a table")


def run(args: argparse.Namespace) -> Output:
    """The cause in one line, then a table of checks; of several models, a row for each. Exit code 1 if any fails."""
    from headcount import api
    from headcount.views.audit import audit_markdown, audit_notes, audit_tables, course_table

    names, how = all_models(args.models), {"n": args.n, "only": args.only, "ignore": _reasons(args.ignore)}
    quiet = args.quiet or args.json
    if len(names) == 1:
        saved = api.audit(names[0], save=True, quiet=quiet, run_adapter=args.run_adapter, **how)
        found = saved.result
        lines: list[Line] = [found.summary, *audit_tables(found), *audit_notes(found)]
        lines = [audit_markdown(found)] if args.markdown else lines
        return Output(found, lines, () if args.markdown else [saved], 0 if found.is_sound else 1)
    every = api.audit_all(names, save=True, quiet=quiet, run_adapter=args.run_adapter, **how)
    results = {name: each if isinstance(each, HeadcountError) else each.result for name, each in every.items()}
    models = [
        {"name": name, "audit": None, "error": str(each)}
        if isinstance(each, HeadcountError)
        else {"name": name, "audit": each.to_dict(), "error": None}
        for name, each in results.items()
    ]
    sound = all(not isinstance(each, HeadcountError) and each.is_sound for each in results.values())
    notes = [f"{name}: {each}" for name, each in results.items() if isinstance(each, HeadcountError)]
    if args.markdown:
        feedback = [audit_markdown(each) for each in results.values() if not isinstance(each, HeadcountError)]
        return Output({"models": models}, [*feedback, *notes], exit_code=0 if sound else 1)
    saved_all = [each for each in every.values() if not isinstance(each, HeadcountError)]
    return Output({"models": models}, [course_table(results), *notes], saved_all, 0 if sound else 1)


def _reasons(given: list[str]) -> dict[str, str]:
    """`HC403=why`, each once."""
    for text in given:
        if "=" not in text:
            raise InputError(f"--ignore {text}: no reason is given", f'say why: --ignore {text}="classes are skewed"')
    pairs = (text.partition("=") for text in given)
    return {name.strip(): reason.strip() for name, _, reason in pairs}


PART = Command("look for every known way of fooling oneself", add_arguments, run)
