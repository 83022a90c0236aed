"""How much a head matters, in words: by the interval of its drop, never by the drop alone.

critical     the whole interval lies over 10 points
important    the whole interval lies between 1 and 10 points
redundant    the whole interval lies under 1 point
undecided    the interval reaches over one of these borders; `needed` examples would probably decide
"""

from __future__ import annotations

import math

from headcount.statistics import Paired

CRITICAL, IMPORTANT = 0.10, 0.01
BANDS = ("critical", "important", "undecided", "redundant")
POWER = ((1.96 + 0.84) / 1.96) ** 2
"""More examples for a power of 80 %, against those for one of 50 %."""


def band_of(drop: Paired) -> str:
    """The band that the whole interval lies in.

    >>> band_of(Paired(0.0, 0.0, 0.0018, 1.0)), band_of(Paired(0.012, 0.008, 0.018, 0.001))
    ('redundant', 'undecided')
    """
    if drop.low > CRITICAL:
        return "critical"
    if drop.high < IMPORTANT:
        return "redundant"
    return "important" if drop.low > IMPORTANT and drop.high <= CRITICAL else "undecided"


def needed(drop: Paired, n: int) -> int | None:
    """How many examples would decide four times out of five, if the drop stays what it is; None if it lies on a border.

    An interval narrows with the square root of n. On average it must shrink from its half-width to the distance of the
    border; to do so four times out of five, twice as many examples are needed (a power of 80 %).

    >>> needed(Paired(0.015, 0.009, 0.021, 0.001), 1000)
    2939
    """
    times = [_times(drop, border) for border in (IMPORTANT, CRITICAL) if drop.low <= border <= drop.high]
    if not times:
        return n
    return None if math.inf in times else math.ceil(n * max(times))


def _times(drop: Paired, border: float) -> float:
    """How many times as many examples keep the interval off this border."""
    gap = abs(drop.mean - border)
    half = drop.mean - drop.low if border < drop.mean else drop.high - drop.mean
    return math.inf if gap < 1e-9 else max(1.0, POWER * (half / gap) ** 2)
