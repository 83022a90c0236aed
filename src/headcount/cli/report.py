"""`headcount report MODEL... -o report.html`: write a report about models, one HTML file that opens offline."""

import argparse
from pathlib import Path

from headcount.cli._command import Command, add_data, add_int, add_json, add_models_argument, all_models, keywords
from headcount.cli._output import Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `report`: the models, the file to write, and other forms of the report."""
    add_models_argument(parser)
    page = "the HTML file to write [report.html]"
    parser.add_argument("-o", "--out", metavar="FILE", default="report.html", help=page)
    thorough = "measure everything, however long it takes [only what fits into a minute, the most important first]"
    parser.add_argument("--thorough", action="store_true", help=thorough)
    stored = "use the results stored with the models; measure a missing one only if that takes seconds"
    parser.add_argument("--stored", action="store_true", help=stored)
    add_data(parser)
    text = "an example of the task, or a text, whose attention is shown first; repeatable"
    parser.add_argument("--on", action="append", metavar="TEXT", default=[], help=text)
    add_int(parser, "--examples", "number of examples whose attention the reader can look at", 200)
    parser.add_argument("--markdown", action="store_true", help="also write Markdown, with figures as PNG and SVG")
    parser.add_argument("--latex", action="store_true", help="also write every table as LaTeX")
    files = "also write the files that the exercise asks for, and answers.md, into this folder"
    parser.add_argument("--exercise", metavar="DIR", help=files)
    live = "write only the part of the page that runs the models: readers type an example and switch heads off"
    parser.add_argument("--live-only", action="store_true", help=live)
    parser.add_argument("--title", metavar="TEXT", default="", help="title of the report [the names of the models]")
    force = "overwrite files that headcount did not write"
    parser.add_argument("--force", action="store_true", help=force)
    add_json(parser, quiet=True)


def run(args: argparse.Namespace) -> Output:
    """Write the report, and print the paths of its files."""
    from headcount import api

    settings = keywords(args, "models", "examples", "quiet")
    quiet = args.quiet or args.json
    files = api.report(*all_models(args.models), n_examples=args.examples, quiet=quiet, **settings)
    page = files[0]
    size = f"{Path(page).stat().st_size / 1e6:.1f} MB"
    others = [f"{len(files) - 1:,} more files beside it: {files[1].parent}"] if len(files) > 1 else []
    return Output({"files": [str(file) for file in files]}, [f"report: {page} ({size}, opens offline)", *others])


PART = Command(
    "write a report about models: one HTML file that opens offline",
    add_arguments,
    run,
    (
        "headcount report sample:addition -o report.html",
        "headcount report runs/addition-0 runs/sortedness-0 --thorough",
        "headcount report sample:addition --live-only -o try-it.html",
        "headcount report sample:addition --exercise handed-in",
    ),
)
