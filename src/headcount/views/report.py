"""The report of a lab, as Markdown with pictures beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headcount.views.accuracy import accuracy_rows

if TYPE_CHECKING:
    from headcount.analysis.exhaustive import Certificate
    from headcount.training.evaluation import Evaluation, WrongAnswer

SHOWN = 50
"""Wrong answers listed; all of them are in the result file."""


def write_report(
    run: str,
    evaluation: Evaluation,
    certificate: Certificate,
    pictures: Mapping[str, Sequence[Path]],
    folder: Path,
) -> str:
    """The text; picture paths are relative to `folder`."""
    parts = [
        "# headcount lab: addition",
        f"Run `{run}`, weights `{certificate.model[:16]}`.",
        "## Is it right?",
        verdict(certificate),
        f"On the {evaluation.split} set, which it never saw (95 % Wilson intervals):",
        _table(["group", "n", "teacher-forced", "free-running"], accuracy_rows(evaluation)),
        "For a sound model the two columns agree on exact match: fed the right prefix, the first wrong digit is the "
        "same either way. A gap would be a fault in the pipeline.",
        *_wrong(certificate.wrong),
    ]
    for title, files in pictures.items():
        parts += [f"## {title}", *(f"![{f.stem}]({f.relative_to(folder).as_posix()})" for f in files)]
    parts += [
        "## Go on",
        f"    headcount predict {run} 374+814\n    headcount heads {run} --on 999+1\n    headcount verify {run}",
    ]
    return "\n\n".join(parts) + "\n"


def verdict(certificate: Certificate) -> str:
    """One paragraph: is every answer right, and how do we know?"""
    decoded = f"{certificate.decoded:,} of them were also decoded for real, with the same verdict on each."
    if certificate.errors:
        return f"{certificate.total:,} sums checked, {certificate.errors:,} wrong. {decoded}"
    return (
        f"{certificate.total:,} sums checked, every one right. {decoded} The narrowest win of a right digit over its "
        f"best rival was {certificate.least_margin:.2f} logits, on {certificate.tightest}."
    )


def _wrong(wrong: Sequence[WrongAnswer]) -> list[str]:
    if not wrong:
        return []
    more = f"The first {SHOWN} of {len(wrong):,}." if len(wrong) > SHOWN else ""
    rows = [(w.example, w.said, w.right, w.why) for w in wrong[:SHOWN]]
    return ["### What it gets wrong", _table(["sum", "said", "right", "what went wrong"], rows), more]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
