"""What is a mean over queries worth, when the queries of one example are not independent?

Examples are drawn; the queries of one example come together. The standard error is therefore over examples: each
example's pull on the mean is kept, and their sum of squares is the variance. With one query in each example that is
the textbook's s / sqrt(n).

>>> one = estimate(np.array([[1.0], [2.0], [6.0]]), np.ones((3, 1)), [np.ones((3, 1), dtype=bool)])
>>> one.mean, round(one.se, 6), one.n
(3.0, 1.527525, 3)
>>> float(round(np.std([1, 2, 6], ddof=1) / np.sqrt(3), 6))
1.527525
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Sums = NDArray[np.float64]
Stratum = NDArray[np.bool_]
"""[example, column]: what is pooled into one mean."""


@dataclass(frozen=True)
class Estimate:
    """A mean, and each example's pull on it; 0 for an example that has no part in it."""

    mean: float
    pulls: NDArray[np.float64]
    takes_part: NDArray[np.bool_]

    @property
    def n(self) -> int:
        """How many examples it rests on."""
        return int(self.takes_part.sum())

    @property
    def se(self) -> float:
        """The standard error over examples; there must be two of them."""
        return float(np.sqrt((self.pulls**2).sum() * self.n / (self.n - 1)))

    def __sub__(self, other: Estimate) -> Estimate:
        """The difference; an example that pulls on both counts once, so that what they share is not counted twice."""
        return Estimate(self.mean - other.mean, self.pulls - other.pulls, self.takes_part | other.takes_part)


def estimate(sums: Sums, counts: Sums, strata: Sequence[Stratum]) -> Estimate:
    """The mean of the strata's means, from each example's sums and counts by column, [example, column].

    Strata count alike, so that two groups of examples which differ in how often they meet a column can be compared.
    """
    means, pulls, takes_part = [], np.zeros(len(sums)), np.zeros(len(sums), dtype=bool)
    for stratum in strata:
        total = max(counts[stratum].sum(), 1.0)  # of nothing, the mean is 0 and n is 0
        means.append(sums[stratum].sum() / total)
        pulls += ((sums - means[-1] * counts) * stratum).sum(axis=1) / (total * len(strata))
        takes_part |= (counts * stratum).any(axis=1)
    return Estimate(float(np.mean(means)), pulls, takes_part)
