"""What may a head be called? Nothing, unless a stated threshold holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    """When a head gets a label. Bounds are those of the mean's interval of this `confidence`."""

    confidence: float = 0.95
    mass: float = 0.5
    """The lower bound of the mass on a target is at least this, ..."""
    times_even: float = 2.0
    """... and at least this many times what even attention would give."""
    entropy_share: float = 0.95
    """The lower bound of the entropy share is at least this: the head spreads evenly."""
    difference: float = 0.2
    """The mass on a labelled target differs by at least this between conditions, anywhere in its interval."""

    @property
    def words(self) -> str:
        """The same, for people."""
        return (
            f"label: the lower {100 * self.confidence:g} % bound of the mass on a target is at least {self.mass:g} and "
            f"{self.times_even:g} times that of even attention, over all columns or, where those have no such target, "
            f"in the columns in brackets; “more/less when”: by at least {self.difference:g} (in these columns); "
            f"“{SPREADS}”: entropy at least {100 * self.entropy_share:g} % of its maximum"
        )


THRESHOLDS = Thresholds()


def label(measures: Sequence[Measure], when: str, thresholds: Thresholds = THRESHOLDS) -> str:
    """What a head looks at, most first, and whether more `when` a condition holds; or nothing.

    A column that has none of these targets, as the highest digit of a sum has no aligned column, is asked by itself.

    >>> by_carry = [Measure("operator", column, "difference", 0.4, 0.01, 900, 0.0) for column in ("10s", "100s")]
    >>> label([Measure("operator", "all", "all", 0.8, 0.01, 900, 0.14), *by_carry], "a carry comes in")
    'operator, more when a carry comes in (10s, 100s)'
    >>> label([Measure("operator", "all", "all", 0.51, 0.01, 900, 0.14)], "a carry comes in")
    ''
    """
    overall = {m.measure: m for m in measures if (m.column, m.condition) == (ALL, ALL)}
    found = sorted((m for m in overall.values() if _is_target(m, thresholds)), key=lambda m: -m.mean)
    words = [m.measure + _changes(measures, m.measure, when, thresholds) for m in found]
    words += _elsewhere(measures, [m.measure for m in found], thresholds)
    share = overall.get(ENTROPY_SHARE)
    if not words and share and _low(share, thresholds) >= thresholds.entropy_share:
        return SPREADS
    return "; ".join(words)


def _elsewhere(measures: Sequence[Measure], named: Sequence[str], t: Thresholds) -> list[str]:
    """What it looks at in columns that have none of the named targets: `carry column (1000s)`."""
    places: dict[str, list[str]] = {}
    in_columns = [m for m in measures if m.column != ALL and m.condition == ALL]
    for column in dict.fromkeys(m.column for m in in_columns):
        here = [m for m in in_columns if m.column == column]
        found = [m for m in here if _is_target(m, t)]
        if found and not any(m.measure in named for m in here):
            places.setdefault(max(found, key=lambda m: m.mean).measure, []).append(column)
    return [f"{target} ({', '.join(columns)})" for target, columns in places.items()]


def _is_target(m: Measure, t: Thresholds) -> bool:
    return m.even is not None and _low(m, t) >= max(t.mass, t.times_even * m.even)


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
