"""Sortedness: is a sequence of integers non-decreasing?

    3 5 5 9        sorted
    3 5 4 9        unsorted; its first broken pair is at 1 (5 > 4)

Trained on lengths 8 to 16, asked at any length. How an unsorted example is made decides what a test can show, so each
kind is drawn, and tested, apart:

    shuffle          any order at all: broken nearly everywhere, so nearly any model catches it
    transpositions   max(2, L // 3) times two places change their values (the newer reports' data)
    moved_one        one value is taken out and put back somewhere else
    adjacent         two neighbours of different value change places: one broken pair, the hardest

The reports' fault (off by default): `padding_is_zero` fills short sequences with the number 0 and does not mask it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationInfo, field_validator, model_validator

from headcount.config import config, suggestion
from headcount.errors import InputError
from headcount.seeds import stream
from headcount.tasks._orders import FILL, NEGATIVES, Rows, Values, first_broken, sorted_rows, unsorted_rows
from headcount.tasks.base import AttentionTargets, ClassBatch, Condition, Examples, Places, Target, Tokens

Count = Annotated[int, Field(ge=0)]


_FORMER = {"narrow": "small_steps", "matched": "paired"}


@config
class SortednessConfig:
    """The data."""

    n_values: Annotated[int, Field(ge=2, le=100_000)] = 100
    """Numbers run from 0 to one less than this."""
    shortest: Annotated[int, Field(ge=2)] = 8
    """Shortest sequence in training."""
    longest: Annotated[int, Field(ge=2, le=100_000)] = 16
    """Longest sequence in training."""
    negatives: str = "shuffle:1,transpositions:1,moved_one:1,adjacent:3"
    """Kinds of unsorted example and how often each: shuffle, transpositions, moved_one, adjacent."""
    balance: Literal["exact", "coin"] = "exact"
    """Half of each set and of each fresh batch is sorted, exactly or by the toss of a coin."""
    paired: bool = False
    """Pairs: each unsorted sequence comes with its own sorted self."""
    distinct: bool = False
    """No number twice in a sequence, where it is no longer than there are numbers."""
    small_steps: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the sequences whose numbers come from a narrow range: ties and small steps, as in long sequences."""
    n_train: Count = 0
    """Train on a fixed set of this many sequences; 0 draws fresh ones at every step."""
    n_validation: Annotated[int, Field(ge=2)] = 2000
    """Held-out sequences that training is watched with."""
    n_test: Annotated[int, Field(ge=2)] = 2000
    """Held-out sequences that the finished model is tested on."""
    split_seed: int = 0
    """Decides what is held out; apart from --seed, so that runs with different seeds share a test set."""
    padding_is_zero: bool = False
    """FAULT of the older reports: short sequences are filled up with the number 0, which is not masked."""

    @model_validator(mode="before")
    @classmethod
    def _by_former_names(cls, settings: Any) -> Any:
        """Runs of before had other names for these."""
        if not isinstance(settings, dict):
            return settings
        found = {_FORMER.get(name, name): value for name, value in settings.items()}
        if isinstance(text := found.get("negatives"), str):
            found["negatives"] = text.replace("displaced", "moved_one")
        return found

    @field_validator("longest")
    @classmethod
    def _not_below_shortest(cls, longest: int, info: ValidationInfo) -> int:
        if longest < info.data.get("shortest", longest):
            raise ValueError(f"is below shortest ({info.data['shortest']}): lower shortest, or raise longest")
        return longest

    @field_validator("negatives")
    @classmethod
    def _are_kinds(cls, text: str) -> str:
        kind_shares(text)
        return text

    @field_validator("small_steps")
    @classmethod
    def _not_distinct(cls, small_steps: float, info: ValidationInfo) -> float:
        if small_steps and info.data.get("distinct"):
            raise ValueError("a narrow range has too few different numbers: leave --distinct or --small-steps out")
        return small_steps

    @field_validator("paired")
    @classmethod
    def _not_by_coin(cls, paired: bool, info: ValidationInfo) -> bool:
        if paired and info.data.get("balance") == "coin":
            raise ValueError("matched pairs are balanced as they are: leave --balance exact")
        return paired


def kind_shares(text: str) -> dict[str, float]:
    """The share of each kind of unsorted example.

    >>> kind_shares("shuffle,adjacent:3")
    {'shuffle': 0.25, 'adjacent': 0.75}
    """
    weights: dict[str, float] = {}
    for part in text.split(","):
        kind, _, weight = (piece.strip() for piece in part.partition(":"))
        if kind not in NEGATIVES:
            raise ValueError(f"no kind {kind!r}; {suggestion(kind, tuple(NEGATIVES))}")
        if kind in weights:
            raise ValueError(f"{kind} is named twice: write {kind}:2 to have it twice as often")
        try:
            weights[kind] = float(weight or 1)
        except ValueError:
            raise ValueError(f"{weight!r} is not how often {kind} should come: write {kind}:2") from None
        if not 0 < weights[kind] < float("inf"):
            raise ValueError(f"{kind} should come more often than never: write {kind}:1, or leave it out")
    total = sum(weights.values())
    return {kind: weight / total for kind, weight in weights.items()}


