"""Numbers with their doubt."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, ndtri


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


@dataclass(frozen=True)
class Paired:
    """The mean of differences on the same examples, with a 95 % interval and the chance of as much by luck."""

    mean: float
    low: float
    high: float
    p: float


DRAWS = 4999
"""Resamples of a bootstrap, and sign flips of a permutation test."""


def paired_hits(before: NDArray[np.bool_], after: NDArray[np.bool_], rng: np.random.Generator) -> Paired:
    """How many points were lost from `before` to `after`, on the same examples.

    The test is McNemar's, exact: of the examples that changed, did more get worse than chance would have it? The
    interval is a bootstrap over examples, smoothed: a bootstrap cannot see what never happened, so an imaginary example
    that got worse and one that got better are added before resampling (as Bonett and Price 2012 do for theirs).

    >>> lost = paired_hits(np.ones(500, dtype=bool), np.arange(500) >= 20, np.random.default_rng(0))
    >>> lost.mean, 0.02 < lost.low < 0.03 < lost.high < 0.07
    (0.04, True)
    """
    n, worse, better = len(before), int((before & ~after).sum()), int((~before & after).sum())
    shares = np.array([worse + 1, better + 1, n - worse - better]) / (n + 2)
    counts = rng.multinomial(n + 2, shares, size=DRAWS)  # resampling examples is resampling the three kinds of them
    low, high = np.quantile((counts[:, 0] - counts[:, 1]) / (n + 2), [0.025, 0.975])
    mean = (worse - better) / n
    return Paired(mean, min(mean, float(low)), max(mean, float(high)), mcnemar(worse, better))


def paired_differences(lost: NDArray[np.floating], rng: np.random.Generator) -> Paired:
    """The same for scores that are no hits: a bootstrap of the mean, and a test by flipping signs."""
    n = len(lost)
    means = np.array([lost[rng.integers(n, size=n)].mean() for _ in range(DRAWS)])
    low, high = np.quantile(means, [0.025, 0.975])
    signs = rng.integers(2, size=(DRAWS, n), dtype=np.int8) * 2 - 1
    flipped = np.abs(signs.astype(np.float32) @ lost.astype(np.float32)) / n
    as_much = int((flipped >= abs(lost.mean()) * (1 - 1e-6)).sum())
    return Paired(float(lost.mean()), float(low), float(high), (as_much + 1) / (DRAWS + 1))


def paired_figures(
    before: NDArray[np.float64],
    after: NDArray[np.float64],
    total: Callable[[NDArray[np.float64], NDArray[np.int64]], NDArray[np.float64]],
    rng: np.random.Generator,
    draws: int = 999,
) -> Paired:
    """The same for a figure that is no mean over examples, such as a correlation.

    `total(scores, rows)` gives the figure of the examples with these numbers. The interval is a bootstrap over
    examples; for the test, each example's two scores change places at random.
    """
    n = len(before)
    rows = rng.integers(n, size=(draws, n))
    lost = total(before[rows], rows) - total(after[rows], rows)
    low, high = np.nanquantile(lost, [0.025, 0.975])
    whole, swapped = np.broadcast_to(np.arange(n), (draws, n)), rng.integers(2, size=(draws, n)).astype(bool)
    one, other = np.where(swapped, after, before), np.where(swapped, before, after)
    found = float(total(before, whole[0]) - total(after, whole[0]))
    as_much = int((np.abs(total(one, whole) - total(other, whole)) >= abs(found) * (1 - 1e-6)).sum())
    return Paired(found, min(found, float(low)), max(found, float(high)), (as_much + 1) / (draws + 1))


def figure_interval(
    scores: NDArray[np.float64],
    total: Callable[[NDArray[np.float64], NDArray[np.int64]], NDArray[np.float64]],
    rng: np.random.Generator,
    draws: int = 999,
) -> tuple[float, float]:
    """95 % interval of what the scores of some examples come to: a bootstrap over examples, `total` as above.

    >>> low, high = figure_interval(np.arange(100.0), lambda scores, _: scores.mean(axis=-1), np.random.default_rng(0))
    >>> 43 < low < 45 < 54 < high < 56
    True
    """
    n, found = len(scores), list[NDArray[np.float64]]()
    at_once = max(1, 2**20 // n)  # all resamples of many examples would fill the memory
    for begin in range(0, draws, at_once):
        rows = rng.integers(n, size=(min(at_once, draws - begin), n))
        found.append(total(scores[rows], rows))
    low, high = np.nanquantile(np.concatenate(found), [0.025, 0.975])
    value = float(total(scores, np.arange(n)))
    return min(value, float(low)), max(value, float(high))


def rank_correlations(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Spearman's rank correlation of many samples at once, [..., n]; 0 where one does not vary.

    >>> rank_correlations(np.array([[1.0, 2, 3], [3, 2, 1]]), np.array([[1.0, 5, 9], [1, 5, 9]])).round(6).tolist()
    [1.0, -1.0]
    """
    from scipy.stats import rankdata  # half a second, which `headcount --help` need not wait for

    a, b = (rankdata(values, axis=-1) for values in (x, y))
    a, b = (ranks - ranks.mean(axis=-1, keepdims=True) for ranks in (a, b))
    spread = np.sqrt((a * a).sum(axis=-1) * (b * b).sum(axis=-1))
    return np.divide((a * b).sum(axis=-1), spread, out=np.zeros_like(spread), where=spread > 0)


def mcnemar(worse: int, better: int) -> float:
    """Exact two-sided p: `worse` heads in `worse + better` tosses of a fair coin.

    >>> mcnemar(0, 0), mcnemar(5, 0), mcnemar(3, 3)
    (1.0, 0.0625, 1.0)
    """
    return min(1.0, 2 * float(bdtr(min(worse, better), worse + better, 0.5)))


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down correction of a family of tests (Holm 1979).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected, largest = [0.0] * len(p), 0.0
    for rank, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        largest = max(largest, min(1.0, (len(p) - rank) * p[i]))
        corrected[i] = largest
    return corrected


def rank_agreement(x: NDArray[np.floating], y: NDArray[np.floating], rng: np.random.Generator) -> tuple[float, float]:
    """Spearman's rank correlation (ties share their mean rank), and its p over shuffles; NaN if one does not vary.

    >>> rho, p = rank_agreement(np.arange(9.0), np.arange(9.0) ** 3, np.random.default_rng(0))
    >>> round(rho, 9), p < 0.001
    (1.0, True)
    """
    a, b = (_standard(_ranks(values)) for values in (x, y))
    rho = float(a @ b / len(x))
    if math.isnan(rho):
        return rho, math.nan
    shuffled = np.array([rng.permutation(b) for _ in range(DRAWS)]) @ a / len(x)
    return rho, (int((np.abs(shuffled) >= abs(rho) - 1e-12).sum()) + 1) / (DRAWS + 1)


def _ranks(values: NDArray[np.floating]) -> NDArray[np.float64]:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[place]


def _standard(values: NDArray[np.float64]) -> NDArray[np.float64]:
    spread = values.std()
    return (values - values.mean()) / spread if spread else np.full_like(values, np.nan)
