"""Sortedness: is a sequence of integers non-decreasing?

    3 5 5 9        sorted
    3 5 4 9        unsorted; its first broken pair is at 1 (5 > 4)

Trained on lengths 8 to 16, asked at any length. How an unsorted example is made decides what a test can show, so each
kind is drawn, and tested, apart:

    shuffle          any order at all: broken nearly everywhere, so nearly any model catches it
    transpositions   max(2, L // 3) times two places change their values (the newer reports' data)
    displaced        one value is taken out and put back somewhere else
    adjacent         two neighbours of different value change places: one broken pair, the hardest

The reports' fault (off by default): `padding_is_zero` fills short sequences with the number 0 and does not mask it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from headcount.config import suggestion
from headcount.errors import InputError
from headcount.seeds import stream
from headcount.tasks._neighbours import neighbour_looks
from headcount.tasks._orders import FILL, KINDS, Rows, Values, first_broken, sorted_rows, unsorted_rows
from headcount.tasks._sortedness_config import SortednessConfig, kind_shares
from headcount.tasks.base import ClassBatch, Condition, Examples, Looks

EMPTY = -1
"""Behind the end of a short example."""
MOST_TRIES = 200
Kinds = tuple[Examples, NDArray[np.str_]]
"""Examples, and the kind of each: how it was unsorted, or `sorted`."""


class Sortedness:
    """The sortedness task. Examples are int64 [example, place], `EMPTY` behind the end of a short one."""

    name: ClassVar[str] = "sortedness"
    asks_for: ClassVar[Literal["sequence", "class"]] = "class"
    config_class: ClassVar[type] = SortednessConfig
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "model": {"encoding": "sinusoidal"},
        "training": {"steps": 3000, "hard_share": 0.0, "eval_every": 250, "checkpoint_every": 250},
    }
    classes: tuple[str, ...] = ("unsorted", "sorted")
    kinds: tuple[str, ...] = tuple(KINDS)
    local_kind: str = "adjacent"

    def __init__(self, config: SortednessConfig | None = None) -> None:
        self.config = config or SortednessConfig()
        self.longest = self.config.longest
        self.trained_lengths = self.config.shortest, self.config.longest
        n = self.config.n_values
        self.values = Values(n, self.config.distinct, self.config.narrow)
        self._kinds: dict[bytes, str] = {}  # of the examples in the splits
        self.masks_padding = not self.config.padding_is_zero
        self.pad_id = n if self.masks_padding else 0
        self.tokens = (*map(str, range(n)), "<pad>")

    # --- examples -----------------------------------------------------------------------------------------------

    @cached_property
    def splits(self) -> dict[str, Examples]:
        """The held-out sets, and the fixed training set if there is one; no sequence is in two of them."""
        c = self.config
        sets: dict[str, Examples] = {}
        for name, n in (("validation", c.n_validation), ("test", c.n_test), ("train", c.n_train)):
            if n:
                rng = stream(c.split_seed, f"sortedness {name}")
                sets[name], kinds = self._new(rng, n, set(self._kinds), unique=True)
                self._kinds |= {row.tobytes(): str(kind) for row, kind in zip(sets[name], kinds, strict=True)}
        return sets

    @cached_property
    def _held_out(self) -> set[bytes]:
        return {row.tobytes() for name in ("validation", "test") for row in self.splits[name]}

    def split(self, name: str) -> Examples:
        """The `validation`, `test` or fixed `train` examples."""
        if name not in self.splits:
            raise InputError(f"no split {name!r}", f"there are: {', '.join(self.splits)}")
        return self.splits[name]

    def draw(self, rng: np.random.Generator, n: int) -> Examples:
        """`n` training examples; never a held-out one."""
        if self.config.n_train:
            return self.splits["train"][rng.integers(self.config.n_train, size=n)]
        return self._new(rng, n, self._held_out)[0]

    def stretched(self, rng: np.random.Generator, length: int, kind: str | None, n: int) -> Examples:
        """`n` fresh sequences of one length: unsorted in this way, or sorted if None."""
        lengths, values = np.full(n, length), replace(self.values, narrow=0.0)
        if kind is None:
            return sorted_rows(rng, lengths, values)
        if kind not in KINDS:
            raise InputError(f"no kind of unsorted example {kind!r}", suggestion(kind, self.kinds))
        return unsorted_rows(rng, np.full(n, kind), lengths, values)[0]

    def cropped(self, rng: np.random.Generator, examples: Examples, length: int) -> tuple[Examples, Examples]:
        """A piece of each adjacent swap around its broken pair, and the same piece in order.

        Of adjacent swaps only: a piece of a shuffle spans all values where a piece of a sorted sequence spans few, so
        its range alone would give the class away. Both classes have the same numbers here, so no sum, range or tie
        can; and the steps between them are those of the long sequence.
        """
        n, width = examples.shape
        length = min(length, width)
        start = np.clip(first_broken(examples) - rng.integers(max(length - 1, 1), size=n), 0, width - length)
        pieces = np.take_along_axis(examples, start[:, None] + np.arange(length), axis=1)
        return pieces, np.sort(pieces, axis=1)

    def _new(self, rng: np.random.Generator, n: int, forbidden: set[bytes], *, unique: bool = False) -> Kinds:
        """`n` examples and their kinds, none of them forbidden; `unique` ones differ from each other too."""
        rows, kinds = self._make(rng, n)
        for _ in range(MOST_TRIES):
            bad = self._refused(rows, forbidden, unique)
            if not bad.any():
                return rows, kinds
            again, other_kinds = self._make(rng, n)
            rows, kinds = np.where(bad[:, None], again, rows), np.where(bad, other_kinds, kinds)
        raise InputError(
            f"there are too few sequences of {self.config.shortest} to {self.longest} numbers below "
            f"{self.config.n_values} to hold {self.config.n_validation + self.config.n_test:,} of them out",
            "lower --n-validation and --n-test, or raise --n-values or --longest",
        )

    def _refused(self, rows: Rows, forbidden: set[bytes], unique: bool) -> NDArray[np.bool_]:
        bad, seen = np.zeros(len(rows), dtype=bool), set[bytes]()
        for i, name in enumerate(row.tobytes() for row in rows):
            bad[i] = name in forbidden or (unique and name in seen)
            seen.add(name)
        if self.config.matched:  # a pair stays together
            half = len(rows) // 2
            bad[:half] |= bad[half : 2 * half]
            bad[half : 2 * half] |= bad[:half]
        return bad

    def _make(self, rng: np.random.Generator, n: int) -> tuple[Examples, NDArray[np.str_]]:
        """Unsorted ones first, then sorted ones; and the kind of each."""
        c = self.config
        n_unsorted = int(rng.binomial(n, 0.5)) if c.balance == "coin" else n // 2
        lengths = rng.integers(c.shortest, c.longest + 1, size=n)
        shares = kind_shares(c.negatives)
        kinds = rng.choice(list(shares), size=n_unsorted, p=list(shares.values()))
        broken, mended = unsorted_rows(rng, kinds, lengths[:n_unsorted], self.values)
        if c.matched:
            lengths[n_unsorted : 2 * n_unsorted] = lengths[:n_unsorted]
        ordered = sorted_rows(rng, lengths[n_unsorted:], self.values)
        rows = np.full((n, c.longest), EMPTY)
        for part, start in ((broken, 0), (ordered, n_unsorted), (mended if c.matched else broken[:0], n_unsorted)):
            rows[start : start + len(part), : part.shape[1]] = np.where(part == FILL, EMPTY, part)
        return rows, np.concatenate([kinds, np.full(n - n_unsorted, self.classes[-1])])

    # --- tokens and meaning -------------------------------------------------------------------------------------

    def encode(self, examples: Examples) -> ClassBatch:
        """Token ids and classes, no wider than the longest of these."""
        width = int(self.lengths(examples).max(initial=1))
        if not self.masks_padding:  # what is read must not depend on what stands beside it
            width = max(width, self.longest)
            examples = np.pad(examples, ((0, 0), (0, max(0, width - examples.shape[1]))), constant_values=EMPTY)
        numbers = examples[:, :width]
        labels = (first_broken(np.where(numbers == EMPTY, FILL, numbers)) < 0).astype(np.int64)
        return ClassBatch(np.where(numbers == EMPTY, self.pad_id, numbers), labels)

    def lengths(self, examples: Examples) -> NDArray[np.int64]:
        """How many numbers each example has."""
        return np.asarray((examples != EMPTY).sum(axis=1))

    def first_broken(self, examples: Examples) -> NDArray[np.int64]:
        """The first i with x_i > x_(i+1); -1 in a sorted example."""
        return first_broken(np.where(examples == EMPTY, FILL, examples))

    def facets(self, examples: Examples) -> Mapping[str, tuple[str, ...]]:
        """By class, by kind (of examples in a split), by number of broken pairs, and by length."""
        full = np.where(examples == EMPTY, FILL, examples)
        falls = (full[:, :-1] > full[:, 1:]).sum(axis=1)
        kinds = [self._kinds.get(example.tobytes(), "unknown") for example in examples]
        wide = len(str(self.longest))
        return {
            "class": tuple(self.classes[int(fall == 0)] for fall in falls),
            "kind": tuple(kinds),
            "broken pairs": tuple("3 or more" if fall > 2 else str(fall) for fall in falls),
            "length": tuple(f"{length:{wide}d}" for length in self.lengths(examples)),
        }

    def looks(self, stack: str, kind: str, examples: Examples) -> Looks:
        """Neighbours, itself, equal numbers, the first token; in sorted and in unsorted sequences."""
        batch = self.encode(examples)
        is_sorted = Condition("sorted", "unsorted", "the sequence is sorted", batch.labels[:, None] == 1)
        return neighbour_looks(batch.source, is_sorted)

    # --- text ---------------------------------------------------------------------------------------------------

    def contrast(self, rng: np.random.Generator, n: int) -> None:
        """It has none."""

    def parse(self, text: str) -> Examples:
        """One sequence, such as `3 5 5 9`."""
        allowed = f"write numbers from 0 to {self.config.n_values - 1} with spaces between them, such as 3 5 5 9"
        words = text.replace(",", " ").split()
        if not words:
            raise InputError("no numbers were given", allowed)
        for word in words:
            if not (word.isascii() and word.isdigit()):
                raise InputError(f"{word[:20]!r} in {text.strip()[:40]!r} is not a number", allowed)
            if len(word.lstrip("0")) > 9 or int(word) >= self.config.n_values:
                raise InputError(f"{word[:20]} in {text.strip()[:40]!r} is outside what this task knows", allowed)
        return np.array([[int(word) for word in words]])

    def show(self, example: Examples) -> str:
        """`3 5 5 9`."""
        return " ".join(map(str, example[example != EMPTY].tolist()))

    def answer(self, example: Examples) -> str:
        """`sorted` or `unsorted`."""
        return self.classes[int(self.encode(example[None]).labels[0])]

    def describe(self, example: Examples) -> str:
        """Its first broken pair, counted from 0."""
        place = int(self.first_broken(example[None])[0])
        if place < 0:
            return "no pair is broken"
        return f"first broken pair at {place}: {example[place]} > {example[place + 1]}"

    def explain(self, example: Examples, said: int) -> str:
        """What is wrong with a wrong answer; empty for a right one."""
        return "" if said == int(self.encode(example[None]).labels[0]) else self.describe(example)


PART = Sortedness
