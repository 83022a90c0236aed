"""Decide when a head has been measured on enough examples, with confidence intervals that allow for repeated looks.

A head is measured on more and more examples, and its drop is looked at several times. Stopping when an ordinary
interval looks good would miss the true drop more often than 5 % of the time. Here, all looks at one head share the 5 %:
each look spends a part of this probability of error, and the last look spends what is left:


    first look (540 examples)       1 %      a head that changes no answer is then redundant
    up to six further looks         0.4 %    each, while the band is undecided
    last look                       1.6 to 4 %, depending on the number of looks before it

By the union bound, all intervals of one head together contain its drop with a probability of 95 %, whatever the reason
for stopping after a look: the data, a time budget or a person. Their intersection is therefore a 95 % CI. This is a
confidence sequence (Darling and Robbins 1967; Howard et al. 2021) that is computed at few looks only. It needs fewer
examples than one that holds at every single example (docs/adr/0021).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import scipy

from headcount.bands import CRITICAL, IMPORTANT, band_of
from headcount.limits import PRECISION
from headcount.stats import PairedDifference

ALPHA = 0.05
"""Largest probability that any look at a head (test on the examples so far) gives an interval that misses its drop."""
LEVELS = (0.01, *[0.004] * 6)
"""Probability of error that each look at a head (a test on the examples so far), except the last one, uses up."""
FIRST_HITS, FIRST_SCORES = 540, 128
"""Number of examples at the first look at a head, for accuracies and for losses.

For accuracies, a head without any effect is then redundant.
"""
MOST_GROWTH, LEAST_GROWTH = 2.0, 1.25
"""Largest and smallest factor by which examples grow between two looks at a head, as long as it is undecided."""
MARGIN, FIRST_MARGIN = 1.03, 0.87
"""Ratio of the planned number of examples to the estimated one, for a later and for the first plan.

The first plan for a narrow interval is below the estimate, because intervals at few examples are too wide; a second
plan then corrects it.
"""
GRID = 1.06
"""Ratio between successive numbers of examples at which heads may be judged; a common grid lets heads share work."""
HOPE = 0.5
"""A head counts as hopeless if it would stay undecided even with its drop this many standard errors farther off."""


@dataclass(frozen=True)
class StoppingRule:
    """The rule that ends the measurement of a head: its band (such as redundant) is decided and its CI is narrow."""

    precision: float = PRECISION
    """Largest half-width of the CI of a drop at which to stop, in the unit of the drop (0.01 is 1 point)."""
    first: int = FIRST_HITS
    """Number of examples at the first look at each head."""
    most: int = 30_000
    """Largest number of examples on which a head is measured."""


@cache
def _quantile(level: float) -> float:
    """Return the half-width, in standard errors, of a normal interval that misses the truth with this probability."""
    return float(scipy.special.ndtri(1 - level / 2))


@dataclass
class Looks:
    """The looks at one head under one kind of ablation; a look is a test on all examples so far.

    It keeps the probability of error that looks have used up, the interval so far, and when to look next.
    """

    rule: StoppingRule
    n_looks: int = 0
    spent: float = 0.0
    """Probability of error that the looks (tests on the examples so far) have used up, out of 5 %."""
    low: float = -math.inf
    high: float = math.inf
    """Upper end of the intersection of all intervals so far; `low` is its lower end."""
    is_last: bool = False
    """Whether the next look (test on all examples so far) is the last one, with all remaining probability of error."""
    is_settled: bool = False
    """Whether the head needs no more examples."""

    def __post_init__(self) -> None:
        self.next_n = min(self.rule.first, self.rule.most)
        """Number of examples at which the head is looked at next."""
        self.is_last = self.next_n >= self.rule.most

    @property
    def level(self) -> float:
        """The probability of error that the next look (test on all examples so far) uses up."""
        return ALPHA - self.spent if self.is_last else LEVELS[self.n_looks]

    def stop_here(self) -> None:
        """Make the next look the last one, because no more examples can be measured."""
        self.is_last = True

    def look(
        self, n: int, drop: PairedDifference, wider: PairedDifference | None = None, *, has_bands: bool = True
    ) -> PairedDifference:
        """Look at a head's drop on the n examples so far; return it with a CI that allows for all looks.

        The CI of `drop` has the confidence 1 - `level`. `wider` is the drop with the noise of an estimated mean output
        in its interval, which more examples do not reduce. With `has_bands`, the head is measured until it is decided,
        such as redundant.
        """
        wider = wider or drop
        level, half = self.level, (drop.high - drop.low) / 2
        low, high = max(self.low, wider.low), min(self.high, wider.high)
        whole = PairedDifference(drop.mean, min(low, drop.mean), max(high, drop.mean), min(1.0, drop.p * ALPHA / level))
        is_decided = not has_bands or band_of(whole) != "undecided"
        is_narrow = half <= self.rule.precision
        if self.is_last and not is_narrow and n < self.rule.most:
            # Still too wide: this look does not count, and a later one spends its probability.
            self._plan(MARGIN * n * (half / self.rule.precision) ** 2)
            return whole
        self.low, self.high = low, high
        if (is_narrow and (is_decided or self.is_last)) or n >= self.rule.most:
            self.is_settled = True
        else:
            self.spent += level
            self.n_looks += 1
            error = half / _quantile(level)
            noise = math.sqrt(max((wider.high - wider.low) ** 2 / 4 - half**2, 0.0))
            if is_decided or self._is_hopeless(n, whole, error, noise):
                self.is_settled, self.is_last = is_narrow, True
                growth = (_quantile(ALPHA - self.spent) * error / self.rule.precision) ** 2
                self._plan(max(n + 1, FIRST_MARGIN * growth * n))
            else:
                self._plan_for_band(n, whole, error)
        return whole

    def _plan(self, n: float) -> None:
        """Plan the next look for at least `n` examples, at one of the numbers of examples that all heads share."""
        steps = math.ceil(math.log(max(n / self.rule.first, 1.0), GRID))
        self.next_n = min(self.rule.most, math.ceil(self.rule.first * GRID**steps))
        self.is_last = self.is_last or self.next_n >= self.rule.most

    def _plan_for_band(self, n: int, drop: PairedDifference, error: float) -> None:
        """Plan the next look at the head for the number of examples that should decide it, such as redundant.

        The last of all looks has the largest number of examples.
        """
        if self.n_looks == len(LEVELS):
            self._plan(self.rule.most)
            return
        gap, level = _gap(drop), LEVELS[self.n_looks]
        needed = n * (_quantile(level) * error / gap) ** 2 if gap else math.inf
        planned = min(max(MARGIN * needed, LEAST_GROWTH * n), MOST_GROWTH * n)
        self._plan(planned if LEAST_GROWTH * planned < self.rule.most else self.rule.most)

    def _is_hopeless(self, n: int, drop: PairedDifference, error: float, noise: float) -> bool:
        """Return whether even the largest number of examples would not decide the head, such as redundant.

        This must hold even for a drop that is `HOPE` standard errors farther from the limit. `noise` is the part of the
        interval's half-width that more examples do not reduce.
        """
        half = _quantile(ALPHA - self.spent) * error * math.sqrt(n / self.rule.most)
        return math.hypot(half, noise) > _gap(drop) + HOPE * error


def _gap(drop: PairedDifference) -> float:
    """Return the distance of a drop to the nearest limit (10 points or 1 point) that lies inside of its interval."""
    return min(abs(drop.mean - limit) for limit in (IMPORTANT, CRITICAL) if drop.low <= limit <= drop.high)
