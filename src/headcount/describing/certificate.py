"""Is every answer right? Sentences and a table on certificates, which come from checking all examples of a task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headcount.describing.blocks import Block, Cell, DataTable, Sentence
from headcount.describing.words import counted, percent

if TYPE_CHECKING:
    from headcount.analysis.exhaustive_check import Certificate
    from headcount.training.evaluation import WrongAnswer

COLUMNS = (
    "model",
    "checked",
    "wrong",
    "smallest margin (logits)",
    "example with this margin",
    "also decoded token by token",
    "rounding error (logits)",
    "examples within rounding error",
    "computed on",
)


def conclusions(certificate: Certificate, title: str, rests_on: str = "") -> list[Sentence]:
    """Return sentences on the verdict, the smallest margin, the effect of rounding, and the machine that was used."""
    return [
        Sentence(_verdict(certificate, title), rests_on),
        Sentence(_margin(certificate), rests_on),
        _rounding(certificate, rests_on),
        Sentence(f"Computed on {_environment(certificate)}.", rests_on),
    ]


def details(certificate: Certificate) -> list[Block]:
    """Return an empty list: a certificate (a check of all examples) is described by sentences, not by tables."""
    return []


def clearest(certificate: Certificate) -> WrongAnswer:
    """Return the wrong answer that a description shows as its example: the first one that was found."""
    return certificate.wrong[0]


def _verdict(certificate: Certificate, title: str) -> str:
    if not certificate.errors:
        return f"Proved: {title} is right on all {certificate.distinct:,} examples of its task."
    share = percent(certificate.errors / certificate.distinct)
    n_wrong = f"{certificate.errors:,} of all {certificate.distinct:,} examples of its task"
    return f"Refuted: {title} is wrong on {n_wrong} ({share})."


def _margin(certificate: Certificate) -> str:
    """Return sentences on how many answers were decoded and, if every answer is right, on the smallest margin."""
    decoded = (
        f"{counted(certificate.decoded, 'answer')} were also decoded token by token, with the same verdict on each."
    )
    if certificate.least_margin is None:
        return decoded
    margin = f"{certificate.least_margin:.2f} logits, on {certificate.tightest}"
    return f"The smallest lead of a right token over the next most likely token is {margin}. {decoded}"


def _rounding(certificate: Certificate, rests_on: str) -> Sentence:
    """Return a sentence on whether another machine, which rounds differently, could reach another verdict."""
    if certificate.float_error is None:
        text = "The effect of rounding is undecided, because the model does not run in double precision for comparison."
        return Sentence(text, rests_on, is_decided=False)
    size = f"at most {certificate.float_error:.1e} logits (n = {certificate.n_recomputed:,})"
    if certificate.undecided:
        text = (
            f"The verdict is undecided for {counted(certificate.undecided, 'example')}: computing in double precision "
        )
        text += f"changes margins by {size}, and their margins are smaller. Another machine may answer otherwise."
        return Sentence(text, rests_on, is_decided=False)
    times = certificate.times_error
    apart = "" if times is None else f", and the smallest margin is about {float(f'{times:.2g}'):,.0f} times that"
    text = f"Rounding changes no verdict: computing in double precision changes margins by {size}{apart}."
    return Sentence(text, rests_on)


def checked_table(certificates: Sequence[tuple[str, Certificate]], name: str, command: str = "") -> DataTable:
    """Return a table of models that were checked on all examples; `certificates` are pairs (model title, outcome)."""
    rows: list[tuple[Cell | str, ...]] = []
    for title, each in certificates:
        margin = Cell("") if each.least_margin is None else Cell(f"{each.least_margin:.2f}", each.least_margin)
        error = Cell("not known") if each.float_error is None else Cell(f"{each.float_error:.1e}", each.float_error)
        errors = Cell(f"{each.errors:,}", each.errors, "strong" if each.errors else "")
        counts = Cell(f"{each.distinct:,}", each.distinct), errors, margin, each.tightest
        decoded, undecided = Cell(f"{each.decoded:,}", each.decoded), Cell(f"{each.undecided:,}", each.undecided)
        rows.append((title, *counts, decoded, error, undecided, _environment(each)))
    return DataTable(
        name, "Models that were checked on all examples of their task", COLUMNS, tuple(rows), command=command
    )


def _environment(certificate: Certificate) -> str:
    """Return the machine and precision of a certificate: `AMD EPYC (cpu, float32, threads: 2, torch 2.13)`."""
    known = certificate.environment
    words = {"device": "", "dtype": "", "threads": "threads: ", "torch": "torch "}
    details = ", ".join(f"{word}{known[key]}" for key, word in words.items() if key in known)
    return f"{known.get('hardware', 'unknown hardware')} ({details})"
