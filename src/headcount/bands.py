"""Classify heads by confidence intervals instead of point estimates.

A head's band (critical, important, redundant or undecided) follows from the 95 % CI of the accuracy that is lost when
the head is ablated; `LIMITS` defines the bands. For an undecided head, `examples_needed` estimates how many examples
would decide. A head's role (carrier, part, none or undecided) follows from the interval of its share of an event that
the task defines, such as a carry.
"""

import math
from collections.abc import Sequence
from typing import Literal

from headcount.stats import Z95, PairedDifference


def limit_text(drop: float, unit: str = "points") -> str:
    """Format a limit of a drop with its unit and without trailing zeros; with the unit points, 0.01 is 1 point.

    >>> limit_text(0.01), limit_text(0.025), limit_text(0.01, "nats")
    ('1 point', '2.5 points', '0.01 nats')
    """
    if unit != "points":
        return f"{drop:.4g} {unit}".rstrip()
    points = f"{100 * drop:.2f}".rstrip("0").rstrip(".")
    return f"{points} point{'' if points == '1' else 's'}"


CRITICAL, IMPORTANT = 0.10, 0.01
"""Drops in accuracy (fractions) above which an ablated head is called critical, and important."""
LIMITS = {
    "critical": f"above {limit_text(CRITICAL)}",
    "important": f"between {100 * IMPORTANT:g} and {limit_text(CRITICAL)}",
    "redundant": f"below {limit_text(IMPORTANT)}",
    "undecided": "across one of these limits",
}
"""Maps the name of each band to where the whole 95 % CI of a head's drop lies, in words."""
BANDS = tuple(LIMITS)
FEW = 10
"""If this many examples or fewer cause more than half of a head's total drop, the drop rests on too few examples."""
POWER = ((Z95 + 0.84) / Z95) ** 2
"""Factor by which the number of examples must grow to raise the statistical power from 50 % to 80 %."""


def ranked_by(replacements: Sequence[str]) -> str:
    """Return the kind of ablation by which heads are ranked: "zero" if it was measured, else the first in the list.

    >>> ranked_by(["resample", "zero"]), ranked_by(["resample", "mean"])
    ('zero', 'resample')
    """
    return "zero" if "zero" in replacements else replacements[0]


def band_of(drop: PairedDifference) -> str:
    """Return the band that contains the whole interval of a head's drop, or 'undecided' if no band does.

    >>> band_of(PairedDifference(0.0, 0.0, 0.0018, 1.0)), band_of(PairedDifference(0.012, 0.008, 0.018, 0.001))
    ('redundant', 'undecided')
    """
    if drop.low > CRITICAL:
        return "critical"
    if drop.high < IMPORTANT:
        return "redundant"
    return "important" if drop.low > IMPORTANT and drop.high <= CRITICAL else "undecided"


def examples_needed(drop: PairedDifference, n: int) -> tuple[int, int | None] | None:
    """Estimate how many examples would decide the band of a head with a power of 80 %, as (fewest, most).

    `drop` is the measured drop and `n` its number of examples. Return None if the band is decided already, or if the
    interval has no width. `most` is None if the drop lies within one standard error of a border between two bands.

    An interval narrows with the square root of n, and its half-width must shrink to the distance between the drop and
    the border. A power of 80 % takes twice as many examples as a power of 50 %. The distance to the border is as
    uncertain as the drop itself, so the range covers drops one standard error to either side.

    >>> examples_needed(PairedDifference(0.016, 0.009, 0.023, 0.001), 1000)
    (1092, 16956)
    >>> examples_needed(PairedDifference(0.012, 0.007, 0.017, 0.01), 1000)
    (2464, None)
    """
    borders = [border for border in (IMPORTANT, CRITICAL) if drop.low <= border <= drop.high]
    if not borders or drop.low == drop.high:
        return None

    def growth(true_drop: float, border: float) -> float:
        """Return the factor by which n must grow for the interval to exclude the border, if the drop is `true_drop`."""
        half_width = drop.mean - drop.low if border < true_drop else drop.high - drop.mean
        return max(1.0, POWER * (half_width / max(abs(true_drop - border), 1e-9)) ** 2)

    drops = drop.mean - (drop.mean - drop.low) / Z95, drop.mean, drop.mean + (drop.high - drop.mean) / Z95
    factors = [max(growth(true_drop, border) for border in borders) for true_drop in drops]
    is_near = any(drops[0] <= border <= drops[2] for border in borders)
    return math.ceil(n * min(factors)), None if is_near else math.ceil(n * max(factors))


# --- roles: which heads carry an event of the task, such as a carry ---------------------------------------------------

CARRIER, PART = 0.5, 0.1
"""Smallest shares of the effect of an event (such as a carry) at which a head is its "carrier", and "part" of it."""
Role = Literal["carrier", "part", "none", "undecided"]


def role_of(low: float, high: float) -> Role:
    """Return the role of a head whose share of an event's effect has the confidence interval from `low` to `high`.

    The whole interval must fit the role, else the role is "undecided". A share below 0 (the head moves the answer the
    wrong way) counts as "none".

    >>> role_of(0.6, 0.9), role_of(0.2, 0.4), role_of(-0.3, 0.05), role_of(0.4, 0.6)
    ('carrier', 'part', 'none', 'undecided')
    """
    if low >= CARRIER:
        return "carrier"
    if high < PART:
        return "none"
    return "part" if low >= PART and high <= CARRIER else "undecided"
