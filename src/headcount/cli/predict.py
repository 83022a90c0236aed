"""`headcount predict RUN 374+814`: one answer."""

from __future__ import annotations

import argparse

from headcount.cli._output import console, print_json
from headcount.cli._verb import Verb, add_json, add_run_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run and the question."""
    add_run_argument(parser)
    add_json(parser)
    parser.add_argument("example", metavar="EXAMPLE", help="such as 374+814, or '3 5 5 9' for sortedness")


def run(args: argparse.Namespace) -> int:
    """The model's own answer."""
    from headcount.api._run import loaded

    reply = loaded(args.model).ask(args.example, look=False)
    if args.json:
        said = {"example": reply.example, "said": reply.said, "right": reply.right, "correct": not reply.why}
        print_json({**said, "probability": reply.probability, "note": reply.note})
        return 0
    verdict = f"wrong: {reply.why}" if reply.why else "; ".join(filter(None, ["right", reply.note]))
    console().print(f"{reply.example} = {reply.said}  ({verdict}; probability {reply.probability:.4f})")
    return 0


PART = Verb("answer one example", add_arguments, run)
