"""Can the author's figure be a share of so many examples?

Of 2,000 examples every share is a multiple of 0.0005. Report 002 has 0.99853515625, which is 2045 of 2048: the mean of
the means of 32 batches of 64, of which the last has 16, so that its examples count four times. Report 001's 0.9951 is
no count of 2,000 either, for it is over tokens; and "0.0015 %" of 2,000 is less than one example.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from headcount.auditing.check import CONCLUSIONS, Check, Finding, not_applicable, passed, warned
from headcount.auditing.observed import Observed

FEWEST_DECIMALS = 4
"""A figure of fewer is rounded."""
USUAL = (100, 200, 250, 300, 400, 500, 600, 750, 800, 1000, 1200, 1500, 2000, 2500, 3000, 4000, 5000, 10_000)
"""Examples that an author may have measured on, beside those that the settings say."""
BATCHES = (64, 32, 128, 16, 256, 100, 50, 8, 512, 200, 500, 20, 10, 25, 250)
"""Sizes that are looked at, the likeliest first."""
TELLING = 20
"""A figure with so many times finer digits than shares are apart is one of these shares by no luck."""
LUCK = 0.1
"""Fractions of as small numbers that are written like any figure by luck."""
FEW = 100
"""A fraction of so small numbers is a simpler explanation than batches."""
SINGLE = Fraction(1, 2**22)
"""What sums and means in single precision may be off."""


@dataclass(frozen=True)
class Figure:
    """A share, with the digits that it was written with."""

    value: Fraction
    decimals: int

    @classmethod
    def of(cls, number: float) -> Figure:
        """As Python writes it, which is the shortest that is this number."""
        written = Decimal(repr(float(number)))
        return cls(Fraction(written), max(0, -int(written.normalize().as_tuple().exponent)))

    @property
    def precision(self) -> Fraction:
        """Between two figures of so many digits; beyond those of single precision there are none that count."""
        return max(Fraction(1, 10**self.decimals), SINGLE)

    def is_(self, share: Fraction) -> bool:
        """Whether this share is written so."""
        return abs(share - self.value) <= self.precision / 2

    def count_of(self, n: int) -> int | None:
        """How many of `n` it is."""
        count = round(self.value * n)
        return count if self.is_(Fraction(count, n)) else None

    def is_told_by(self, n: int) -> bool:
        """Whether shares of so many are further apart than its digits, so that not every figure is one."""
        return Fraction(1, n) > self.precision


def run(observed: Observed) -> Finding:
    """The figure beside counts of the test set, and of usual numbers of examples."""
    claimed = None if observed.adapter is None else observed.adapter.claimed
    if claimed is None:
        return not_applicable("nobody reports a figure: an adapter's `claimed`")
    n, figure = len(observed.task.split(observed.split)), Figure.of(claimed)
    if not 0 <= claimed <= 1:
        return warned(
            f"the author's figure is {claimed:g}, which is no share of 1",
            cause="a percentage, perhaps",
            fix="write it as a share: claimed = 0.9985",
            claimed=claimed,
        )
    if figure.decimals < FEWEST_DECIMALS or not figure.is_told_by(n):
        return not_applicable(f"{claimed:g} has too few digits to be told from a count of {n:,}")
    if (count := figure.count_of(n)) is not None:
        return passed(f"{claimed:g} is {count:,} of {n:,}", claimed=claimed, count=count, n=n)
    others = [(figure.count_of(size), size) for size in USUAL if figure.is_told_by(size)]
    if fitting := [(count, size) for count, size in others if count is not None]:
        return passed(f"{claimed!r} is {fitting[0][0]:,} of {fitting[0][1]:,}", claimed=claimed, n=fitting[0][1])
    cause, fix = _cause(figure, n, len(observed.places) if observed.task.output_type == "sequence" else 1)
    return warned(
        f"{claimed!r} is no count out of {n:,}: {_nearest(figure, n)}", cause=cause, fix=fix, claimed=claimed, n=n
    )


def _nearest(figure: Figure, n: int) -> str:
    """What counts would give."""
    below = int(figure.value * n)
    if below == 0:
        return f"it is less than one example, which is {1 / n:g}"
    return f"{below:,} are {below / n:g}, and {below + 1:,} are {(below + 1) / n:g}"


def _cause(figure: Figure, n: int, n_places: int) -> tuple[str, str]:
    """What does give it, and what to do about it."""
    fix = "count the right examples, and divide once, by all examples"
    part = next((size for size in range(1, n) if figure.count_of(size) is not None), n)
    is_telling = part < n and part**2 * figure.precision < LUCK
    if (told := _batch_means(figure, n)) and not (is_telling and part < FEW):
        means = "consistent with a mean of batch means, in which a short last batch counts as much as others"
        return f"{means}: {told}", fix
    count = figure.count_of(n * n_places)
    if n_places > 1 and count is not None and TELLING * figure.precision < Fraction(1, n * n_places):
        return f"consistent with a share of tokens: {count:,} of {n * n_places:,}", "count whole answers"
    told = f" ({figure.count_of(part):,}/{part:,} is written so)" if is_telling else ""
    return f"consistent with a mean over something else than examples, or over another number of them{told}", fix


def _batch_means(figure: Figure, n: int) -> str:
    """The batches whose means have this mean, with the fewest wrong examples; empty if none have."""
    found: list[tuple[int, str]] = []
    for size in BATCHES:
        n_batches, last = -(-n // size), n % size
        step = Fraction(1, n_batches * math.lcm(size, last or 1))
        if not last or n_batches < 2 or TELLING * figure.precision > step:
            continue  # a count of all examples, or digits that any batches could explain
        for wrong_in_last in range(last + 1):
            rest = (1 - figure.value) * n_batches - Fraction(wrong_in_last, last)
            wrong = round(rest * size)
            mean = 1 - (Fraction(wrong, size) + Fraction(wrong_in_last, last)) / n_batches
            if wrong >= 0 and figure.is_(mean):
                share = f"{mean.numerator:,}/{mean.denominator:,}"
                told = f"{share}, by {n_batches} batches of {size} with {wrong + wrong_in_last} wrong"
                found.append((wrong + wrong_in_last, f"{told}, the last batch having {last}"))
    return min(found, key=lambda each: each[0])[1] if found else ""


PART = Check("HC801", "Can the author's figure be a share of so many examples?", run, affects=CONCLUSIONS)
