"""`headcount adapt FILE.py:Class`: a first adapter for a model of your own, by what its class looks like.

Or for a folder of a Hugging Face model, of a family that headcount does not know.
"""

import argparse
from pathlib import Path

from rich.table import Table

from headcount.cli._command import Command, add_json
from headcount.cli._output import Output, print_error
from headcount.errors import argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The class, its weights, and the file to write."""
    parser.add_argument(
        "model",
        metavar="FILE.py:Class",
        help="a file (or package.module) and the name of a torch.nn.Module class, or of a function that builds the "
        "model; or a Hugging Face folder",
    )
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="trained weights, such as adder.pth")
    written = "the file to write [my_adapter.py]"
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", default=Path("my_adapter.py"), help=written)
    add_json(parser)


def run(args: argparse.Namespace) -> Output:
    """Write it, and say what it finds."""
    from headcount.external.scaffold import write_scaffold

    made = write_scaffold(args.model, args.out, args.checkpoint, say=print_error)
    title = f"what looks like output projections in {made.name}: check it"
    table = Table("role", "path", "layers", "heads each", title_justify="left", title=title)
    for guess in made.guesses:
        table.add_row(guess.role, guess.pattern, str(guess.n_layers), str(guess.n_heads or "?"))
    heads, guesses = [str(head) for head in made.heads], [vars(guess) for guess in made.guesses]
    return Output(
        {"file": str(made.file), "guesses": guesses, "heads": heads, "notes": list(made.notes)},
        [
            table,
            *(f"to do:   {note}" for note in made.notes),
            f"heads:   {len(heads)}, {made.heads[0].short} to {made.heads[-1].short}" if heads else "",
            f"written: {made.file}; "
            + ("it is ready:" if made.reads_files else "fill in what is marked TODO there, then"),
            f"         headcount ablate {argument(f'{made.file}:Model')}" + " --data FILE" * made.reads_files,
        ],
    )


PART = Command(
    "write a first adapter for your own model",
    add_arguments,
    run,
    ("headcount adapt my_model.py:MyModel --checkpoint weights.pth", "headcount adapt my-hf-model -o my_adapter.py"),
)