# --- sortedness -------------------------------------------------------------------------------------------------------
# Sortedness: is a sequence of integers non-decreasing?
#
#     3 5 5 9        sorted
#     3 5 4 9        unsorted; its first broken pair is at 1 (5 > 4)
#
# Trained on lengths 8 to 16, asked at any length. How an unsorted example is made decides what a test can show, so each
# kind is drawn, and tested, apart:
#
#     shuffle          any order at all: broken nearly everywhere, so nearly any model catches it
#     transpositions   max(2, L // 3) times two places change their values (the newer reports' data)
#     moved_one        one value is taken out and put back somewhere else
#     adjacent         two neighbours of different value change places: one broken pair, the hardest
#
# The reports' fault (off by default): `padding_is_zero` fills short sequences with the number 0 and does not mask it.


EMPTY = -1
"""Behind the end of a short example."""
MOST_TRIES = 200
Kinds = tuple[Examples, NDArray[np.str_]]
"""Examples, and the kind of each: how it was unsorted, or `sorted`."""


class Sortedness:
    """The sortedness task. Examples are int64 [example, place], `EMPTY` behind the end of a short one."""

    name: ClassVar[str] = "sortedness"
    output_type: ClassVar[Literal["sequence", "class"]] = "class"
    config_class: ClassVar[type] = SortednessConfig
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "model": {"encoding": "sinusoidal"},
        "training": {"steps": 3000, "hard_share": 0.0, "eval_every": 250, "checkpoint_every": 250},
    }
    classes: tuple[str, ...] = ("unsorted", "sorted")
    negatives: tuple[str, ...] = tuple(NEGATIVES)
    local_negative: str = "adjacent"

    def __init__(self, config: SortednessConfig | None = None) -> None:
        self.config = config or SortednessConfig()
        self.longest = self.config.longest
        self.trained_lengths = self.config.shortest, self.config.longest
        n = self.config.n_values
        self.values = Values(n, self.config.distinct, self.config.small_steps)
        self._kinds: dict[bytes, str] = {}  # of the examples in the splits
        self.masks_padding = not self.config.padding_is_zero
        self.pad_id = n if self.masks_padding else 0
        self.tokens = (*map(str, range(n)), "<pad>")

    # --- examples
    # ---------------------------------------------------------------------------------------------------------

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

    def sample(self, rng: np.random.Generator, n: int) -> Examples:
        """`n` training examples; never a held-out one."""
        if self.config.n_train:
            return self.splits["train"][rng.integers(self.config.n_train, size=n)]
        return self._new(rng, n, self._held_out)[0]

    def sample_of_length(self, rng: np.random.Generator, length: int, kind: str | None, n: int) -> Examples:
        """`n` fresh sequences of one length: unsorted in this way, or sorted if None."""
        lengths, values = np.full(n, length), replace(self.values, small_steps=0.0)
        if kind is None:
            return sorted_rows(rng, lengths, values)
        if kind not in NEGATIVES:
            raise InputError(f"no kind of unsorted example {kind!r}", suggestion(kind, self.negatives))
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
        if self.config.paired:  # a pair stays together
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
        if c.paired:
            lengths[n_unsorted : 2 * n_unsorted] = lengths[:n_unsorted]
        ordered = sorted_rows(rng, lengths[n_unsorted:], self.values)
        rows = np.full((n, c.longest), EMPTY)
        for part, start in ((broken, 0), (ordered, n_unsorted), (mended if c.paired else broken[:0], n_unsorted)):
            rows[start : start + len(part), : part.shape[1]] = np.where(part == FILL, EMPTY, part)
        return rows, np.concatenate([kinds, np.full(n - n_unsorted, self.classes[-1])])

    # --- tokens and meaning
    # -----------------------------------------------------------------------------------------------

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

    def attention_targets(self, stack: str, kind: str, examples: Examples) -> AttentionTargets:
        """Neighbours, itself, equal numbers, the first token; in sorted and in unsorted sequences."""
        batch = self.encode(examples)
        is_sorted = Condition("sorted", "unsorted", "the sequence is sorted", batch.labels[:, None] == 1)
        return neighbour_targets(batch.source, is_sorted)

    # --- text
    # -------------------------------------------------------------------------------------------------------------

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

    def explain(self, example: Examples, predicted: int) -> str:
        """What is wrong with a wrong answer; empty for a right one."""
        return "" if predicted == int(self.encode(example[None]).labels[0]) else self.describe(example)


PART = Sortedness


# --- neighbours -------------------------------------------------------------------------------------------------------
# What a head could be looking at in a sequence of numbers: what stands beside a number, and its equals.


def neighbour_targets(tokens: Tokens, condition: Condition) -> AttentionTargets:
    """The targets in these sequences, [example, place]; a number is no equal of itself.

    >>> always = Condition("yes", "no", "always", np.ones((1, 1), dtype=bool))
    >>> equal = neighbour_targets(np.array([[3, 5, 5]]), always).targets["equal numbers"]
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
    return AttentionTargets(targets, (), np.full(tokens.shape[1], -1), condition)
