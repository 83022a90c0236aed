"""Is every answer right? What a certificate over all examples of a task says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headcount.describing.blocks import Block, Cell, Conclusions, DataTable, Sentence
from headcount.describing.words import counted, percent

if TYPE_CHECKING:
    from headcount.analysis.exhaustive import Certificate
    from headcount.stats import Proportion

SHOWN = 20
"""Wrong answers that a terminal prints; the result file has all of them."""
COLUMNS = (
    "model",
    "checked",
    "wrong",
    "smallest margin (logits)",
    "on",
    "decoded",
    "rounding error (logits)",
    "within rounding error",
    "computed on",
)


def describe(certificate: Certificate) -> list[Block]:
    """Return the conclusions, where they were computed, and the first wrong answers."""
    place = Sentence(f"Computed on {_environment(certificate)}.")
    sentences = Conclusions((*conclusions(certificate, certificate.name), place))
    return [sentences, *wrong_tables("wrong", certificate.wrong, "Wrong answers", SHOWN, certificate.errors)]


def conclusions(
    certificate: Certificate, title: str, rests_on: str = "", tested: Proportion | None = None
) -> list[Sentence]:
    """Say whether every answer is right, how large the smallest margin is, and whether rounding changes a verdict."""
    return [
        verdict(certificate, title, rests_on, tested),
        Sentence(_margin(certificate), rests_on),
        _rounding(certificate, rests_on),
    ]


def verdict(certificate: Certificate, title: str, rests_on: str, tested: Proportion | None) -> Sentence:
    """Say on how many examples a model is wrong, and how many of these a test set shows."""
    if not certificate.errors:
        return Sentence(f"{title} is right on all {certificate.distinct:,} examples of its task.", rests_on)
    share = percent(certificate.errors / certificate.distinct)
    text = f"{title} is wrong on {certificate.errors:,} of all {certificate.distinct:,} examples of its task ({share})"
    if tested is None:
        return Sentence(f"{text}.", rests_on)
    missed = tested.n - tested.correct
    shown = f"{missed:,} of them" if missed else "none of them: a sample misses rare errors"
    return Sentence(f"{text}. Its test set of {tested.n:,} examples shows {shown}.", rests_on)


def _margin(certificate: Certificate) -> str:
    """Give the smallest margin, if every answer is right, and the number of answers that were decoded."""
    decoded = (
        f"{counted(certificate.decoded, 'answer')} were also decoded token by token, with the same verdict on each."
    )
    if certificate.least_margin is None:
        return decoded
    margin = f"{certificate.least_margin:.2f} logits, on {certificate.tightest}"
    return f"The smallest margin of a right token over its best rival is {margin}. {decoded}"


def _rounding(certificate: Certificate, rests_on: str) -> Sentence:
    """Say whether another machine, which rounds differently, could reach another verdict."""
    if certificate.float_error is None:
        text = "The effect of rounding is undecided: the model does not compute in double precision."
        return Sentence(text, rests_on, is_decided=False)
    size = f"at most {certificate.float_error:.1e} logits (n = {certificate.n_recomputed:,})"
    if certificate.undecided:
        text = (
            f"The verdict is undecided for {counted(certificate.undecided, 'example')}: double precision moves margins "
        )
        text += f"by {size}, and these margins are smaller. Another machine may answer otherwise."
        return Sentence(text, rests_on, is_decided=False)
    times = certificate.times_error
    apart = "" if times is None else f", and the smallest margin is about {float(f'{times:.2g}'):,.0f} times that"
    return Sentence(f"Rounding changes no verdict: double precision moves margins by {size}{apart}.", rests_on)


def checked_table(certificates: Sequence[tuple[str, Certificate]], name: str, command: str = "") -> DataTable:
    """Tabulate certificates, each given with the title of its model."""
    rows: list[tuple[Cell | str, ...]] = []
    for title, each in certificates:
        margin = Cell("") if each.least_margin is None else Cell(f"{each.least_margin:.2f}", each.least_margin)
        error = Cell("not known") if each.float_error is None else Cell(f"{each.float_error:.1e}", each.float_error)
        errors = Cell(f"{each.errors:,}", each.errors, "strong" if each.errors else "")
        counts = Cell(f"{each.distinct:,}", each.distinct), errors, margin, each.tightest
        decoded, undecided = Cell(f"{each.decoded:,}", each.decoded), Cell(f"{each.undecided:,}", each.undecided)
        rows.append((title, *counts, decoded, error, undecided, _environment(each)))
    return DataTable(name, "Certificates over all examples", COLUMNS, tuple(rows), command=command)


def wrong_tables(name: str, wrong: Sequence[Any], caption: str, most: int, n_wrong: int) -> list[DataTable]:
    """Tabulate the first wrong answers with what is wrong about them; return no table if there are none."""
    rows = tuple((each.example, each.predicted, each.right, each.explanation) for each in wrong[:most])
    more = f": the first {len(rows)} of {n_wrong:,}" if n_wrong > len(rows) else ""
    columns = ("example", "predicted", "right", "what went wrong")
    return [DataTable(name, f"{caption}{more}", columns, rows)] if rows else []


def _environment(certificate: Certificate) -> str:
    """Write the machine and the precision: `AMD EPYC (cpu, float32, threads: 2, torch 2.13)`."""
    known = certificate.environment
    words = {"device": "", "dtype": "", "threads": "threads: ", "torch": "torch "}
    details = ", ".join(f"{word}{known[key]}" for key, word in words.items() if key in known)
    return f"{known.get('hardware', 'unknown hardware')} ({details})"
