"""Numbers that five reports on the exercise published, and the fault that explains each of them (docs/reports.md)."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from headcount.describing.extrapolation import EXERCISE
from headcount.describing.length_generalisation import LENGTHS
from headcount.stats import Proportion

N_SEQUENCES = 500
"""Number of test sequences per length in the five published reports."""
WRONG_SUMS = {
    "000": "measured on one example, with head h of all six blocks removed at once",
    "001": "teacher-forced, and zeros were not compared; heads removed only one at a time",
    "002": "no start token, and 0 was never a target; heads removed only one at a time",
    "003": "no start token; teacher-forced; heads removed only one at a time",
    "004": "no start token, so only sums below 1000 are right; heads removed only one at a time",
}
ONE_ANSWER = "the model gives one answer to everything: the figure is the share of a class"
THEOREM = "nothing, if the pooling is symmetric: without positions, 50 % is a theorem"
WRONG_SEQUENCES = {
    "000": ("positions were multiplied by 512 / length; the model finds 0 % of adjacent swaps", "not known", THEOREM),
    "001": (
        "beyond the training lengths, it answers “unsorted” to everything",
        "it learned nothing: its loss stayed at ln 2",
        THEOREM,
    ),
    "002": (ONE_ANSWER, ONE_ANSWER, ONE_ANSWER),
    "003": (ONE_ANSWER, ONE_ANSWER, THEOREM),
    "004": (ONE_ANSWER, ONE_ANSWER, ONE_ANSWER),
}
"""Maps each report to the faults of its sortedness models, one per encoding in the order of `EXERCISE`."""
OLDER = ("000", "001")
"""Published reports whose unsorted sequences are full shuffles; the others use random transpositions."""
TOGETHER = {"004": 0.0}
"""Maps a published report to the accuracy without all heads that it calls prunable, measured later on its weights."""


@dataclass(frozen=True)
class PublishedAdder:
    """The numbers that one of the five reports published about its adder."""

    report: str
    generated: float | None
    """Exact match when the model is fed its own tokens (free-running)."""
    teacher_forced: float | None
    drops: dict[str, float]
    """Maps the short name of a head to the published drop in accuracy, as a fraction: 0.01 is 1 point."""
    prunable: tuple[float, ...]
    """Fractions of heads that the report calls prunable (removable); one report gives three different fractions."""
    prunable_words: str
    wrong: str

    @property
    def costliest(self) -> str | None:
        """The head with the largest published drop, or None if the report names no heads."""
        return max(self.drops, key=lambda head: self.drops[head]) if self.drops else None


@dataclass(frozen=True)
class PublishedSorter:
    """The accuracy that one of the five reports published for its sortedness model with one encoding."""

    report: str
    encoding: str
    right: dict[int, Proportion]
    """Maps a sequence length to the published accuracy."""
    negative: str
    wrong: str


@cache
def published_figures() -> dict[str, Any]:
    """Return all published numbers of `published.toml`: a mapping from report and task to its table."""
    text = files("headcount.exercise").joinpath("published.toml").read_text(encoding="utf-8")
    return {name.removeprefix("report-"): parts for name, parts in tomllib.loads(text).items()}


def adders() -> list[PublishedAdder]:
    """Return the numbers that the five reports published about their adders, one object per report."""
    return [_adder(name, parts["addition"]) for name, parts in published_figures().items()]


def _adder(report: str, published: dict[str, Any]) -> PublishedAdder:
    """Return the numbers published about an adder; what report 001 calls its baseline is teacher-forced accuracy."""
    forced, share = published.get("teacher_forced"), published.get("prunable_share", [])
    baseline = published.get("baseline")
    if report == "001":
        forced, baseline = baseline, None
    return PublishedAdder(
        report=report,
        generated=baseline,
        teacher_forced=forced,
        drops=dict(published.get("drops", {})),
        prunable=tuple(share) if isinstance(share, list) else (share,),
        prunable_words=published.get("prunable", ""),
        wrong=WRONG_SUMS[report],
    )


def sorters() -> list[PublishedSorter]:
    """Return the accuracies that the five reports published for sortedness, one object per report and encoding."""
    models = []
    for report, parts in published_figures().items():
        figures = {length: parts["sortedness"][str(length)] for length in LENGTHS}
        kind = "shuffle" if report in OLDER else "transpositions"
        for i, encoding in enumerate(EXERCISE):
            right = {length: Proportion.of(round(row[i] * N_SEQUENCES), N_SEQUENCES) for length, row in figures.items()}
            models.append(PublishedSorter(report, encoding, right, kind, WRONG_SEQUENCES[report][i]))
    return models


def overlapping(ours: Proportion, theirs: Sequence[tuple[str, Proportion]]) -> tuple[list[str], list[str]]:
    """Return two lists of names: reports whose interval overlaps that of our accuracy, and the other reports."""
    same = [name for name, share in theirs if share.low <= ours.high and ours.low <= share.high]
    return same, [name for name, _ in theirs if name not in same]
