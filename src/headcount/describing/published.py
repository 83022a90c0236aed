"""What five reports of the exercise published, and in a few words what was wrong with each figure (docs/reports.md)."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from headcount.stats import Proportion

LENGTHS = (32, 64, 128, 256)
"""At which all five were tested, ..."""
N_SEQUENCES = 500
"""... on so many sequences each."""
ENCODINGS = ("sinusoidal", "learned", "none")
WRONG_SUMS = {
    "000": "one example, and head h of all six blocks at once",
    "001": "fed the right digits, zeros not compared; each head alone",
    "002": "no start token, and 0 is never a target; each head alone",
    "003": "no start token; fed the right digits; each head alone",
    "004": "no start token: right where the sum is below 1000; each head alone",
}
ONE_ANSWER = "one answer to everything: these are shares of a class"
THEOREM = "as it must be, if the pooling is symmetric: without positions 50 % is a theorem"
WRONG_SEQUENCES = {
    "000": ("positions were multiplied by 512 / length: of adjacent swaps 0 % are found", "not known", THEOREM),
    "001": ("beyond training, “unsorted” to everything", "it learned nothing: its loss stayed at ln 2", THEOREM),
    "002": (ONE_ANSWER, ONE_ANSWER, ONE_ANSWER),
    "003": (ONE_ANSWER, ONE_ANSWER, THEOREM),
    "004": (ONE_ANSWER, ONE_ANSWER, ONE_ANSWER),
}
"""By encoding."""
OLDER = ("000", "001")
"""Reports whose unsorted sequences are full shuffles; those of the others are transpositions."""
TOGETHER = {"004": 0.0}
"""What is left without all heads that a report calls prunable, where that was tried: from its own weights, later."""


@dataclass(frozen=True)
class PublishedAdder:
    """What a report says of its adder."""

    report: str
    generated: float | None
    """Exact match of answers that the model wrote."""
    teacher_forced: float | None
    drops: dict[str, float]
    """By short names of heads, as shares."""
    prunable: tuple[float, ...]
    """Shares of heads; three in one report."""
    prunable_words: str
    wrong: str

    @property
    def costliest(self) -> str | None:
        """Of the heads that it names."""
        return max(self.drops, key=lambda head: self.drops[head]) if self.drops else None


@dataclass(frozen=True)
class PublishedSorter:
    """One encoding of one report."""

    report: str
    encoding: str
    right: dict[int, Proportion]
    """By length."""
    negative: str
    wrong: str


@cache
def _read() -> dict[str, Any]:
    text = files("headcount.describing").joinpath("published.toml").read_text(encoding="utf-8")
    return {name.removeprefix("report-"): parts for name, parts in tomllib.loads(text).items()}


def adders() -> list[PublishedAdder]:
    """All five."""
    return [_adder(name, parts["addition"]) for name, parts in _read().items()]


def _adder(report: str, said: dict[str, Any]) -> PublishedAdder:
    """Where a report has one accuracy, the text of its experiment says which of the two it is."""
    forced, share = said.get("teacher_forced"), said.get("prunable_share", [])
    baseline = said.get("baseline")
    if report == "001":
        forced, baseline = baseline, None
    return PublishedAdder(
        report=report,
        generated=baseline,
        teacher_forced=forced,
        drops=dict(said.get("drops", {})),
        prunable=tuple(share) if isinstance(share, list) else (share,),
        prunable_words=said.get("prunable", ""),
        wrong=WRONG_SUMS[report],
    )


def sorters() -> list[PublishedSorter]:
    """Every encoding of all five."""
    found = []
    for report, parts in _read().items():
        figures = {length: parts["sortedness"][str(length)] for length in LENGTHS}
        kind = "shuffle" if report in OLDER else "transpositions"
        for i, encoding in enumerate(ENCODINGS):
            right = {length: Proportion.of(round(row[i] * N_SEQUENCES), N_SEQUENCES) for length, row in figures.items()}
            found.append(PublishedSorter(report, encoding, right, kind, WRONG_SEQUENCES[report][i]))
    return found


def alike(ours: Proportion, theirs: Sequence[tuple[str, Proportion]]) -> tuple[list[str], list[str]]:
    """Reports whose interval overlaps ours, and the others."""
    same = [name for name, share in theirs if share.low <= ours.high and ours.low <= share.high]
    return same, [name for name, _ in theirs if name not in same]
