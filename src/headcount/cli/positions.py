"""`headcount positions RUN`: what a model knows of positions, and whether it goes on past the trained ones."""

from __future__ import annotations

import argparse

from headcount.cli._output import console, print_files, print_json
from headcount.cli._verb import Verb, add_json, add_run_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run, and how far to look."""
    add_run_argument(parser)
    parser.add_argument("--n", type=int, metavar="INT", help="positions to show [twice as many as were trained]")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """The mathematics in plain words, and where the pictures are."""
    from headcount import api
    from headcount.views.positions import positions_table

    shown = api.show_positions(args.model, args.n)
    if args.json:
        files = {"data": [str(path) for path in shown.data], "pictures": [str(path) for path in shown.pages]}
        print_json({**shown.positions.to_dict(), "files": files})
        return 0
    out = console()
    out.print(positions_table(shown.positions))
    for title, page in zip(("this run", "every encoding side by side"), shown.pages, strict=True):
        out.print(f"  {title}: {page}")
    print_files(out, [], *shown.data)
    return 0


PART = Verb("show what a model knows of positions, and whether it goes on past the trained ones", add_arguments, run)
