"""What a head could be looking at in a sequence of numbers: what stands beside a number, and its equals."""

from __future__ import annotations

import numpy as np

from headcount.tasks.base import Condition, Looks, Places, Target, Tokens


def neighbour_looks(tokens: Tokens, condition: Condition) -> Looks:
    """The targets in these sequences, [example, place]; a number is no equal of itself.

    >>> always = Condition("yes", "no", "always", np.ones((1, 1), dtype=bool))
    >>> equal = neighbour_looks(np.array([[3, 5, 5]]), always).targets["equal numbers"]
    >>> equal(np.arange(3)[:, None], np.arange(3)[None]).astype(int).tolist()
    [[[0, 0, 0], [0, 0, 1], [0, 1, 0]]]
    """

    def equal(query: Places, key: Places) -> np.ndarray:
        return (tokens[:, query] == tokens[:, key]) & (query != key)

    targets: dict[str, Target] = {
        "left neighbour": lambda query, key: key == query - 1,
        "itself": lambda query, key: key == query,
        "right neighbour": lambda query, key: key == query + 1,
        "equal numbers": equal,
        "first token": lambda query, key: key == 0,
    }
    return Looks(targets, (), np.full(tokens.shape[1], -1), condition)
