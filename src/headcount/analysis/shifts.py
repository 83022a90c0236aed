"""Is the step from position p to p + k the same step everywhere?

Where it is, a model that has learned what "k further on" looks like at trained positions knows it at all others. Two
properties say so, and both are computed here from an encoding's own numbers. They are one property: rows that some
rotation carries each to its next are rows whose products P_t . P_s depend on t - s alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
FEWEST_ROWS = 3
"""Two steps: one to fit a map on, and one to try it on."""


@dataclass(frozen=True)
class LinearShift:
    """The best maps from each row to its next among the first `n_rows`; errors are shares of the rows' own size."""

    n_rows: int
    d_model: int
    fitted: float
    """Of one linear map for all steps. With fewer steps than dimensions some map always fits: 0 means nothing then."""
    held_out: float
    """Of a linear map on a step that it was not fitted on; 1 is no better than answering 0."""
    rotation: float
    """Of the best rotation, which keeps all angles and lengths."""


@dataclass(frozen=True)
class Shift:
    """How far an encoding is from one in which only t - s matters."""

    unexplained: float
    """Share of the variance of K(t, s), t ≠ s, that t - s does not explain; 0: it depends on t - s alone."""
    unexplained_trained: float | None
    """The same among trained positions; None if nothing was trained."""
    deviation: float
    """Largest distance of K(t, s) from the mean over all pairs with the same t - s."""
    rotation_error: float | None
    """Largest entry of P(p + k) - R_k P(p) over all p and k, R_k being the sinusoids' rotation; None if no table."""
    largest_entry: float | None
    """Of the table, to hold that error against."""
    linear: LinearShift | None


@dataclass(frozen=True)
class Curve:
    """K(t, s), or one head's bias, against the distance s - t from -(n - 1) to n - 1; None where the key is hidden."""

    label: str
    mean: tuple[float | None, ...]
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]
    """Over all pairs at that distance; low, mean and high are one if only the distance matters."""


def measure_shift(kernel: Array, table: Array | None, *, trained: int | None, fitted: int, step: float = 1.0) -> Shift:
    """Every number; maps are fitted on the first `fitted` rows, sinusoids stand `step` apart."""
    few = None if trained is None else kernel[:trained, :trained]
    return Shift(
        unexplained=unexplained(kernel),
        unexplained_trained=None if few is None or len(few) < FEWEST_ROWS else unexplained(few),
        deviation=float(np.nanmax(np.abs(kernel - _diagonal_means(kernel)))),
        rotation_error=None if table is None else rotation_error(table, step),
        largest_entry=None if table is None else float(np.abs(table).max()),
        linear=None if table is None or fitted < FEWEST_ROWS else fit_shift(table[:fitted]),
    )


def unexplained(kernel: Array) -> float:
    """The share of the variance over pairs t ≠ s that their distance does not explain; NaN marks hidden pairs.

    Pairs t = s are left out: any position is most like itself, and that alone would count as explained.

    >>> unexplained(np.array([[9.0, 1.0, 2.0], [1.0, 9.0, 1.0], [2.0, 1.0, 9.0]]))
    0.0
    """
    counted = np.isfinite(kernel) & ~np.eye(len(kernel), dtype=bool)
    values = kernel[counted]
    total = np.square(values - values.mean()).sum()
    if total <= 1e-12 * np.square(values).sum():
        return 0.0
    return float(np.square(values - _diagonal_means(kernel)[counted]).sum() / total)


def rotation(step: float, k: int, d_model: int) -> Array:
    """R_k in float64: turns the i-th pair (sin, cos) by the angle k step w_i. An odd last dimension has no partner."""
    turned = np.zeros((d_model, d_model))
    for i in range(0, d_model - 1, 2):
        angle = k * step * 10000.0 ** (-i / d_model)
        cos, sin = np.cos(angle), np.sin(angle)
        turned[i : i + 2, i : i + 2] = [[cos, sin], [-sin, cos]]
    return turned


def rotation_error(table: Array, step: float = 1.0) -> float:
    """The largest entry of P(p + k) - R_k P(p) over all positions p and steps k."""
    n, d_model = table.shape
    paired = d_model - d_model % 2
    misses = [table[k:] - table[: n - k] @ rotation(step, k, d_model).T for k in range(1, n)]
    return float(max(np.abs(miss[:, :paired]).max() for miss in misses))


def fit_shift(rows: Array) -> LinearShift:
    """The best maps from each row to its next."""
    here, there = rows[:-1], rows[1:]
    size = np.linalg.norm(there)
    misses = [_predict(np.delete(here, i, 0), np.delete(there, i, 0), here[i]) - there[i] for i in range(len(here))]
    left, _, right = np.linalg.svd(here.T @ there)
    return LinearShift(
        n_rows=len(rows),
        d_model=rows.shape[1],
        fitted=float(np.linalg.norm(_predict(here, there, here) - there) / size),
        held_out=float(np.linalg.norm(misses) / size),
        # Schönemann 1966: the orthogonal matrix nearest to carrying one set of rows to another.
        rotation=float(np.linalg.norm(here @ (left @ right) - there) / size),
    )


def curve_of(kernel: Array, label: str) -> Curve:
    """K(t, s) by s - t."""
    n = len(kernel)
    diagonals = [np.diagonal(kernel, offset) for offset in range(1 - n, n)]
    seen = [values[np.isfinite(values)] for values in diagonals]
    mean, low, high = (
        tuple(float(f"{pick(values):.6g}") if len(values) else None for values in seen)
        for pick in (np.mean, np.min, np.max)
    )
    return Curve(label, mean, low, high)


def _predict(here: Array, there: Array, asked: Array) -> Array:
    # Smaller singular values are the rounding errors of single precision.
    return asked @ np.linalg.lstsq(here, there, rcond=1e-6)[0]


def _diagonal_means(kernel: Array) -> Array:
    """At each pair, the mean over all seen pairs at its distance."""
    n, seen = len(kernel), np.isfinite(kernel)
    distance = np.arange(n) - np.arange(n)[:, None] + n - 1
    count = np.bincount(distance[seen], minlength=2 * n - 1)
    total = np.bincount(distance[seen], weights=kernel[seen], minlength=2 * n - 1)
    return np.where(seen, (total / np.maximum(count, 1))[distance], np.nan)
