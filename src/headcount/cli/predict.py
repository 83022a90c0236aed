"""`headcount predict RUN 374+814`: one answer."""

from __future__ import annotations

import argparse

from headcount.cli._output import console, print_json
from headcount.cli._verb import Verb, add_json, add_run_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run and the question."""
    add_run_argument(parser)
    add_json(parser)
    parser.add_argument("example", metavar="SUM", help="such as 374+814")


def run(args: argparse.Namespace) -> int:
    """The model's own answer, free-running."""
    from headcount import load

    model = load(args.model)
    reply = model.ask(args.example)
    example, said, right = model.task.show(reply.example), *map(model.task.show_tokens, (reply.said, reply.right))
    if args.json:
        print_json(
            {
                "example": example,
                "said": said,
                "right": right,
                "correct": said == right,
                "probability": reply.probability,
            }
        )
        return 0
    verdict = "right" if said == right else f"wrong: {model.task.explain(reply.example, reply.said)}"
    console().print(f"{example} = {said}  ({verdict}; probability {reply.probability:.4f})")
    return 0


PART = Verb("answer one example", add_arguments, run)
