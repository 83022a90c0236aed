"""`headcount predict MODEL 374+814`: answer one example, also with some heads ablated."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from headcount.cli._command import Command, add_json, add_model_argument, comma_list
from headcount.cli._output import Output

if TYPE_CHECKING:
    from headcount.runs.run import Prediction


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `predict`: the model, the example and the heads to ablate."""
    add_model_argument(parser)
    parser.add_argument("example", metavar="EXAMPLE", help="an example of the task, such as 374+814 or '3 5 5 9'")
    without = "also answer with these heads zero-ablated, such as E0H2,X1H1, and show what changes"
    parser.add_argument("--without", type=comma_list, default=(), metavar="HEAD,...", help=without)
    add_json(parser)


def run(args: argparse.Namespace) -> Output:
    """Answer one example and, with `--without`, answer it again with some heads ablated; print both answers."""
    from headcount import api

    result = api.predict(args.model, args.example, args.without, run_adapter=args.run_adapter)
    clean, without = result.clean, result.without
    data = {"example": clean.example, **_answer(clean), "note": clean.note}
    lines = [f"{clean.example}{clean.sign}{clean.predicted}  ({_verdict(clean)})"]
    if without:
        heads = {"heads": [str(head) for head in result.heads], "ablation": "zero", "proven_sites": result.n_sites}
        data["without"] = {**heads, **_answer(without), "changed": [vars(each) for each in result.changes]}
        names = ", ".join(head.short for head in result.heads)
        changes = "; ".join(f"{each.position} {each.clean} → {each.without}" for each in result.changes)
        lines += [
            f"without {names}: {without.predicted}  ({_verdict(without)})",
            f"changed: {changes or 'nothing in the answer'}",
            "zero ablation: the outputs of these heads are set to zero, verified at each attention block",
        ]
    return Output(data, lines)


def _verdict(prediction: Prediction) -> str:
    if prediction.explanation:
        verdict = f"wrong: {prediction.explanation}"
    else:
        known = "right" if prediction.right else "the right answer is not known"
        verdict = "; ".join(filter(None, (known, prediction.note)))
    return verdict if prediction.probability is None else f"{verdict}; probability {prediction.probability:.4f}"


def _answer(prediction: Prediction) -> dict[str, Any]:
    return {
        "predicted": prediction.predicted,
        "right": prediction.right or None,
        "correct": not prediction.explanation if prediction.right else None,
        "explanation": prediction.explanation,
        "probability": prediction.probability,
    }


PART = Command(
    "answer one example",
    add_arguments,
    run,
    ("headcount predict sample:addition 374+814", "headcount predict sample:addition 999+100 --without E0H2"),
)
