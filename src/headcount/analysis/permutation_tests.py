"""p-values against draws of a null, for one statistic and for a family of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


def step_down(observed: Values, null: Values) -> Values:
    """A p for each of several statistics, corrected over all (max-T, Westfall and Young 1993).

    `null` is [draw, statistic]. Each statistic is measured by its own mean and spread, over the draws and what was
    observed alike, so that under the null what was observed is one draw among the others, and the p of the largest
    statistic is exact.

    >>> null = np.random.default_rng(0).normal(size=(99, 2))
    >>> step_down(np.array([9.0, 0.0]), null).round(2).tolist()
    [0.01, 0.54]
    """
    both = np.vstack([observed, null])
    spread = both.std(axis=0)
    scaled = np.divide(both - both.mean(axis=0), spread, out=np.zeros_like(both), where=spread > 1e-12)
    order = np.argsort(-scaled[0], kind="stable")
    # The largest statistic is compared with the largest of all in each draw, the next with the largest of the others.
    largest = np.maximum.accumulate(scaled[1:, order[::-1]], axis=1)[:, ::-1]
    p = np.empty(len(observed))
    p[order] = np.maximum.accumulate(share_above(scaled[0, order], largest))
    return p


def share_above(observed: Values, null: Values) -> Values:
    """A p for each statistic by itself: how many of the draws and itself are at least as large."""
    return np.asarray((1 + (null >= observed - 1e-9).sum(axis=0)) / (len(null) + 1))
