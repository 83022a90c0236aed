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
Z = 1.96


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
    """How many examples would decide, if the drop stays what it is; None if it lies on the border itself.

    An interval narrows with the square root of n, so it must shrink from its half-width to the distance of the border.

    >>> needed(Paired(0.015, 0.009, 0.021, 0.001), 1000)
    1441
    """
    borders = [border for border in (IMPORTANT, CRITICAL) if drop.low <= border <= drop.high]
    if not borders:
        return n
    gap = min(abs(drop.mean - border) for border in borders)
    if gap < 1e-9:
        return None
    half = max(drop.mean - drop.low if border_below(drop, borders) else drop.high - drop.mean, 1e-12)
    return math.ceil(n * max((half / gap) ** 2, 1) + 1e-9)


def border_below(drop: Paired, borders: list[float]) -> bool:
    """Whether the nearest border lies under the drop."""
    return min(borders, key=lambda border: abs(drop.mean - border)) < drop.mean
