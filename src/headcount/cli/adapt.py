"""`headcount adapt FILE.py:Class`: a first adapter for a model of your own, by what its class looks like."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from headcount.cli._command import Command, add_json
from headcount.cli._output import console, print_error, print_json
from headcount.errors import argument

if TYPE_CHECKING:
    from headcount.external.scaffold import Scaffold


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The class, its weights, and the file to write."""
    parser.add_argument("model", metavar="FILE.py:Class", help="the file and the class of a torch.nn.Module")
    parser.add_argument("--checkpoint", metavar="FILE", help="its trained weights, such as adder.pth")
    parser.add_argument("-o", "--out", metavar="FILE", default="my_adapter.py", help="a new file [my_adapter.py]")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Write it, and say what it finds."""
    from headcount.external.scaffold import write_scaffold

    checkpoint = None if args.checkpoint is None else Path(args.checkpoint)
    made = write_scaffold(args.model, Path(args.out), checkpoint, say=print_error)
    if args.json:
        guesses = [vars(guess) for guess in made.guesses]
        heads, notes = [str(head) for head in made.heads], list(made.notes)
        print_json({"file": str(made.file), "guesses": guesses, "heads": heads, "notes": notes})
        return 0
    out = console()
    out.print(_table(made))
    for note in made.notes:
        out.print(f"to do:   {note}")
    if made.heads:
        out.print(f"heads:   {len(made.heads)}, {made.heads[0].short} to {made.heads[-1].short}")
    out.print(f"written: {made.file}; fill in what is marked TODO there, then")
    out.print(f"         headcount ablate {argument(f'{made.file}:Model')}")
    return 0


def _table(made: Scaffold) -> Table:
    title = f"what looks like output projections in {made.name}: check it"
    table = Table("role", "path", "layers", "heads each", title_justify="left", title=title)
    for guess in made.guesses:
        table.add_row(guess.role, guess.pattern, str(guess.n_layers), str(guess.n_heads or "?"))
    return table


PART = Command("write a first adapter for a model of your own", add_arguments, run)
