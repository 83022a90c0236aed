"""What may a head be called? Nothing, unless a stated threshold holds that models which learned nothing do not pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

ENTROPY, ENTROPY_SHARE, SPARSITY = "entropy", "entropy share", "sparsity"
"""How spread attention is; every other measure is a target."""
ALL, DIFFERENCE = "all", "difference"
"""Every column or example; and what stands for the one condition less the other."""
SPREADS = "spreads evenly"


@dataclass(frozen=True)
class Measure:
    """The mean of one measure of one head."""

    measure: str
    """A target of the task, or entropy (in nats), entropy share, sparsity."""
    column: str
    """What the queries are about, or `all`."""
    condition: str
    """Which examples: `all`, those with or without it, or the `difference` between these two."""
    mean: float
    se: float
    """Over examples."""
    n: int
    """Examples."""
    even: float | None = None
    """What a target would get if attention were even over the keys in sight; None for other measures."""

    def half(self, confidence: float = 0.95) -> float:
        """Half of the interval around the mean (Student's t)."""
        return float(stdtrit(self.n - 1, 0.5 + confidence / 2)) * self.se


@dataclass(frozen=True)
class Thresholds:
    """When a head gets a label, if controls do not. Bounds are those of the mean's interval of this `confidence`."""

    confidence: float = 0.95
    partly: float = 0.25
    """The lower bound of the mass above even attention is at least this: the head looks partly at the target, ..."""
    mostly: float = 0.5
    """... or mostly, from this mass on."""
    entropy_share: float = 0.95
    """The lower bound of the entropy share is at least this: the head spreads evenly."""
    difference: float = 0.2
    """The mass on a labelled target differs by at least this between conditions, anywhere in its interval."""

    @property
    def words(self) -> str:
        """The same, for people."""
        return (
            f"label: mass above even attention, (mass - even) / (1 - even), in brackets; its lower "
            f"{100 * self.confidence:g} % bound is at least {self.partly:g} and more than controls show, “mostly” from "
            f"{self.mostly:g}; over all columns or, where those have no such target, in the columns named; “more/less "
            f"when”: by at least {self.difference:g} (in these columns); “{SPREADS}”: entropy at least "
            f"{100 * self.entropy_share:g} % of its maximum, and more than controls show"
        )


THRESHOLDS = Thresholds()
Bars = Mapping[tuple[str, str], float]
"""By measure and column: what controls show by chance (calibration.py)."""
NO_BARS: Bars = {}

T = TypeVar("T", float, NDArray[np.float64])


def above_even(mass: T, even: float) -> T:
    """0 if attention is even, 1 if all of it is on the target.

    >>> above_even(0.75, 0.5)
    0.5
    """
    return (mass - even) / (1 - even)


def label(measures: Sequence[Measure], when: str, bars: Bars = NO_BARS, thresholds: Thresholds = THRESHOLDS) -> str:
    """What a head looks at, most first, and whether more `when` a condition holds; or nothing.

    A column that has none of these targets, as the highest digit of a sum has no aligned column, is asked by itself.

    >>> by_carry = [Measure("operator", column, "difference", 0.4, 0.01, 900, 0.0) for column in ("10s", "100s")]
    >>> label([Measure("operator", "all", "all", 0.8, 0.01, 900, 0.2), *by_carry], "a carry comes in")
    'mostly operator (0.75), more when a carry comes in (10s, 100s)'
    >>> label([Measure("operator", "all", "all", 0.52, 0.01, 900, 0.2)], "a carry comes in")
    'partly operator (0.40)'
    >>> label([Measure("operator", "all", "all", 0.52, 0.01, 900, 0.2)], "a carry comes in", {("operator", "all"): 0.4})
    ''
    """
    overall = {m.measure: m for m in measures if (m.column, m.condition) == (ALL, ALL)}
    found = sorted((m for m in overall.values() if _is_target(m, bars, thresholds)), key=_grade, reverse=True)
    words = [
        f"{_word(m, thresholds)} {m.measure} ({_grade(m):.2f}){_changes(measures, m.measure, when, thresholds)}"
        for m in found
    ]
    words += _elsewhere(measures, [m.measure for m in found], bars, thresholds)
    share = overall.get(ENTROPY_SHARE)
    if not words and share and _low(share, thresholds) >= max(thresholds.entropy_share, _bar(share, bars)):
        return SPREADS
    return "; ".join(words)


def _elsewhere(measures: Sequence[Measure], named: Sequence[str], bars: Bars, t: Thresholds) -> list[str]:
    """What it looks at in columns that have none of the named targets: `mostly carry column in 1000s (0.76)`."""
    places: dict[tuple[str, str], list[Measure]] = {}
    in_columns = [m for m in measures if m.column != ALL and m.condition == ALL]
    for column in dict.fromkeys(m.column for m in in_columns):
        here = [m for m in in_columns if m.column == column]
        found = [m for m in here if _is_target(m, bars, t)]
        if found and not any(m.measure in named for m in here):
            most = max(found, key=_grade)
            places.setdefault((_word(most, t), most.measure), []).append(most)
    return [
        f"{word} {target} in {', '.join(m.column for m in found)} ({', '.join(f'{_grade(m):.2f}' for m in found)})"
        for (word, target), found in places.items()
    ]


def _is_target(m: Measure, bars: Bars, t: Thresholds) -> bool:
    return m.even is not None and above_even(_low(m, t), m.even) >= max(t.partly, _bar(m, bars))


def _bar(m: Measure, bars: Bars) -> float:
    return bars.get((m.measure, m.column), 0.0)


def _grade(m: Measure) -> float:
    assert m.even is not None  # it is a target
    return above_even(m.mean, m.even)


def _word(m: Measure, t: Thresholds) -> str:
    return "mostly" if _grade(m) >= t.mostly else "partly"


def _low(m: Measure, t: Thresholds) -> float:
    return m.mean - m.half(t.confidence)


def _changes(measures: Sequence[Measure], target: str, when: str, t: Thresholds) -> str:
    """`, more when a carry comes in`, if over all columns; else with the columns where it is so."""
    told = ""
    for word, sign in (("more", 1), ("less", -1)):
        columns = [
            m.column
            for m in measures
            if (m.measure, m.condition) == (target, DIFFERENCE) and sign * m.mean - m.half(t.confidence) >= t.difference
        ]
        if columns:
            told += f", {word} when {when}" + ("" if ALL in columns else f" ({', '.join(columns)})")
    return told
