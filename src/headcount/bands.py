"""Bands of importance: classify a head by the 95 % CI of its drop, never by the drop alone.

critical     the whole interval lies above 10 points
important    the whole interval lies between 1 and 10 points
redundant    the whole interval lies below 1 point
undecided    the interval contains one of these borders; `examples_needed` estimates the n that would decide
"""

import math
from collections.abc import Sequence

from headcount.stats import PairedDifference

CRITICAL, IMPORTANT = 0.10, 0.01
BANDS = ("critical", "important", "redundant", "undecided")
FEW = 10
"""Number of examples that should not make up half of a total difference."""
Z = 1.96
POWER = ((Z + 0.84) / Z) ** 2
"""Factor by which the number of examples grows when the power rises from 50 % to 80 %."""


def ranked_by(replacements: Sequence[str]) -> str:
    """Return the replacement that heads are ranked by: zero ablation if it was measured, else the first one.

    >>> ranked_by(["resample", "zero"]), ranked_by(["resample", "mean"])
    ('zero', 'resample')
    """
    return "zero" if "zero" in replacements else replacements[0]


def band_of(drop: PairedDifference) -> str:
    """Return the band that contains the whole interval, or 'undecided'.

    >>> band_of(PairedDifference(0.0, 0.0, 0.0018, 1.0)), band_of(PairedDifference(0.012, 0.008, 0.018, 0.001))
    ('redundant', 'undecided')
    """
    if drop.low > CRITICAL:
        return "critical"
    if drop.high < IMPORTANT:
        return "redundant"
    return "important" if drop.low > IMPORTANT and drop.high <= CRITICAL else "undecided"


def examples_needed(drop: PairedDifference, n: int) -> tuple[int, int | None] | None:
    """Estimate how many examples would decide the band with a power of 80 %, as (fewest, most).

    Return None if the band is decided already. An interval narrows with the square root of n, and its half-width must
    shrink to the distance between the drop and the border. A power of 80 % takes twice as many examples as a power of
    50 %. The distance to the border is as uncertain as the drop itself, so the range covers drops one standard error
    to either side. `most` is None if the border lies within one standard error.

    >>> examples_needed(PairedDifference(0.016, 0.009, 0.023, 0.001), 1000)
    (1092, 16956)
    >>> examples_needed(PairedDifference(0.012, 0.007, 0.017, 0.01), 1000)
    (2464, None)
    """
    borders = [border for border in (IMPORTANT, CRITICAL) if drop.low <= border <= drop.high]
    if not borders or drop.low == drop.high:
        return None

    def growth(true_drop: float, border: float) -> float:
        """Return the factor on n that keeps the interval off the border if the drop is `true_drop`."""
        half_width = drop.mean - drop.low if border < true_drop else drop.high - drop.mean
        return max(1.0, POWER * (half_width / max(abs(true_drop - border), 1e-9)) ** 2)

    drops = drop.mean - (drop.mean - drop.low) / Z, drop.mean, drop.mean + (drop.high - drop.mean) / Z
    factors = [max(growth(true_drop, border) for border in borders) for true_drop in drops]
    is_near = any(drops[0] <= border <= drops[2] for border in borders)
    return math.ceil(n * min(factors)), None if is_near else math.ceil(n * max(factors))
