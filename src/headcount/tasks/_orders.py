"""Sorted sequences, and four ways to unsort them.

Sequences of mixed length are rows of one array; `FILL` stands behind the end of a short one and is larger than any
value, so that sorting keeps it there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headcount.errors import InputError

Rows = NDArray[np.int64]
FILL = np.iinfo(np.int64).max
Unsort = Callable[[np.random.Generator, Rows, NDArray[np.int64]], Rows]


@dataclass(frozen=True)
class Values:
    """Where the numbers of a sequence come from."""

    n: int
    """They run from 0 to n - 1."""
    distinct: bool = False
    """No number twice in a sequence, where it is no longer than there are numbers."""
    small_steps: float = 0.0
    """Share of the sequences whose numbers come from a narrow range: ties and small steps, as in long sequences."""


def sorted_rows(rng: np.random.Generator, lengths: NDArray[np.int64], values: Values) -> Rows:
    """Uniform numbers in order."""
    shape = len(lengths), int(lengths.max(initial=0))
    if values.small_steps:
        # The width of a range is log-uniform: a step of 1 between ties is then as common as a step of 10.
        widths = np.exp(rng.uniform(np.log(2), np.log(values.n + 1), size=(shape[0], 1))).astype(np.int64)
        widths = np.where(rng.random((shape[0], 1)) < values.small_steps, widths, values.n)
        rows = rng.integers(values.n - widths + 1) + rng.integers(np.broadcast_to(widths, shape))
    else:
        rows = rng.integers(values.n, size=shape)
    if values.distinct:
        different = rng.permuted(np.broadcast_to(np.arange(values.n), (shape[0], values.n)), axis=1)[:, : shape[1]]
        fits = lengths[:, None] <= values.n
        rows[:, : different.shape[1]] = np.where(fits, different, rows[:, : different.shape[1]])
    rows[np.arange(shape[1]) >= lengths[:, None]] = FILL
    rows.sort(axis=1)
    return rows


def shuffle(rng: np.random.Generator, rows: Rows, lengths: NDArray[np.int64]) -> Rows:
    """Any order at all."""
    keys = np.where(rows == FILL, 2.0, rng.random(rows.shape))
    return np.take_along_axis(rows, keys.argsort(axis=1), axis=1)


def transpositions(rng: np.random.Generator, rows: Rows, lengths: NDArray[np.int64]) -> Rows:
    """max(2, L // 3) times, two random places change their values."""
    # Of two values, a second swap would undo the first, for ever.
    rows, times = rows.copy(), np.where(lengths == 2, 1, np.maximum(2, lengths // 3))
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


def moved_one(rng: np.random.Generator, rows: Rows, lengths: NDArray[np.int64]) -> Rows:
    """One value is taken out and put back somewhere else."""
    i, j = (place[:, None] for place in _two_places(rng, lengths))
    at = np.broadcast_to(np.arange(rows.shape[1]), rows.shape)
    source = np.where((i <= at) & (at < j), at + 1, np.where((j < at) & (at <= i), at - 1, at))
    return np.take_along_axis(rows, np.where(at == j, i, source), axis=1)


NEGATIVES: dict[str, Unsort] = {
    "shuffle": shuffle,
    "transpositions": transpositions,
    "moved_one": moved_one,
    "adjacent": adjacent,
}


def unsorted_rows(
    rng: np.random.Generator, kinds: NDArray[np.str_], lengths: NDArray[np.int64], values: Values
) -> tuple[Rows, Rows]:
    """Rows of these kinds, and the sorted rows they were made of; a row that came out sorted is made again."""
    if (lengths < 2).any():
        raise InputError("a single number cannot be unsorted", "ask for 2 numbers or more")
    ordered = sorted_rows(rng, lengths, values)
    if not len(ordered):
        return ordered, ordered
    while (flat := ordered[:, 0] == _last(ordered, lengths)).any():
        ordered[flat] = _widened(sorted_rows(rng, lengths[flat], values), ordered.shape[1])
    made, todo = ordered.copy(), np.ones(len(ordered), dtype=bool)
    while todo.any():
        for (
            kind,
            unsort,
        ) in NEGATIVES.items():  # in one order always: the order of a set changes from process to process
            rows = np.flatnonzero(todo & (kinds == kind))
            if len(rows):
                made[rows] = unsort(rng, ordered[rows], lengths[rows])
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
