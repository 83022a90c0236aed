"""Products of settings, of which a quick run tests a sample."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from typing import Any

import pytest


def pairwise_sample(product: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Return parameters for all rows of a product; rows that show no new pair of values are for `--long` only.

    The sample begins with the first row, and each next row is the one that shows most new pairs.
    """
    rows = list(product)
    unseen = {i: {(pair, row[pair[0]], row[pair[1]]) for pair in combinations(range(len(row)), 2)}
              for i, row in enumerate(rows)}  # fmt: skip
    sample = set[int]()
    while unseen:
        best = max(unseen, key=lambda i: len(unseen[i]))
        shown = unseen.pop(best)
        sample.add(best)
        unseen = {i: rest for i, pairs in unseen.items() if (rest := pairs - shown)}
    return [pytest.param(*row, marks=() if i in sample else pytest.mark.long) for i, row in enumerate(rows)]
