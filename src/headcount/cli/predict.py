"""`headcount predict RUN 374+814`: one answer, and with --without what becomes of it without some heads."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from headcount.cli._output import console, print_json
from headcount.cli._verb import Verb, add_json, add_run_argument, listed

if TYPE_CHECKING:
    from headcount.api import Predicted
    from headcount.runs.asking import Reply


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run and the question."""
    add_run_argument(parser)
    add_json(parser)
    parser.add_argument("example", metavar="EXAMPLE", help="such as 374+814, or '3 5 5 9' for sortedness")
    parser.add_argument(
        "--without",
        metavar="HEAD,...",
        help="also answer with these heads ablated (their outputs set to 0), such as E0H2,X1H1, and tell what changed",
    )


def run(args: argparse.Namespace) -> int:
    """The model's own answer."""
    from headcount import api

    found = api.predict(args.model, args.example, () if args.without is None else listed(args.without))
    if args.json:
        clean = {"example": found.clean.example, **_answer(found.clean), "note": found.clean.note}
        print_json({**clean, **({"without": _without(found)} if found.without else {})})
        return 0
    out = console()
    out.print(f"{found.clean.example} = {found.clean.said}  ({_verdict(found.clean)})")
    if found.without:
        names = ", ".join(head.short for head in found.heads)
        out.print(f"without {names}: {found.without.said}  ({_verdict(found.without)})")
        told = "; ".join(f"{each.position} {each.clean} → {each.without}" for each in found.changed)
        out.print(f"changed: {told or 'nothing in the answer'}")
        out.print("zero ablation: their outputs are set to 0; proven to act at each attention site")
    return 0


def _verdict(reply: Reply) -> str:
    told = f"wrong: {reply.why}" if reply.why else "; ".join(filter(None, ["right", reply.note]))
    return f"{told}; probability {reply.probability:.4f}"


def _answer(reply: Reply) -> dict[str, Any]:
    correct = {"said": reply.said, "right": reply.right, "correct": not reply.why, "why": reply.why}
    return {**correct, "probability": reply.probability}


def _without(found: Predicted) -> dict[str, Any]:
    assert found.without is not None, "asked for"
    changed = [{"position": each.position, "clean": each.clean, "without": each.without} for each in found.changed]
    heads = {"heads": [str(head) for head in found.heads], "ablation": "zero", "proven_sites": found.n_sites}
    return {**heads, **_answer(found.without), "changed": changed}


PART = Verb("answer one example", add_arguments, run)
