"""`headcount adapt FILE.py:Class`: write a first adapter (a Python file that connects your own model to headcount).

The model may also be a Hugging Face folder of a family that headcount does not know.
"""

import argparse
from pathlib import Path

from headcount.cli._command import Command, add_json
from headcount.cli._output import Output, print_error
from headcount.errors import argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `adapt`: the class, its weights, and the file to write."""
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
    """Write the adapter, and list the probable output projections and what is left to do."""
    from headcount.describing.blocks import DataTable
    from headcount.external.scaffold import write_scaffold

    scaffold = write_scaffold(args.model, args.out, args.checkpoint, say=print_error)
    caption = f"Probable output projections in {scaffold.name}: check them"
    rows = tuple(
        (guess.role, guess.pattern, str(guess.n_layers), str(guess.n_heads or "?")) for guess in scaffold.guesses
    )
    table = DataTable("projections", caption, ("role", "path", "layers", "heads each"), rows)
    heads, guesses = [str(head) for head in scaffold.heads], [vars(guess) for guess in scaffold.guesses]
    return Output(
        {"file": str(scaffold.file), "guesses": guesses, "heads": heads, "notes": list(scaffold.notes)},
        [
            table,
            *(f"to do:   {note}" for note in scaffold.notes),
            f"heads:   {len(heads)}, {scaffold.heads[0].short} to {scaffold.heads[-1].short}" if heads else "",
            f"written: {scaffold.file}; "
            + ("it is ready:" if scaffold.reads_files else "fill in what is marked TODO there, then"),
            f"         headcount ablate {argument(f'{scaffold.file}:Model')}" + " --data FILE" * scaffold.reads_files,
        ],
    )


PART = Command(
    "write a first adapter for your own model",
    add_arguments,
    run,
    ("headcount adapt my_model.py:MyModel --checkpoint weights.pth", "headcount adapt my-hf-model -o my_adapter.py"),
)
