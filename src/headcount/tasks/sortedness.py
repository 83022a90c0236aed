"""The sortedness task: decide whether a sequence of integers is sorted (non-decreasing).

    3 5 5 9        sorted
    3 5 4 9        unsorted; its first broken pair is at 1 (5 > 4)

Models train on lengths 8 to 16, and are tested at any length. Unsorted examples are generated in four ways, and each
is tested separately, because they differ in difficulty:

    shuffle          random order: broken nearly everywhere, so that nearly any model detects it
    transpositions   max(2, L // 3) swaps of two random places (as in the newer published reports: docs/reports.md)
    moved_one        one value is moved to another position
    adjacent         two neighbours of different value are swapped: one broken pair, the hardest kind

The setting `padding_is_zero` (off by default) plants a fault of the older published reports: padding is the number 0,
and is not masked.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationInfo, field_validator

from headcount.config import config
from headcount.errors import InputError
from headcount.seeds import stream
from headcount.suggestions import suggestion
from headcount.tasks.base import (
    EMPTY,
    REPORTS_NORM,
    REPORTS_TRAINING,
    AttentionTargets,
    ClassBatch,
    ClassTask,
    Condition,
    Examples,
    Preset,
    Target,
    TaskWords,
)

Rows = NDArray[np.int64]
"""An array of sequences, [sequence, position], with `FILL` after the end of short sequences."""
FILL = np.iinfo(np.int64).max
"""Filler after the end of short sequences; it is larger than any value, so that sorting keeps it at the end."""
MOST_TRIES = 200
"""Largest number of attempts to draw examples that are not held out."""
Kinds = tuple[Examples, NDArray[np.str_]]
"""Examples, with the kind of each example: `sorted`, or how it was made unsorted, such as `shuffle`."""


# --- sorted sequences, and four kinds of unsorted ones ----------------------------------------------------------------


@dataclass(frozen=True)
class Values:
    """How numbers are drawn: from 0 to n - 1, with the settings `distinct` and `small_steps` of the task."""

    n: int
    distinct: bool = False
    small_steps: float = 0.0


def sorted_rows(rng: np.random.Generator, lengths: NDArray[np.int64], values: Values) -> Rows:
    """Return one sorted sequence of random numbers for each of the given lengths."""
    shape = len(lengths), int(lengths.max(initial=0))
    if values.small_steps:
        # The width of the range is log-uniform, so that small steps are as common as large ones.
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
    """Return sequences with the values of each in random order."""
    keys = np.where(rows == FILL, 2.0, rng.random(rows.shape))
    return np.take_along_axis(rows, keys.argsort(axis=1), axis=1)


def transpositions(rng: np.random.Generator, rows: Rows, lengths: NDArray[np.int64]) -> Rows:
    """Return each sequence after max(2, L // 3) swaps of two random positions, where L is its length."""
    # In a row of two values, a second swap would always undo the first.
    rows, times = rows.copy(), np.where(lengths == 2, 1, np.maximum(2, lengths // 3))
    for done in range(int(times.max(initial=0))):
        which = np.flatnonzero(done < times)
        i, j = _two_places(rng, lengths[which])
        rows[which, i], rows[which, j] = rows[which, j], rows[which, i]
    return rows


def adjacent(rng: np.random.Generator, rows: Rows, lengths: NDArray[np.int64]) -> Rows:
    """Return each sorted sequence after a swap of two neighbours of different value, which makes one pair unsorted."""
    rows, numbers = rows.copy(), np.arange(len(rows))
    rises = (rows[:, :-1] < rows[:, 1:]) & (rows[:, 1:] != FILL)
    i = np.where(rises, rng.random(rises.shape), -1.0).argmax(axis=1)
    rows[numbers, i], rows[numbers, i + 1] = rows[numbers, i + 1], rows[numbers, i]
    return rows


def moved_one(rng: np.random.Generator, rows: Rows, lengths: NDArray[np.int64]) -> Rows:
    """Return each sorted sequence after moving one number to another position, so that it is no longer sorted."""
    i, j = (place[:, None] for place in _two_places(rng, lengths))
    at = np.broadcast_to(np.arange(rows.shape[1]), rows.shape)
    source = np.where((i <= at) & (at < j), at + 1, np.where((j < at) & (at <= i), at - 1, at))
    return np.take_along_axis(rows, np.where(at == j, i, source), axis=1)


NEGATIVES = {function.__name__: function for function in (shuffle, transpositions, moved_one, adjacent)}


def unsorted_rows(
    rng: np.random.Generator, kinds: NDArray[np.str_], lengths: NDArray[np.int64], values: Values
) -> tuple[Rows, Rows]:
    """Return unsorted sequences of the given kinds, such as `shuffle`, and the sorted sequences they were made from."""
    if (lengths < 2).any():
        raise InputError(
            "unsorted sequences need at least two numbers, but a length of 1 was given", "set the length to 2 or more"
        )
    ordered = sorted_rows(rng, lengths, values)
    if not len(ordered):
        return ordered, ordered
    while (flat := ordered[:, 0] == ordered[np.arange(len(ordered)), lengths - 1]).any():
        fresh = sorted_rows(rng, lengths[flat], values)
        ordered[flat, : fresh.shape[1]] = fresh
    unsorted, todo = ordered.copy(), np.ones(len(ordered), dtype=bool)
    while todo.any():
        # A fixed order of kinds, so that the same seed gives the same rows.
        for kind, unsort in NEGATIVES.items():
            rows = np.flatnonzero(todo & (kinds == kind))
            if len(rows):
                unsorted[rows] = unsort(rng, ordered[rows], lengths[rows])
        todo = first_broken(unsorted) < 0  # rows that are still sorted are drawn again
    return unsorted, ordered


def patterned_rows(rng: np.random.Generator, lengths: NDArray[np.int64], values: Values) -> Rows:
    """Return sorted sequences of small steps with at most two jumps.

    Random sequences rarely show these patterns, and models that are right on random ones often err on them:

        41 41 41 41 41 41 41 41     a constant
         0  0  0  0  0  0  0 17     ties, then one value far away
         4  5  6  7  8  9 10 32     small steps, then a jump
         0  0  0 99 99 99 99 99     both extremes
    """
    n, width = len(lengths), int(lengths.max(initial=2))
    rows, zeros = np.arange(n), np.zeros(n, dtype=np.int64)
    smallest = np.where(values.distinct & (lengths <= values.n), 1, 0)[:, None]
    # In some rows all steps are as small as possible, in some all are larger by one, in others they are mixed.
    is_larger = rng.random((n, width - 1)) < rng.choice([0.0, 0.2, 0.5, 1.0], size=(n, 1))
    steps = np.where(np.arange(width - 1) < lengths[:, None] - 1, smallest + is_larger, 0)
    steps = np.where(steps.sum(axis=1, keepdims=True) < values.n, steps, np.minimum(steps, smallest))
    for _ in range(2):
        room = values.n - 1 - steps.sum(axis=1)
        size = _one_of(rng, (0.3, 0.4, 0.3), zeros, rng.integers(room + 1), room)
        anywhere = (rng.random(n) * (lengths - 1)).astype(np.int64)
        steps[rows, _one_of(rng, (0.1, 0.6, 0.3), zeros, anywhere, lengths - 2)] += size
    room = values.n - 1 - steps.sum(axis=1)
    start = _one_of(rng, (0.2, 0.6, 0.2), zeros, rng.integers(room + 1), room)
    numbers = start[:, None] + np.pad(steps, ((0, 0), (1, 0))).cumsum(axis=1)
    return np.where(np.arange(width) < lengths[:, None], numbers, FILL)


def off_by_one(rng: np.random.Generator, rows: Rows, lengths: NDArray[np.int64], values: Values) -> Rows:
    """Return each sorted sequence with one number changed to its left neighbour minus one, so that it is unsorted."""
    rows, numbers = rows.copy(), np.arange(len(rows))
    i = (rng.random(len(rows)) * (lengths - 1)).astype(np.int64)
    left, right = rows[numbers, i], rows[numbers, i + 1]
    # After a 0 there is no smaller number, so the 0 becomes its right neighbour plus one.
    rows[numbers, i + 1] = np.where(left > 0, left - 1, right)
    rows[numbers, i] = np.where(left > 0, left, np.minimum(right + 1, values.n - 1))
    return rows


def first_broken(rows: Rows) -> NDArray[np.int64]:
    """Return, for each sequence x, the first i with x_i > x_(i+1), or -1 if the sequence is sorted."""
    falls = rows[:, :-1] > rows[:, 1:]
    return np.where(falls.any(axis=1), falls.argmax(axis=1), -1) if falls.shape[1] else np.full(len(rows), -1)


def _one_of(rng: np.random.Generator, shares: tuple[float, ...], *choices: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return, for each row, a random one of several choices, with the probabilities `shares`."""
    return np.stack(choices)[rng.choice(len(shares), size=len(choices[0]), p=shares), np.arange(len(choices[0]))]


def _two_places(rng: np.random.Generator, lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    i = (rng.random(len(lengths)) * lengths).astype(np.int64)
    step = 1 + (rng.random(len(lengths)) * (lengths - 1)).astype(np.int64)
    return i, (i + step) % lengths


# --- the task ---------------------------------------------------------------------------------------------------------


@config
class SortednessConfig:
    """Settings of the sequences: lengths, numbers, kinds of unsorted sequences, and the sizes of the splits."""

    n_values: Annotated[int, Field(ge=2, le=100_000)] = 100
    """Number of different values; values run from 0 to one less."""
    shortest: Annotated[int, Field(ge=2)] = 8
    """Length of the shortest sequence in training."""
    longest: Annotated[int, Field(ge=2, le=100_000)] = 16
    """Length of the longest sequence in training."""
    negatives: str = "shuffle:1,transpositions:1,moved_one:1,adjacent:3"
    """Kinds of unsorted examples with their weights: shuffle, transpositions, moved_one, adjacent."""
    balance: Literal["exact", "coin"] = "exact"
    """Make exactly half of each set and batch sorted (exact), or each sequence with probability 1/2 (coin)."""
    paired: bool = False
    """Pair each unsorted sequence with its sorted version."""
    distinct: bool = False
    """Use different numbers in a sequence, unless it is longer than n_values."""
    small_steps: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Fraction of sequences from a narrow range of values, with ties and small steps as in long sequences."""
    n_train: Annotated[int, Field(ge=0)] = 0
    """Train on a fixed set of this many sequences; 0 draws new sequences at every step."""
    n_validation: Annotated[int, Field(ge=2)] = 2000
    """Number of held-out sequences for validation during training."""
    n_test: Annotated[int, Field(ge=2)] = 2000
    """Number of held-out sequences for the test of the trained model."""
    split_seed: int = 0
    """Seed of the held-out sets; separate from --seed, so that runs with different seeds share a test set."""
    padding_is_zero: bool = False
    """Deliberate FAULT, as in the older published reports: short sequences are padded with 0, which is not masked."""

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
            raise ValueError(
                "--small-steps draws numbers from a narrow range, which has too few different numbers for "
                "--distinct: leave one of them out"
            )
        return small_steps

    @field_validator("paired")
    @classmethod
    def _not_by_coin(cls, paired: bool, info: ValidationInfo) -> bool:
        if paired and info.data.get("balance") == "coin":
            raise ValueError("--paired always makes exactly half of the sequences sorted: leave --balance coin out")
        return paired


def kind_shares(text: str) -> dict[str, float]:
    """Return the share of each kind of unsorted sequence in training, from weights such as `shuffle:1,adjacent:3`.

    >>> kind_shares("shuffle,adjacent:3")
    {'shuffle': 0.25, 'adjacent': 0.75}
    """
    weights: dict[str, float] = {}
    for part in text.split(","):
        kind, _, weight = (piece.strip() for piece in part.partition(":"))
        if kind not in NEGATIVES:
            raise ValueError(f"there is no kind of unsorted sequence {kind!r}; {suggestion(kind, tuple(NEGATIVES))}")
        if kind in weights:
            raise ValueError(f"{kind} is named twice: write {kind}:2 to use it twice as often")
        try:
            weights[kind] = float(weight or 1)
        except ValueError:
            raise ValueError(f"the weight of {kind} must be a number, such as {kind}:2, got {weight!r}") from None
        if not 0 < weights[kind] < float("inf"):
            raise ValueError(f"the weight of {kind} must be positive and finite: write {kind}:1, or leave it out")
    total = sum(weights.values())
    return {kind: weight / total for kind, weight in weights.items()}


WORDS = TaskWords(
    example="sequence",
    examples="sequences",
    symbols="numbers",
    question="The model reads a sequence of numbers and decides whether it is sorted. It was trained on short "
    "sequences: which position encodings still work on long ones?",
    targets={
        "left neighbour": "the number to the left",
        "right neighbour": "the number to the right",
        "itself": "the number at its own place",
        "equal numbers": "other numbers of the same value",
    },
    groups={"kind": "on “{}”"},
    model="the sorter",
    mark="sorted",
)
FIXED = {"n_train": 10_000, "n_validation": 2_000, "n_test": 2_000}
PRESETS = {
    "older": Preset(
        "data of the older reports: 10,000 sequences of different numbers, full shuffles, padded with the number 0",
        {"task": {**FIXED, "negatives": "shuffle", "distinct": True, "padding_is_zero": True}},
    ),
    "newer": Preset(
        "data of the newer reports: 10,000 fixed sequences, max(2, L//3) transpositions, classes drawn at random",
        {"task": {**FIXED, "negatives": "transpositions", "balance": "coin"}},
    ),
    "reports-model": Preset(
        "model of the reports: 4 layers, d_model 128, 4 heads, d_ff 512, post-LN, dropout, mean pooling, number table",
        {
            "model": {
                **{"d_model": 128, "n_heads": 4, "n_layers": 4, "d_ff": 512},
                **REPORTS_NORM,
                **{"pooling": "mean", "numbers": "table"},
            }
        },
    ),
    "far": Preset(
        "right at every length with --until-proved: one layer, one score per position, and a window of ±1, which "
        "gives the model the locality of the task",
        {
            "task": {"small_steps": 0.5},
            "model": {"encoding": "relative", "clip_distance": 1, "window": 1, "n_layers": 1, "pooling": "top-score"},
            "training": {"batch_size": 128},
        },
    ),
    "far-generic": Preset(
        "extrapolates farthest of the models without built-in structure of the task: causal, no encoding, log-length "
        "softmax, one layer, small steps",
        {
            "task": {"small_steps": 0.5},
            "model": {"encoding": "none", "causal": True, "softmax": "log-length", "n_layers": 1, "pooling": "max"},
        },
    ),
    "reports-recipe": Preset(
        "training of the reports: Adam at a constant 1e-3, batch 64, 50 epochs of 10,000",
        {"training": REPORTS_TRAINING},
    ),
}
"""Presets with the data, the model and the training of five published reports (docs/reports.md), and two more.

The two others extrapolate far.
"""


class Sortedness(ClassTask):
    """The sortedness task; examples are an int64 array [example, position], filled with `EMPTY` after their end."""

    name: ClassVar[str] = "sortedness"
    words: ClassVar[TaskWords] = WORDS
    output_type: ClassVar[Literal["sequence", "class"]] = "class"
    presets: ClassVar[Mapping[str, Preset]] = PRESETS
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

    @classmethod
    def describe_data(cls, settings: Mapping[str, Any]) -> str:
        """Return a phrase that completes "The model was trained ...".

        >>> Sortedness.describe_data({"shortest": 8, "longest": 16, "negatives": "shuffle"})
        'to tell whether 8 to 16 numbers are sorted (negatives: shuffle)'
        """
        if not {"shortest", "longest"} <= settings.keys():
            return ""
        kinds = f" (negatives: {settings['negatives']})" if "negatives" in settings else ""
        return f"to tell whether {settings['shortest']} to {settings['longest']} numbers are sorted{kinds}"

    # --- examples -----------------------------------------------------------------------------------------------------

    @cached_property
    def splits(self) -> dict[str, Examples]:
        """The sequences of the splits `validation`, `test` and (if fixed) `train`; no sequence is in two splits."""
        c = self.config
        sets: dict[str, Examples] = {}
        for name, n in (("validation", c.n_validation), ("test", c.n_test), ("train", c.n_train)):
            if n:
                rng = stream(c.split_seed, f"sortedness {name}")
                sets[name], kinds = self._new(rng, n, set(self._kinds), unique=True)
                self._kinds |= {row.tobytes(): str(kind) for row, kind in zip(sets[name], kinds, strict=True)}
        return sets

    @cached_property
    def allowed_neighbours(self) -> NDArray[np.bool_]:
        """A mask [number, number]: whether the second number may follow the first one in a sorted sequence."""
        numbers = np.arange(self.config.n_values)
        return numbers[:, None] <= numbers

    @cached_property
    def _held_out(self) -> set[bytes]:
        return {row.tobytes() for name in ("validation", "test") for row in self.splits[name]}

    def sample(self, rng: np.random.Generator, n: int) -> Examples:
        """Return `n` training examples, none of which is held out."""
        if self.config.n_train:
            return self.splits["train"][rng.integers(self.config.n_train, size=n)]
        return self._new(rng, n, self._held_out)[0]

    def sample_of_length(self, rng: np.random.Generator, length: int, kind: str | None, n: int) -> Examples:
        """Return `n` new sequences of one length: unsorted sequences of one kind, or sorted ones if `kind` is None."""
        lengths, values = np.full(n, length), replace(self.values, small_steps=0.0)
        if kind is None:
            return sorted_rows(rng, lengths, values)
        if kind not in NEGATIVES:
            raise InputError(f"there is no kind of unsorted sequence {kind!r}", suggestion(kind, self.negatives))
        return unsorted_rows(rng, np.full(n, kind), lengths, values)[0]

    def patterns_of_length(self, rng: np.random.Generator, length: int, n: int) -> Examples:
        """Return `n` hard sequences of one length: small steps with jumps, about half of them unsorted."""
        return self._patterns(rng, np.full(n, length))

    def hard_examples(self, rng: np.random.Generator, n: int) -> Examples:
        """Return `n` hard sequences of the training lengths: small steps with jumps, about half of them unsorted."""
        c = self.config
        rows = self._patterns(rng, rng.integers(c.shortest, c.longest + 1, size=n))
        return np.pad(rows, ((0, 0), (0, c.longest - rows.shape[1])), constant_values=EMPTY)

    def _patterns(self, rng: np.random.Generator, lengths: NDArray[np.int64]) -> Examples:
        n, values = len(lengths), self.values
        is_random = rng.random((n, 1)) < 0.2
        rows = np.where(is_random, sorted_rows(rng, lengths, values), patterned_rows(rng, lengths, values))
        kinds = [rows, adjacent(rng, rows, lengths), moved_one(rng, rows, lengths)]
        kinds.append(kinds[1] if values.distinct else off_by_one(rng, rows, lengths, values))
        rows = np.stack(kinds)[rng.choice(4, size=n, p=[0.5, 0.15, 0.1, 0.25]), np.arange(n)]
        return np.where(rows == FILL, EMPTY, rows)

    def mutate(self, rng: np.random.Generator, examples: Examples) -> Examples:
        """Return each sequence with one random change: a number gets another value, or two numbers are swapped."""
        n, n_values, lengths = len(examples), self.config.n_values, self.lengths(examples)
        rows, (i, j) = np.arange(n), _two_places(rng, lengths)
        old, second = examples[rows, i], examples[rows, j]
        neighbour = examples[rows, np.where(i > 0, i - 1, np.minimum(1, lengths - 1))]
        other = (old + rng.integers(1, n_values, size=n)) % n_values
        stepped = np.clip(old + rng.choice([-1, 1], size=n), 0, n_values - 1)
        new = _one_of(rng, (0.4, 0.3, 0.3), other, neighbour, stepped)
        changed, swapped = examples.copy(), examples.copy()
        changed[rows, i] = np.where(new == old, other, new)
        swapped[rows, i], swapped[rows, j] = second, old
        is_swapped = (rng.random(n) < 0.25) & (old != second)
        if self.config.distinct:  # a change must not repeat a number
            in_order = np.sort(changed, axis=1)
            repeats = (in_order[:, 1:] == in_order[:, :-1]) & (in_order[:, 1:] != EMPTY)
            is_swapped |= repeats.any(axis=1) & (lengths <= n_values)
        return np.where(is_swapped[:, None], swapped, changed)

    def cropped(self, rng: np.random.Generator, examples: Examples, length: int) -> tuple[Examples, Examples]:
        """Return a piece of each sequence around its unsorted pair, and the same pieces sorted.

        The sequences must be sorted except for one swap of neighbours. A piece of a shuffled sequence would span all
        values and a piece of a sorted sequence few, so that the range alone would reveal the class. Here both classes
        have the same numbers, and the steps between numbers are those of the long sequence.
        """
        n, width = examples.shape
        length = min(length, width)
        start = np.clip(first_broken(examples) - rng.integers(max(length - 1, 1), size=n), 0, width - length)
        pieces = np.take_along_axis(examples, start[:, None] + np.arange(length), axis=1)
        return pieces, np.sort(pieces, axis=1)

    def _new(self, rng: np.random.Generator, n: int, forbidden: set[bytes], *, unique: bool = False) -> Kinds:
        """Return `n` new examples that are not in `forbidden` and, if `unique`, all different; with their kinds."""
        rows, kinds = self._make(rng, n)
        for _ in range(MOST_TRIES):
            bad, seen = np.zeros(n, dtype=bool), set[bytes]()
            for i, name in enumerate(row.tobytes() for row in rows):
                bad[i] = name in forbidden or (unique and name in seen)
                seen.add(name)
            if self.config.paired:  # a pair stays together
                half = n // 2
                bad[: 2 * half] = np.tile(bad[:half] | bad[half : 2 * half], 2)
            if not bad.any():
                return rows, kinds
            again, other_kinds = self._make(rng, n)
            rows, kinds = np.where(bad[:, None], again, rows), np.where(bad, other_kinds, kinds)
        raise InputError(
            f"there are too few sequences of {self.config.shortest} to {self.longest} numbers below "
            f"{self.config.n_values} to keep {self.config.n_validation + self.config.n_test:,} of them for "
            "validation and test",
            "lower --n-validation and --n-test, or raise --n-values or --longest",
        )

    def _make(self, rng: np.random.Generator, n: int) -> Kinds:
        """Return `n` new examples, the unsorted ones first, with the kind of each, such as `shuffle` or `sorted`."""
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

    # --- tokens and meaning -------------------------------------------------------------------------------------------

    def encode(self, examples: Examples) -> ClassBatch:
        """Return the token ids and the right classes of examples; shorter examples are padded."""
        width = int(self.lengths(examples).max(initial=1))
        if not self.masks_padding:  # the padding of an example must not depend on the other examples
            width = max(width, self.longest)
            examples = np.pad(examples, ((0, 0), (0, max(0, width - examples.shape[1]))), constant_values=EMPTY)
        numbers = examples[:, :width]
        labels = (self.first_broken(numbers) < 0).astype(np.int64)
        return ClassBatch(np.where(numbers == EMPTY, self.pad_id, numbers), labels)

    def lengths(self, examples: Examples) -> NDArray[np.int64]:
        """Return the number of numbers in each sequence."""
        return np.asarray((examples != EMPTY).sum(axis=1))

    def first_broken(self, examples: Examples) -> NDArray[np.int64]:
        """Return, for each sequence x, the first i with x_i > x_(i+1), or -1 if the sequence is sorted."""
        return first_broken(np.where(examples == EMPTY, FILL, examples))

    def facets(self, examples: Examples) -> Mapping[str, tuple[str, ...]]:
        """Return the group of each example by class, kind of unsorted sequence, number of unsorted pairs, and length.

        The kind is known for examples of the splits only.
        """
        full = np.where(examples == EMPTY, FILL, examples)
        falls = (full[:, :-1] > full[:, 1:]).sum(axis=1)
        wide = len(str(self.longest))
        return {
            "class": tuple(self.classes[int(fall == 0)] for fall in falls),
            "kind": tuple(self._kinds.get(example.tobytes(), "unknown") for example in examples),
            "broken pairs": tuple("3 or more" if fall > 2 else str(fall) for fall in falls),
            "length": tuple(f"{length:{wide}d}" for length in self.lengths(examples)),
        }

    def attention_targets(self, stack: str, kind: str, examples: Examples) -> AttentionTargets:
        """Return the tokens that heads may attend to (targets), such as the number to the left, for these sequences.

        Attention is compared between sorted and unsorted sequences.
        """
        batch = self.encode(examples)
        targets: dict[str, Target] = {
            "left neighbour": lambda query, key: key == query - 1,
            "itself": lambda query, key: key == query,
            "right neighbour": lambda query, key: key == query + 1,
            "equal numbers": lambda query, key: (batch.source[:, query] == batch.source[:, key]) & (query != key),
            "first token": lambda query, key: key == 0,
        }
        is_sorted = Condition("sorted", "unsorted", "the sequence is sorted", batch.labels[:, None] == 1)
        return AttentionTargets(targets, (), np.full(batch.source.shape[1], -1), is_sorted)

    # --- text ---------------------------------------------------------------------------------------------------------

    def page_script(self) -> str:
        """Return the JavaScript with which the report's page reads sequences that people type."""
        return files("headcount.tasks").joinpath("sortedness.js").read_text(encoding="utf-8")

    def parse(self, text: str) -> Examples:
        """Return the sequence in a text such as `3 5 5 9`, as an array of one example; invalid texts are errors."""
        allowed = f"write numbers from 0 to {self.config.n_values - 1} with spaces between them, such as 3 5 5 9"
        words = text.replace(",", " ").split()
        if not words:
            raise InputError("no numbers were given", allowed)
        for word in words:
            if not (word.isascii() and word.isdigit()):
                raise InputError(f"{word[:20]!r} in {text.strip()[:40]!r} is not a number", allowed)
            if len(word.lstrip("0")) > 9 or int(word) >= self.config.n_values:
                raise InputError(f"{word[:20]} in {text.strip()[:40]!r} is out of range", allowed)
        return np.array([[int(word) for word in words]])

    def show(self, example: Examples) -> str:
        """Return a sequence as text, such as `3 5 5 9`."""
        return " ".join(map(str, example[example != EMPTY].tolist()))

    def answer(self, example: Examples) -> str:
        """Return the class of a sequence, `sorted` or `unsorted`; equal neighbours count as sorted."""
        return self.classes[int(self.encode(example[None]).labels[0])]

    def describe(self, example: Examples) -> str:
        """Return a text that names the first pair of neighbours in the wrong order, or says that there is none."""
        place = int(self.first_broken(example[None])[0])
        if place < 0:
            return "all neighbours are in order"
        return f"first wrong order at position {place}: {example[place]} > {example[place + 1]}"

    def explain(self, example: Examples, predicted: int) -> str:
        """Return a description of what is wrong with a predicted class; empty if it is right."""
        return "" if predicted == int(self.encode(example[None]).labels[0]) else self.describe(example)


PART = Sortedness
