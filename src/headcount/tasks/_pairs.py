"""Which pairs of operands are trained on and which are held out.

A pair and its swap (374+814, 814+374) are one thing here: holding one out holds out the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from headcount.seeds import stream

Pairs = NDArray[np.int64]


@dataclass(frozen=True)
class PairSplits:
    """Splits of all pairs with operands in low..high; `n_train` 0 means every pair that is not held out."""

    low: int
    high: int
    n_train: int
    n_validation: int
    n_test: int
    may_overlap: bool
    seed: int

    @property
    def n_operands(self) -> int:
        """How many numbers there are in the range."""
        return self.high - self.low + 1

    @cached_property
    def sets(self) -> dict[str, Pairs]:
        """`validation`, `test` and, if it is a fixed set, `train`."""
        sizes = {"validation": self.n_validation, "test": self.n_test, "train": self.n_train}
        if self.may_overlap:
            return {
                name: self._distinct(stream(self.seed, f"split/{name}"), size, swap_is_same=False)
                for name, size in sizes.items()
            }
        everything = self._distinct(stream(self.seed, "split"), sum(sizes.values()), swap_is_same=True)
        ends = np.cumsum(list(sizes.values()))
        return dict(zip(sizes, np.split(everything, ends[:-1]), strict=True))

    def sample(self, rng: np.random.Generator, n: int) -> Pairs:
        """`n` training pairs, with replacement."""
        if self.n_train:
            train = self.sets["train"]
            return train[rng.integers(len(train), size=n)]
        pairs = self._uniform(rng, n)
        held = self.is_held_out(pairs)
        while held.any():
            pairs[held] = self._uniform(rng, int(held.sum()))
            held = self.is_held_out(pairs)
        return pairs

    def is_held_out(self, pairs: Pairs) -> NDArray[np.bool_]:
        """Whether each pair, or its swap, is in validation or test."""
        keys, held = self._keys(pairs), self._held_keys
        at = np.searchsorted(held, keys)
        found: NDArray[np.bool_] = held[np.minimum(at, len(held) - 1)] == keys if len(held) else keys < 0
        return found

    @cached_property
    def _held_keys(self) -> NDArray[np.int64]:
        return np.sort(self._keys(np.concatenate([self.sets["validation"], self.sets["test"]])))

    def _keys(self, pairs: Pairs) -> NDArray[np.int64]:
        """One number per pair; a pair and its swap have the same."""
        ordered: NDArray[np.int64] = np.sort(pairs - self.low, axis=1)
        return ordered[:, 0] * self.n_operands + ordered[:, 1]

    def _uniform(self, rng: np.random.Generator, n: int) -> Pairs:
        return rng.integers(self.low, self.high + 1, size=(n, 2))

    def _distinct(self, rng: np.random.Generator, n: int, *, swap_is_same: bool) -> Pairs:
        """The first `n` pairs of a random sequence that do not repeat."""
        pairs = np.empty((0, 2), dtype=np.int64)
        while len(pairs) < n:
            pairs = np.concatenate([pairs, self._uniform(rng, 2 * (n - len(pairs)) + 16)])
            keys = self._keys(pairs) if swap_is_same else pairs @ np.array([self.high + 1, 1])
            pairs = pairs[np.sort(np.unique(keys, return_index=True)[1])]
        return pairs[:n]
