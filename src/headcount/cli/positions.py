"""`headcount positions RUN`: what a model knows of positions, and whether it goes on past the trained ones."""

from __future__ import annotations

import argparse

from headcount.cli._command import Command, add_json, add_run_argument
from headcount.cli._output import console, files_of, print_files, print_json


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
        print_json({**shown.result.to_dict(), "files": files_of(shown)})
        return 0
    out = console()
    out.print(positions_table(shown.result))
    print_files(out, shown)
    return 0


PART = Command("show what a model knows of positions, and whether it goes on past the trained ones", add_arguments, run)
