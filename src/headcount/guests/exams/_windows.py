"""Plain text as windows of tokens: no row is padded, for the last piece, if too short, is left out.

Windows of one text are no independent examples: what one is about, its neighbour is about too. So runs of neighbours
make up a cluster, which intervals resample as a whole (Künsch 1989's block bootstrap, with blocks that do not overlap).
"""

from __future__ import annotations

import numpy as np

from headcount.errors import InputError
from headcount.guests.exams.base import Candidate, Rows

FEWEST_CLUSTERS = 40
"""Of a text: twenty in each half, one to choose heads on and one to measure on."""


def windows(name: str, text: str, candidate: Candidate, n_special: int = 0) -> Rows:
    """Token ids [window, position], `n_special` fewer than the model is shown at once."""
    ids = candidate.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    length = min(candidate.length - n_special, len(ids) // 2)
    if length < 2:
        raise InputError(f"{name} is only {len(ids)} tokens long", "give a text of a few hundred words or more")
    n = len(ids) // length
    return np.array(ids[: n * length], dtype=np.int64).reshape(n, length)


def clusters_of(n: int) -> Rows:
    """Which windows are neighbours: twice the cube root of n in a row, the rate at which such runs should grow.

    (With half as many, intervals covered 92.8 % where neighbours have a correlation of 0.5.) A text that is too short
    for so many clusters has shorter ones, in the end of one window each.

    >>> clusters_of(80).tolist()[:7], len(set(clusters_of(1000).tolist()))
    ([0, 0, 1, 1, 2, 2, 3], 50)
    """
    return np.arange(n) // max(1, min(round(2 * n ** (1 / 3)), n // FEWEST_CLUSTERS))
