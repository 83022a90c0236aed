"""How much a head matters, in words: by the interval of its drop, never by the drop alone.

critical     the whole interval lies over 10 points
important    the whole interval lies between 1 and 10 points
redundant    the whole interval lies under 1 point
undecided    the interval reaches over one of these borders; `examples_needed` would probably decide
"""

import math
from collections.abc import Sequence

from headcount.stats import PairedDifference

CRITICAL, IMPORTANT = 0.10, 0.01
BANDS = ("critical", "important", "redundant", "undecided")
FEW = 10
"""Examples that should not carry half of a sum."""
Z = 1.96
POWER = ((Z + 0.84) / Z) ** 2
"""More examples for a power of 80 %, against those for one of 50 %."""


def ranked_by(replacements: Sequence[str]) -> str:
    """Return the replacement that heads are ranked by: zero, which removes them, or the first one if zero is missing.

    >>> ranked_by(["resample", "zero"]), ranked_by(["resample", "mean"])
    ('zero', 'resample')
    """
    return "zero" if "zero" in replacements else replacements[0]


def band_of(drop: PairedDifference) -> str:
    """The band that the whole interval lies in.

    >>> band_of(PairedDifference(0.0, 0.0, 0.0018, 1.0)), band_of(PairedDifference(0.012, 0.008, 0.018, 0.001))
    ('redundant', 'undecided')
    """
    if drop.low > CRITICAL:
        return "critical"
    if drop.high < IMPORTANT:
        return "redundant"
    return "important" if drop.low > IMPORTANT and drop.high <= CRITICAL else "undecided"


def examples_needed(drop: PairedDifference, n: int) -> tuple[int, int | None] | None:
    """How many examples would decide four times out of five: the fewest and the most, or None if it is decided.

    An interval narrows with the square root of n. On average it must shrink from its half-width to the distance of the
    border; to do so four times out of five, twice as many examples are needed (a power of 80 %). How far the border is
    is not known better than the drop itself: the range is that of a drop one standard error to either side, and has no
    end (None) if the border is as near as that.

    >>> examples_needed(PairedDifference(0.016, 0.009, 0.023, 0.001), 1000)
    (1092, 16956)
    >>> examples_needed(PairedDifference(0.012, 0.007, 0.017, 0.01), 1000)
    (2464, None)
    """
    borders = [border for border in (IMPORTANT, CRITICAL) if drop.low <= border <= drop.high]
    if not borders or drop.low == drop.high:
        return None

    def times(at: float, border: float) -> float:
        """How many times as many examples keep the interval off this border if the drop is `at` there."""
        half = drop.mean - drop.low if border < at else drop.high - drop.mean
        return max(1.0, POWER * (half / max(abs(at - border), 1e-9)) ** 2)

    ends = drop.mean - (drop.mean - drop.low) / Z, drop.mean, drop.mean + (drop.high - drop.mean) / Z
    factors = [max(times(at, border) for border in borders) for at in ends]
    near = any(ends[0] <= border <= ends[2] for border in borders)
    return math.ceil(n * min(factors)), None if near else math.ceil(n * max(factors))
