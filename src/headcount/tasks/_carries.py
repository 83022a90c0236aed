"""The truth about carries, and what a wrong digit means.

Columns count from the least significant digit, 0.

>>> truth = carries_of(np.array([[374, 814], [999, 1]]), n_columns=3)
>>> truth.out.tolist()
[[False, False, True], [True, True, True]]
>>> truth.count.tolist(), truth.longest.tolist()
([1, 3], [1, 3])
>>> explain_digits(np.array([300, 600]), np.array([0, 0, 8, 0]))
'100s: 8, should be 9'

The sum-9 contrast: does anything change when a column adds to 10 and not to 9?

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

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headcount.tasks.base import Contrast, Examples

Columns = NDArray[np.int64]


@dataclass(frozen=True)
class Carries:
    """Carry into and out of each column, [example, column]; how many, and the longest unbroken run of them."""

    into: NDArray[np.bool_]
    out: NDArray[np.bool_]
    count: NDArray[np.int64]
    longest: NDArray[np.int64]


def digits_of(numbers: NDArray[np.int64], n_columns: int) -> Columns:
    """Digits of each number, [..., column], least significant first."""
    return numbers[..., None] // 10 ** np.arange(n_columns) % 10


def carries_of(pairs: NDArray[np.int64], n_columns: int) -> Carries:
    """The carries of each pair of operands."""
    digit_sums = digits_of(pairs, n_columns).sum(axis=1)
    into = np.zeros(digit_sums.shape, dtype=bool)
    out = np.zeros(digit_sums.shape, dtype=bool)
    run = np.zeros(len(pairs), dtype=np.int64)
    longest = np.zeros(len(pairs), dtype=np.int64)
    for column in range(n_columns):
        if column > 0:
            into[:, column] = out[:, column - 1]
        out[:, column] = digit_sums[:, column] + into[:, column] > 9
        run = np.where(out[:, column], run + 1, 0)
        longest = np.maximum(longest, run)
    return Carries(into, out, out.sum(axis=1), longest)


def column_name(column: int | np.integer) -> str:
    """`1s`, `10s`, `100s`, ..."""
    return f"{10 ** int(column)}s" if column < 6 else f"10^{column}s"


def explain_digits(pair: NDArray[np.int64], predicted: Columns) -> str:
    """Which digits of a wrong sum are wrong, and whether a carry was lost or made up. `predicted`: least first."""
    right = digits_of(pair.sum(), len(predicted))
    notes = [(column, f" ({note})" if note else "") for column, note in wrong_columns(pair, predicted)]
    return "; ".join(f"{column_name(c)}: {predicted[c]}, should be {right[c]}{note}" for c, note in notes)


def wrong_columns(pair: NDArray[np.int64], predicted: Columns) -> list[tuple[int, str]]:
    """Each wrong column, the most significant first, and what became of the carry into it.

    >>> wrong_columns(np.array([374, 816]), np.array([0, 8, 1, 1]))
    [(1, 'lost the carry from the 1s')]
    """
    right = digits_of(pair.sum(), len(predicted))
    carried = np.append(carries_of(pair[None], len(predicted) - 1).out[0], False)
    faults = []
    for column in reversed(np.flatnonzero(predicted != right).tolist()):
        note = ""
        if column > 0:
            carry_in, off_by = carried[column - 1], (predicted[column] - right[column]) % 10
            if carry_in and off_by == 9:
                note = f"lost the carry from the {column_name(column - 1)}"
            elif not carry_in and off_by == 1:
                note = f"made up a carry from the {column_name(column - 1)}"
        faults.append((column, note))
    return faults


# --- the sum-9 contrast -----------------------------------------------------------------------------------------------


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
