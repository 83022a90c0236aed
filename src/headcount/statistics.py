"""Numbers with their doubt."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri


@dataclass(frozen=True)
class Share:
    """`correct` of `n`, with a Wilson score interval (Wilson 1927), which stays inside [0, 1] at 0 % and 100 %.

    >>> Share.of(98, 100)
    Share(correct=98, n=100, rate=0.98, low=0.929..., high=0.994...)
    """

    correct: int
    n: int
    rate: float
    low: float
    high: float

    @classmethod
    def of(cls, correct: int, n: int, confidence: float = 0.95) -> Share:
        """The share of `n` trials that were `correct`."""
        if not 0 <= correct <= n or n == 0:
            raise ValueError(f"{correct} of {n} is no share: there must be trials, and no more hits than trials")
        if not 0 < confidence < 1:
            raise ValueError(f"confidence should lie between 0 and 1, not at {confidence}")
        z = float(ndtri(0.5 + confidence / 2))
        rate = correct / n
        centre = (rate + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
        # Rounding may leave 1 - 1e-17 where the formula gives exactly 0 or 1.
        return cls(
            int(correct),
            int(n),
            rate,
            0.0 if correct == 0 else centre - half,
            1.0 if correct == n else centre + half,
        )

    @classmethod
    def count(cls, hits: NDArray[np.bool_]) -> Share:
        """The share of trials that hit."""
        return cls.of(int(hits.sum()), len(hits))

    def __str__(self) -> str:
        return f"{self.rate:.2%} [{self.low:.2%}, {self.high:.2%}], n={self.n:,}"
