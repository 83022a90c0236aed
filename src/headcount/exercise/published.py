"""Figures that five reports of the exercise published, and what was wrong with each (docs/reports.md)."""

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
"""Number of test sequences per length in the reports."""
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
"""Reports whose unsorted sequences are full shuffles; the other reports use transpositions."""
TOGETHER = {"004": 0.0}
"""Accuracy without all heads that a report calls prunable, measured later with the report's own weights."""


@dataclass(frozen=True)
class PublishedAdder:
    """The figures that a report published about its adder."""

    report: str
    generated: float | None
    """Exact match of answers that the model decoded itself."""
    teacher_forced: float | None
    drops: dict[str, float]
    """Drop in accuracy (1 is 100 points) by short name of the head."""
    prunable: tuple[float, ...]
    """Fractions of heads that the report calls prunable; one report has three."""
    prunable_words: str
    wrong: str

    @property
    def costliest(self) -> str | None:
        """The head with the largest drop, or None if the report names no heads."""
        return max(self.drops, key=lambda head: self.drops[head]) if self.drops else None


@dataclass(frozen=True)
class PublishedSorter:
    """The accuracy that a report published for one encoding."""

    report: str
    encoding: str
    right: dict[int, Proportion]
    """Accuracy by length."""
    negative: str
    wrong: str


@cache
def published_figures() -> dict[str, Any]:
    """Return all tables of `published.toml` by report and task."""
    text = files("headcount.exercise").joinpath("published.toml").read_text(encoding="utf-8")
    return {name.removeprefix("report-"): parts for name, parts in tomllib.loads(text).items()}


def adders() -> list[PublishedAdder]:
    """Return the figures that the five published reports give for their adders, from `published.toml`."""
    return [_adder(name, parts["addition"]) for name, parts in published_figures().items()]


def _adder(report: str, published: dict[str, Any]) -> PublishedAdder:
    """Build an adder from its published figures; the accuracy that report 001 calls its baseline is teacher-forced."""
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
    """Return the sortedness models of the five reports, one per encoding."""
    models = []
    for report, parts in published_figures().items():
        figures = {length: parts["sortedness"][str(length)] for length in LENGTHS}
        kind = "shuffle" if report in OLDER else "transpositions"
        for i, encoding in enumerate(EXERCISE):
            right = {length: Proportion.of(round(row[i] * N_SEQUENCES), N_SEQUENCES) for length, row in figures.items()}
            models.append(PublishedSorter(report, encoding, right, kind, WRONG_SEQUENCES[report][i]))
    return models


def overlapping(ours: Proportion, theirs: Sequence[tuple[str, Proportion]]) -> tuple[list[str], list[str]]:
    """Return the names of the reports whose interval overlaps ours, and those of the others."""
    same = [name for name, share in theirs if share.low <= ours.high and ours.low <= share.high]
    return same, [name for name, _ in theirs if name not in same]
