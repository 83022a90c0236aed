"""Classify attention heads by confidence intervals instead of point estimates.

A head's band (critical, important, redundant or undecided) says how much accuracy is lost when the head is ablated. It
follows from the 95 % CI of this loss, the drop; `LIMITS` defines the bands. For an undecided head, `examples_needed`
estimates how many examples would decide.

A head's role (carrier, part, none or undecided) says how far the head moves an event that the task defines, such as the
carry of an addition. It follows from the CI of the share of the event's effect that patching the head moves.
"""

import math
from collections.abc import Sequence
from typing import Literal

from headcount.stats import Z95, PairedDifference


def limit_text(drop: float, unit: str = "points") -> str:
    """Format a threshold for a drop in score as text with its unit; as points of accuracy, 0.01 becomes `1 point`.

    >>> limit_text(0.01), limit_text(0.025), limit_text(0.01, "nats")
    ('1 point', '2.5 points', '0.01 nats')
    """
    if unit != "points":
        return f"{drop:.4g} {unit}".rstrip()
    points = f"{100 * drop:.2f}".rstrip("0").rstrip(".")
    return f"{points} point{'' if points == '1' else 's'}"


CRITICAL, IMPORTANT = 0.10, 0.01
"""An ablated head is critical if accuracy drops by more than 0.10, and important if it drops by more than 0.01."""
LIMITS = {
    "critical": f"above {limit_text(CRITICAL)}",
    "important": f"between {100 * IMPORTANT:g} and {limit_text(CRITICAL)}",
    "redundant": f"below {limit_text(IMPORTANT)}",
    "undecided": "across one of these limits",
}
"""Maps the name of each band (how much a head matters) to where the whole 95 % CI of its drop in accuracy lies."""
BANDS = tuple(LIMITS)
FEW = 10
"""Number of examples that is too few: a drop is flagged if this many examples, or fewer, cause over half of it."""
POWER = ((Z95 + 0.84) / Z95) ** 2
"""Factor by which the number of examples must grow to raise the statistical power of a test from 50 % to 80 %."""


def ranked_by(replacements: Sequence[str]) -> str:
    """Return the kind of ablation by which heads are ranked: "zero" if it was measured, else the first in the list.

    >>> ranked_by(["resample", "zero"]), ranked_by(["resample", "mean"])
    ('zero', 'resample')
    """
    return "zero" if "zero" in replacements else replacements[0]


def is_above_baseline(score: float, baseline: float) -> bool:
    """Return whether a model scores at least `CRITICAL` above the best constant answer, so that heads can be rated."""
    return score - baseline >= CRITICAL


def band_of(drop: PairedDifference) -> str:
    """Return the band, such as "redundant", that contains the whole CI of a head's drop; "undecided" if none does.

    >>> band_of(PairedDifference(0.0, 0.0, 0.0018, 1.0)), band_of(PairedDifference(0.012, 0.008, 0.018, 0.001))
    ('redundant', 'undecided')
    """
    if drop.low > CRITICAL:
        return "critical"
    if drop.high < IMPORTANT:
        return "redundant"
    return "important" if drop.low > IMPORTANT and drop.high <= CRITICAL else "undecided"


def examples_needed(drop: PairedDifference, n: int) -> tuple[int, int | None] | None:
    """Estimate how many examples would decide a head's band (such as "redundant") with a power of 80 %, as a range.

    `drop` is the drop in accuracy measured on `n` examples. Return (fewest, most), or None if the band is decided
    already or the interval has no width. `most` is None if the drop lies within one standard error of a border between
    two bands.

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
        """Return the factor by which the number of examples must grow for the CI to exclude a border between two bands.

        `true_drop` is the assumed true drop, around which the CI is centred.
        """
        half_width = drop.mean - drop.low if border < true_drop else drop.high - drop.mean
        return max(1.0, POWER * (half_width / max(abs(true_drop - border), 1e-9)) ** 2)

    drops = drop.mean - (drop.mean - drop.low) / Z95, drop.mean, drop.mean + (drop.high - drop.mean) / Z95
    factors = [max(growth(true_drop, border) for border in borders) for true_drop in drops]
    is_near = any(drops[0] <= border <= drops[2] for border in borders)
    return math.ceil(n * min(factors)), None if is_near else math.ceil(n * max(factors))


# --- roles: which heads carry an event of the task, such as a carry ---------------------------------------------------

CARRIER, PART = 0.5, 0.1
"""A head that moves at least half of the effect of an event (a carry) is its carrier; at least a tenth, part of it."""
Role = Literal["carrier", "part", "none", "undecided"]


def role_of(low: float, high: float) -> Role:
    """Return the role of a head that moves a share of an event's effect, given the CI of the share, `low` to `high`.

    An event is a fact about an example that the task defines, such as a carry. The role is "undecided" unless the whole
    interval fits one role. A share below 0 (the head moves the answer the wrong way) counts as "none".

    >>> role_of(0.6, 0.9), role_of(0.2, 0.4), role_of(-0.3, 0.05), role_of(0.4, 0.6)
    ('carrier', 'part', 'none', 'undecided')
    """
    if low >= CARRIER:
        return "carrier"
    if high < PART:
        return "none"
    return "part" if low >= PART and high <= CARRIER else "undecided"
