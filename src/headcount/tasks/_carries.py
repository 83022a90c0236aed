"""The truth about carries, and what a wrong digit means.

Columns count from the least significant digit, 0.

>>> truth = carries_of(np.array([[374, 814], [999, 1]]), n_columns=3)
>>> truth.out.tolist()
[[False, False, True], [True, True, True]]
>>> truth.count.tolist(), truth.longest.tolist()
([1, 3], [1, 3])
>>> explain_digits(np.array([300, 600]), np.array([0, 0, 8, 0]))
'100s: 8, should be 9'
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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


def explain_digits(pair: NDArray[np.int64], said: Columns) -> str:
    """Which digits of a wrong sum are wrong, and whether a carry was lost or made up. `said`: least first."""
    right = digits_of(pair.sum(), len(said))
    notes = [(column, f" ({note})" if note else "") for column, note in wrong_columns(pair, said)]
    return "; ".join(f"{column_name(c)}: {said[c]}, should be {right[c]}{note}" for c, note in notes)


def wrong_columns(pair: NDArray[np.int64], said: Columns) -> list[tuple[int, str]]:
    """Each wrong column, the most significant first, and what became of the carry into it.

    >>> wrong_columns(np.array([374, 816]), np.array([0, 8, 1, 1]))
    [(1, 'lost the carry from the 1s')]
    """
    right = digits_of(pair.sum(), len(said))
    carried = np.append(carries_of(pair[None], len(said) - 1).out[0], False)
    faults = []
    for column in reversed(np.flatnonzero(said != right).tolist()):
        note = ""
        if column > 0:
            carry_in, off_by = carried[column - 1], (said[column] - right[column]) % 10
            if carry_in and off_by == 9:
                note = f"lost the carry from the {column_name(column - 1)}"
            elif not carry_in and off_by == 1:
                note = f"made up a carry from the {column_name(column - 1)}"
        faults.append((column, note))
    return faults
