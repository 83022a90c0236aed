"""Can the accuracy that the author reports be a count of right answers divided by the number of test examples?

With 2,000 examples, every accuracy is a multiple of 0.0005. Published report 002 has 0.99853515625, which is 2045 of
2048: the mean of the means of 32 batches of 64, where the last batch has 16 examples, so that its examples count four
times. The 0.9951 of report 001 is no count out of 2,000 either, because it is a fraction of tokens; and "0.0015 %" of
2,000 is less than one example.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from headcount.auditing.audited_model import AuditedModel, AuditedSequenceModel
from headcount.auditing.check import CONCLUSIONS, Check, Finding, not_applicable, passed, warned

MIN_DECIMALS = 4
"""Minimum number of decimals of an author's figure: if it has fewer, some count of examples nearly always fits it."""
USUAL_SIZES = (100, 200, 250, 300, 400, 500, 600, 750, 800, 1000, 1200, 1500, 2000, 2500, 3000, 4000, 5000, 10_000)
"""Numbers of examples that an author may have measured on, if not on the whole test set."""
BATCH_SIZES = (64, 32, 128, 16, 256, 100, 50, 8, 512, 200, 500, 20, 10, 25, 250)
"""Batch sizes to try, the most likely first."""
MIN_RESOLUTION = 20
"""An author's figure must be this much more precise than the spacing of possible fractions, so none fits by chance."""
MAX_CHANCE = 0.1
"""Largest acceptable probability that a fraction matches the author's figure by chance."""
SMALL_FRACTION = 100
"""A fraction with a denominator below this explains an author's figure better than a mean of batch means does."""
SINGLE_PRECISION = Fraction(1, 2**22)
"""Rounding error of sums and means in single precision."""


@dataclass(frozen=True)
class Figure:
    """The accuracy that an author reports, such as 0.9951, and the number of decimals that it is written with."""

    value: Fraction
    decimals: int

    @classmethod
    def of(cls, number: float) -> Figure:
        """Return the figure for a number; its decimals are the fewest that identify the number, as Python prints it."""
        written = Decimal(repr(float(number)))
        return cls(Fraction(written), max(0, -int(written.normalize().as_tuple().exponent)))

    @property
    def precision(self) -> Fraction:
        """The spacing of numbers with this many decimals, but at least the rounding error of single precision."""
        return max(Fraction(1, 10**self.decimals), SINGLE_PRECISION)

    def matches(self, share: Fraction) -> bool:
        """Return whether a fraction, rounded to the decimals of the figure, equals the figure."""
        return abs(share - self.value) <= self.precision / 2

    def count_of(self, n: int) -> int | None:
        """Return how many of `n` examples must be right to give the figure; None if no whole number gives it."""
        count = round(self.value * n)
        return count if self.matches(Fraction(count, n)) else None

    def can_exclude(self, n: int) -> bool:
        """Return whether the figure is precise enough to rule out some test sets of `n` examples."""
        return Fraction(1, n) > self.precision


def run(model: AuditedModel) -> Finding:
    """Check whether the author's figure is a whole number of right answers divided by the size of a test set."""
    n_places = len(model.places) if isinstance(model, AuditedSequenceModel) else 1
    claimed = None if model.adapter is None else model.adapter.claimed
    if claimed is None:
        return not_applicable(
            "no accuracy is reported to compare with; the headcount.Adapter class can set one: `claimed`"
        )
    n, figure = len(model.task.split(model.split)), Figure.of(claimed)
    if not 0 <= claimed <= 1:
        return warned(
            f"the author's reported accuracy is {claimed:g}, which is not between 0 and 1",
            cause="consistent with an accuracy written as a percentage",
            fix="write it as a fraction of 1, such as claimed = 0.9985",
            claimed=claimed,
        )
    if figure.decimals < MIN_DECIMALS or not figure.can_exclude(n):
        return not_applicable(
            f"the author's reported accuracy of {claimed:g} has too few digits to test: some number of right answers "
            f"out of {n:,} always rounds to it"
        )
    if (count := figure.count_of(n)) is not None:
        return passed(
            f"the author's figure of {claimed:g} is {count:,} of {n:,} examples", claimed=claimed, count=count, n=n
        )
    others = [(figure.count_of(size), size) for size in USUAL_SIZES if figure.can_exclude(size)]
    if fitting := [(count, size) for count, size in others if count is not None]:
        words = f"the author's figure of {claimed!r} is {fitting[0][0]:,} of {fitting[0][1]:,} examples"
        return passed(words, claimed=claimed, n=fitting[0][1])
    cause, fix = _cause(figure, n, n_places)
    return warned(
        f"the author's reported accuracy of {claimed!r} cannot be a number of right answers out of {n:,} examples: "
        f"{_nearest(figure, n)}",
        cause=cause,
        fix=fix,
        claimed=claimed,
        n=n,
    )


def _nearest(figure: Figure, n: int) -> str:
    """Return in words the two fractions of `n` examples that are nearest to the figure."""
    below = int(figure.value * n)
    if below == 0:
        return f"it is less than one example, which is worth {1 / n:g}"
    return f"{below:,} are {below / n:g}, and {below + 1:,} are {(below + 1) / n:g}"


def _cause(figure: Figure, n: int, n_places: int) -> tuple[str, str]:
    """Return how the figure may have been computed, and how to compute it correctly, both in words."""
    fix = "count the right examples, and divide once, by all examples"
    part = next((size for size in range(1, n) if figure.count_of(size) is not None), n)
    is_specific = part < n and part**2 * figure.precision < MAX_CHANCE
    if (batches := _batch_means(figure, n)) and not (is_specific and part < SMALL_FRACTION):
        means = "consistent with a mean of batch means, in which a short last batch counts as much as others"
        return f"{means}: {batches}", fix
    count = figure.count_of(n * n_places)
    if n_places > 1 and count is not None and MIN_RESOLUTION * figure.precision < Fraction(1, n * n_places):
        return f"consistent with a share of tokens: {count:,} of {n * n_places:,}", "count whole answers"
    fraction = f" ({figure.count_of(part):,}/{part:,} gives it)" if is_specific else ""
    return f"consistent with a mean over other units than examples, or over another number of examples{fraction}", fix


def _batch_means(figure: Figure, n: int) -> str:
    """Describe the batch size at which a mean of batch means gives the figure; empty if none does.

    If several batch sizes fit, the one with the fewest wrong answers is described.
    """
    candidates: list[tuple[int, str]] = []
    for size in BATCH_SIZES:
        n_batches, last = -(-n // size), n % size
        step = Fraction(1, n_batches * math.lcm(size, last or 1))
        if not last or n_batches < 2 or MIN_RESOLUTION * figure.precision > step:
            continue  # full batches give a count of all examples; too few digits fit any batches
        for wrong_in_last in range(last + 1):
            rest = (1 - figure.value) * n_batches - Fraction(wrong_in_last, last)
            wrong = round(rest * size)
            mean = 1 - (Fraction(wrong, size) + Fraction(wrong_in_last, last)) / n_batches
            if wrong >= 0 and figure.matches(mean):
                share = f"{mean.numerator:,}/{mean.denominator:,}"
                batches = f"{share}, by {n_batches} batches of {size} with {wrong + wrong_in_last} wrong"
                candidates.append((wrong + wrong_in_last, f"{batches}, the last batch having {last}"))
    return min(candidates, key=lambda each: each[0])[1] if candidates else ""


PART = Check(
    "HC801",
    "Can the accuracy that the author reports be a count of right answers divided by the number of test examples?",
    sequences=run,
    classes=run,
    affects=CONCLUSIONS,
)
