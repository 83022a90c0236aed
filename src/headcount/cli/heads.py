"""`headcount heads RUN`: list a model's heads, or draw where they look."""

from __future__ import annotations

import argparse

from rich.table import Table

from headcount.cli._output import console, print_json
from headcount.cli._verb import Verb, add_json, add_run_argument
from headcount.heads import HeadId


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run, and what to look at."""
    add_run_argument(parser)
    add_json(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--on", metavar="EXAMPLE", help="draw every head on one example, such as 374+814")
    what.add_argument("--all-test", action="store_true", help="draw every head on average over the test set")


def run(args: argparse.Namespace) -> int:
    """A list of names, or pictures and numbers."""
    from headcount import api, load

    model = load(args.model)
    if args.on is None and not args.all_test:
        return _list(model.model.heads, args.json)
    shown = api.show_heads(model, on=args.on)
    if args.json:
        files = {"data": str(shown.data), "pictures": [str(path) for path in shown.pages + shown.pictures]}
        print_json({**shown.patterns.to_dict(), "files": files})
        return 0
    out = console()
    out.print(shown.patterns.title)
    for page in shown.pages:
        out.print(f"  {page}")
    out.print(f"  one picture per head ({len(shown.pictures)}): {shown.pictures[0].parent}")
    out.print(f"  numbers: {shown.data}")
    return 0


def _list(heads: tuple[HeadId, ...], as_json: bool) -> int:
    if as_json:
        print_json({"heads": [{"head": str(head), "short": head.short} for head in heads]})
        return 0
    table = Table("site", "heads")
    for site in dict.fromkeys(head.site for head in heads):
        table.add_row(str(site), "  ".join(head.short for head in heads if head.site == site))
    console().print(table)
    return 0


PART = Verb("list a model's heads, or draw where they look", add_arguments, run)
