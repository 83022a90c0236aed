"""Sorted sequences, and four ways to unsort them.

Sequences of mixed length are rows of one array; `FILL` stands behind the end of a short one and is larger than any
value, so that sorting keeps it there.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
FILL = np.iinfo(np.int64).max
Unsort = Callable[[np.random.Generator, Rows, NDArray[np.int64]], Rows]


def sorted_rows(rng: np.random.Generator, lengths: NDArray[np.int64], n_values: int, *, distinct: bool = False) -> Rows:
    """Uniform values in order; `distinct` ones where a sequence is no longer than there are values."""
    width = int(lengths.max(initial=0))
    rows = rng.integers(n_values, size=(len(lengths), width))
    if distinct:
        different = rng.permuted(np.broadcast_to(np.arange(n_values), (len(lengths), n_values)), axis=1)[:, :width]
        rows[:, : different.shape[1]] = np.where(lengths[:, None] <= n_values, different, rows[:, : different.shape[1]])
    rows[np.arange(width) >= lengths[:, None]] = FILL
    rows.sort(axis=1)
    return rows


def shuffle(rng: np.random.Generator, rows: Rows, lengths: NDArray[np.int64]) -> Rows:
    """Any order at all."""
    keys = np.where(rows == FILL, 2.0, rng.random(rows.shape))
    return np.take_along_axis(rows, keys.argsort(axis=1), axis=1)


def transpositions(rng: np.random.Generator, rows: Rows, lengths: NDArray[np.int64]) -> Rows:
    """max(2, L // 3) times, two random places change their values."""
    rows, times = rows.copy(), np.maximum(2, lengths // 3)
    for done in range(int(times.max(initial=0))):
        which = np.flatnonzero(done < times)
        i, j = _two_places(rng, lengths[which])
        rows[which, i], rows[which, j] = rows[which, j], rows[which, i]
    return rows


def adjacent(rng: np.random.Generator, rows: Rows, lengths: NDArray[np.int64]) -> Rows:
    """Two neighbours of different value change places: one broken pair, and the rest in order."""
    rows, each = rows.copy(), np.arange(len(rows))
    rises = (rows[:, :-1] < rows[:, 1:]) & (rows[:, 1:] != FILL)
    i = np.where(rises, rng.random(rises.shape), -1.0).argmax(axis=1)
    rows[each, i], rows[each, i + 1] = rows[each, i + 1], rows[each, i]
    return rows


def displaced(rng: np.random.Generator, rows: Rows, lengths: NDArray[np.int64]) -> Rows:
    """One value is taken out and put back somewhere else."""
    i, j = (place[:, None] for place in _two_places(rng, lengths))
    at = np.broadcast_to(np.arange(rows.shape[1]), rows.shape)
    source = np.where((i <= at) & (at < j), at + 1, np.where((j < at) & (at <= i), at - 1, at))
    return np.take_along_axis(rows, np.where(at == j, i, source), axis=1)


KINDS: dict[str, Unsort] = {
    "shuffle": shuffle,
    "transpositions": transpositions,
    "displaced": displaced,
    "adjacent": adjacent,
}


def unsorted_rows(
    rng: np.random.Generator, kinds: NDArray[np.str_], lengths: NDArray[np.int64], n_values: int, *, distinct: bool
) -> tuple[Rows, Rows]:
    """Rows of these kinds, and the sorted rows they were made of; a row that came out sorted is made again."""
    ordered = sorted_rows(rng, lengths, n_values, distinct=distinct)
    while (flat := ordered[:, 0] == _last(ordered, lengths)).any():
        ordered[flat] = _widened(sorted_rows(rng, lengths[flat], n_values, distinct=distinct), ordered.shape[1])
    made, todo = ordered.copy(), np.ones(len(ordered), dtype=bool)
    while todo.any():
        for kind in set(kinds[todo].tolist()):
            rows = np.flatnonzero(todo & (kinds == kind))
            made[rows] = KINDS[kind](rng, ordered[rows], lengths[rows])
        todo = first_broken(made) < 0
    return made, ordered


def first_broken(rows: Rows) -> NDArray[np.int64]:
    """The first i with x_i > x_(i+1), for each row; -1 if there is none."""
    falls = rows[:, :-1] > rows[:, 1:]
    return np.where(falls.any(axis=1), falls.argmax(axis=1), -1) if falls.shape[1] else np.full(len(rows), -1)


def _two_places(rng: np.random.Generator, lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    i = (rng.random(len(lengths)) * lengths).astype(np.int64)
    step = 1 + (rng.random(len(lengths)) * (lengths - 1)).astype(np.int64)
    return i, (i + step) % lengths


def _last(rows: Rows, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return rows[np.arange(len(rows)), lengths - 1]


def _widened(rows: Rows, width: int) -> Rows:
    return np.pad(rows, ((0, 0), (0, width - rows.shape[1])), constant_values=FILL)
