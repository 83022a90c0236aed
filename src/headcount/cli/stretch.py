"""`headcount stretch RUN...`: how far beyond its training lengths a classifier is still right."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from headcount.cli._command import Command, add_json, add_quiet, comma_list, folder_name, numbers
from headcount.cli._output import console, files_of, print_files, print_json

HOW_MANY = "[1000; 200 beyond length 1024 unless attention has a window]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The runs, and what to try them on."""
    parser.add_argument("models", metavar="RUN", nargs="+", help="run folders, or sample:sortedness")
    parser.add_argument("--lengths", metavar="INT,...", help="lengths to try [8,12,16,32,64,...,4096]")
    parser.add_argument("--negatives", metavar="KIND,...", help="kinds of unsorted example to try [all four]")
    parser.add_argument("--n", type=int, metavar="INT", help=f"examples per length and kind {HOW_MANY}")
    parser.add_argument(
        "--draw",
        type=int,
        metavar="INT",
        help="which draw of fresh sequences [0; recipes were chosen on 0, docs use 1]",
    )
    parser.add_argument("--batch-size", type=int, metavar="INT", help="examples per forward pass [by their length]")
    parser.add_argument(
        "-o", "--out", type=folder_name, metavar="DIR", help="where a figure of several runs goes [runs/stretch]"
    )
    add_json(parser)
    add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    """A table per run, and curves."""
    from headcount import api
    from headcount.views.length_generalisation import ids_note, stretch_tables

    shown = api.stretch(
        *args.models,
        lengths=None if args.lengths is None else numbers(args.lengths),
        negatives=None if args.negatives is None else comma_list(args.negatives),
        n=args.n,
        batch_size=args.batch_size,
        draw=args.draw,
        out=args.out,
        quiet=args.quiet,
    )
    if args.json:
        cells = [{"name": each.name, **asdict(cell)} for each in shown.result for cell in each.cells]
        print_json({"cells": cells, "runs": [each.to_dict() for each in shown.result], "files": files_of(shown)})
        return 0
    out = console()
    for each in shown.result:
        for table in stretch_tables(each):
            out.print(table)
        if each.refused_lengths:
            out.print(f"{each.name} refuses these lengths: {', '.join(map(str, each.refused_lengths))}")
        if note := ids_note(each):
            out.print(note)
    print_files(out, shown)
    return 0


PART = Command("measure how far beyond its training lengths a classifier reaches", add_arguments, run)
