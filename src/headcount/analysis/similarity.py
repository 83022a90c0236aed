"""How alike are two sets of vectors for the same rows? Linear CKA (Kornblith et al. 2019), without its bias.

CKA does not change if either set is rotated or scaled, so models with residual streams of their own can be compared.
Plain CKA of few rows in many dimensions is well above 0 even for noise; here HSIC is estimated without bias (Song et
al. 2012; Nguyen et al. 2021), so that unrelated sets come out around 0, sometimes below.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float64]
"""[row, dimension]."""


def hsic(x: Rows, y: Rows) -> float:
    """The unbiased estimate of their dependence, of n > 3 rows; from sums over dimensions, never n by n."""
    n = len(x)
    own_x, own_y = (x * x).sum(axis=1), (y * y).sum(axis=1)
    sums_x, sums_y = x @ x.sum(axis=0) - own_x, y @ y.sum(axis=0) - own_y  # of the inner products with all other rows
    together = float(((x.T @ y) ** 2).sum() - own_x @ own_y)
    overall = float(sums_x.sum() * sums_y.sum()) / ((n - 1) * (n - 2))
    return (together + overall - 2 * float(sums_x @ sums_y) / (n - 2)) / (n * (n - 3))


def cka(x: Rows, y: Rows) -> float:
    """1 for sets that differ by a rotation and a scale, around 0 for unrelated ones; 0 where one does not vary.

    >>> rng = np.random.default_rng(0)
    >>> x, other = rng.normal(size=(50, 20)), rng.normal(size=(50, 20))
    >>> turn = np.linalg.qr(rng.normal(size=(20, 20)))[0]
    >>> round(cka(x, 3 * x @ turn), 6), abs(cka(x, other)) < 0.1
    (1.0, True)
    """
    scale = hsic(x, x) * hsic(y, y)
    return hsic(x, y) / math.sqrt(scale) if scale > 0 else 0.0
