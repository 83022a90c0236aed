"""A confidence sequence by betting, written for the tests alone."""

import numpy as np
from scipy.optimize import brentq
from scipy.special import logsumexp

BETS = 0.98 * 2.0 ** -np.arange(0, 8, 0.5)
"""Fractions of the largest bet that cannot lose everything."""


def betting_interval(worse: float, better: float, n: int, alpha: float = 0.05) -> tuple[float, float]:
    """Return an interval of the mean of differences 1 (worse), 0 and -1 (better) that holds at every n at once.

    Two gamblers bet that the mean is above m, or below it, with a mixture of constant fractions (Waudby-Smith and
    Ramdas 2024, J. R. Stat. Soc. B). If the mean is m, their capital exceeds 2 / alpha with a probability of at most
    alpha / 2. An m at which one of them is richer than that is not in the interval.
    """
    counts = np.array([worse, n - worse - better, better])

    def capital(m: float, sign: int) -> float:
        values = sign * np.array([1.0, 0.0, -1.0])
        stakes = BETS[:, None] / (1 + sign * m)
        gains = np.log1p(stakes * (values - sign * m))
        return float(logsumexp((counts * gains).sum(axis=1)) - np.log(len(BETS)))

    mean, limit, edge = (worse - better) / n, np.log(2 / alpha), 1 - 1e-9
    low = brentq(lambda m: capital(m, 1) - limit, -edge, mean) if capital(-edge, 1) > limit else -1.0
    high = brentq(lambda m: capital(m, -1) - limit, mean, edge) if capital(edge, -1) > limit else 1.0
    return float(low), float(high)
