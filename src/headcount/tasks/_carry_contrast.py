"""The sum-9 contrast: does anything change when a column adds to 10 and not to 9?

Of 374+615 the 1s add to 9; one digit makes them add to 10, and a carry enters the 10s. The same digit less by one makes
them add to 8, which changes a digit but no carry:

    8 -> 9     373+615  374+615     beside the border: what a digit does
    9 -> 10    374+615  375+615     across it: what a digit and a carry do

The difference of the two is what the carry does. Nothing is carried into the column, and the column above does not add
to 9, so that the carry goes no further. That column's own digits are the same in all three, and so is what the decoder
was fed before it says that column (most significant digit first).

>>> found = carry_contrast(np.random.default_rng(0), 2, 100, 999, 3)
>>> found.columns
('10s', '10s', '100s', '100s', '1000s', '1000s')
>>> [step[0].tolist() for step in found.steps]
[[865, 673], [865, 674], [865, 675]]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headcount.tasks._carries import carries_of, column_name, digits_of
from headcount.tasks.base import Contrast, Examples

TRIES = 40
"""Pairs drawn for each that is wanted; about one in fifteen will do."""


def carry_contrast(rng: np.random.Generator, n: int, low: int, high: int, n_columns: int) -> Contrast:
    """Up to `n` examples for each column of the operands."""
    found = [_at(rng, n, low, high, n_columns, column) for column in range(n_columns)]
    steps = tuple(np.concatenate(parts) for parts in zip(*found, strict=True))
    columns = tuple(column_name(i + 1) for i, (between, *_) in enumerate(found) for _ in between)
    words = "attention moved by a lower column that adds to 10 instead of 9, less that by 9 instead of 8"
    return Contrast("carry sensitivity", words, (steps[0], steps[1], steps[2]), columns)


def _at(
    rng: np.random.Generator, n: int, low: int, high: int, n_columns: int, column: int
) -> tuple[Examples, Examples, Examples]:
    """Pairs whose digits in this column add to 9, and beside them one of the two digits less, and more, by one."""
    pairs = rng.integers(low, high + 1, size=(TRIES * n, 2))
    digit, unit = digits_of(pairs, n_columns)[:, :, column], 10**column
    pairs[:, 1] += (9 - digit.sum(axis=1)) * unit  # 9 less the first digit, whatever the second was
    step = np.zeros_like(pairs)
    step[np.arange(len(pairs)), rng.integers(2, size=len(pairs))] = unit
    before, after = pairs - step, pairs + step
    usable = _is_clean(pairs, column, n_columns)
    for each in (before, pairs, after):
        usable &= ((low <= each) & (each <= high)).all(axis=1)
    for each, total in ((before, 8), (after, 10)):  # a 0 or a 9 would have borrowed from the next column
        usable &= digits_of(each, n_columns)[:, :, column].sum(axis=1) == total
    _, first = np.unique(pairs[usable], axis=0, return_index=True)  # each once, in the order drawn
    rows = np.flatnonzero(usable)[np.sort(first)[:n]]
    return before[rows], pairs[rows], after[rows]


def _is_clean(pairs: Examples, column: int, n_columns: int) -> NDArray[np.bool_]:
    """Nothing is carried into the column, and the next one passes no carry on."""
    clean: NDArray[np.bool_] = ~carries_of(pairs, n_columns).into[:, column]
    if column + 1 < n_columns:
        clean &= digits_of(pairs, n_columns)[:, :, column + 1].sum(axis=1) != 9
    return clean
