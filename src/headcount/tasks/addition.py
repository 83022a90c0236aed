"""The addition task: a model reads two numbers and predicts their sum digit by digit.

One example, with 3-digit operands and the most significant digit first:

    source   3 7 4 + 8 1 4       columns 2 1 0 . 2 1 0
    answer   1 1 8 8             columns 3 2 1 0        zero-filled to one digit more than the operands
    decoder  <s> 1 1 8           decoder input: a start token, then the answer without its last digit
    carry    out of column 2 (3 + 8 = 11) into column 3; none out of 0 (4 + 4 = 8) or 1 (7 + 1 = 8)

A column counts digits from the least significant one (0). Two settings, off by default, plant faults of the published
reports (docs/reports.md), which change the decoder input and the labels:

    start_token=False   decoder input 1 1 8, labels 1 8 8: the first digit is never predicted; decoding starts from 0
    loss_ignores_zero   a 0 in the answer is never a label, as if it were padding
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationInfo, field_validator

from headcount.config import config
from headcount.errors import InputError
from headcount.seeds import stream
from headcount.tasks.base import (
    IGNORE,
    REPORTS_NORM,
    REPORTS_TRAINING,
    AttentionTargets,
    Batch,
    Condition,
    Contrast,
    DecodingStart,
    EventWords,
    Examples,
    Position,
    Preset,
    Quartets,
    SequenceTask,
    Target,
    TaskWords,
    Tokens,
)

Count = Annotated[int, Field(ge=0)]
Columns = NDArray[np.int64]
"""An array of digits [..., column]; column 0 is the least significant digit."""
PLUS, START, PAD = 10, 11, 12
TRIES = 40
"""Number of sums drawn for each example of a contrast or quartet (sets of similar sums); about 1 in 15 is usable."""


@config
class AdditionConfig:
    """Settings of the sums: the range of the operands, the sizes of the splits, and faults planted on purpose."""

    digits: Annotated[int, Field(ge=1, le=9)] = 3
    """Digits of each operand; shorter numbers are zero-filled."""
    low: Count | None = None
    """Smallest operand [default: the smallest with that many digits]."""
    high: Count | None = None
    """Largest operand [default: the largest with that many digits]."""
    least_first: bool = False
    """Write numbers with their least significant digit first."""
    n_train: Count = 0
    """Train on a fixed set of this many sums; 0 draws new sums at every step."""
    n_validation: Annotated[int, Field(ge=1)] = 2000
    """Number of held-out sums for validation during training."""
    n_test: Annotated[int, Field(ge=1)] = 2000
    """Number of held-out sums for the test of the trained model."""
    splits_may_overlap: bool = False
    """Deliberate FAULT, as in the newer published reports: draw the splits independently, so that they share sums."""
    split_seed: int = 0
    """Seed of the held-out sets; separate from --seed, so that runs with different seeds share a test set."""
    start_token: bool = True
    """Begin the decoder input with a start token. Without it (a deliberate FAULT, as in the published reports), the
    model never predicts the first digit, and decoding starts from 0."""
    loss_ignores_zero: bool = False
    """Deliberate FAULT, as in the published reports: the loss ignores the digit 0 as if it were padding."""

    @property
    def range(self) -> tuple[int, int]:
        """The smallest and the largest number that may be an operand."""
        return _range(self.digits, self.low, self.high)

    @field_validator("low", "high")
    @classmethod
    def _fits(cls, operand: int | None, info: ValidationInfo) -> int | None:
        digits = info.data.get("digits", 9)
        if operand is not None and operand >= 10**digits:
            raise ValueError(f"has more than {digits} digits: raise digits, or stay below {10**digits}")
        if info.field_name == "high" and {"digits", "low"} <= info.data.keys():
            low, high = _range(info.data["digits"], info.data["low"], operand)
            if high < low:
                raise ValueError(f"is below the smallest operand ({low}): lower low, or raise high")
        return operand

    @field_validator("n_test")
    @classmethod
    def _leaves_something_to_train_on(cls, n_test: int, info: ValidationInfo) -> int:
        if {"digits", "low", "high", "n_train", "n_validation"} <= info.data.keys():
            low, high = _range(info.data["digits"], info.data["low"], info.data["high"])
            pairs = (high - low + 1) * (high - low + 2) // 2
            n_sums = info.data["n_train"] + info.data["n_validation"] + n_test
            if n_sums > pairs // 2:
                raise ValueError(
                    f"n_train + n_validation + n_test = {n_sums:,} sums, but there are only {pairs:,} pairs of "
                    f"numbers from {low} to {high}, and at most half of them may be in these sets: lower these "
                    "numbers, or widen the range"
                )
        return n_test


def _range(digits: int, low: int | None, high: int | None) -> tuple[int, int]:
    smallest = 10 ** (digits - 1) if digits > 1 else 0
    return smallest if low is None else low, 10**digits - 1 if high is None else high


@dataclass(frozen=True)
class Carries:
    """The carries of some sums: into and out of each column [example, column], their number, and the longest chain.

    Column 0 is the least significant digit. A chain is a run of neighbouring columns that all carry.
    """

    into: NDArray[np.bool_]
    out: NDArray[np.bool_]
    count: NDArray[np.int64]
    longest: NDArray[np.int64]


def digits_of(numbers: NDArray[np.int64], n_columns: int) -> Columns:
    """Return the first `n_columns` digits of each number, [..., column], the least significant digit first."""
    return numbers[..., None] // 10 ** np.arange(n_columns) % 10


def _first_rows(table: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the indices of the rows of a table that differ from all rows before them."""
    return np.sort(np.unique(table, axis=0, return_index=True)[1])


def column_name(column: int) -> str:
    """Return the name of a column of digits, counted from the right: `1s` for 0, `10s` for 1, `100s` for 2, ..."""
    return f"{10**column}s" if column < 6 else f"10^{column}s"


CARRY = EventWords(
    name="carry",
    question="Which heads handle the carry?",
    conditions=("carry in", "no carry in"),
    facet="carries",
    absent="0",
    contrast="Sums are compared that differ in one digit. In one pair the digit makes the next lower column add to 10 "
    "instead of 9, so that a carry comes in. In the other pair the column adds to 9 instead of 8, so that none does.",
    error="every wrong digit lost a carry or made one up",
)
WORDS = TaskWords(
    example="sum",
    examples="sums",
    place="digit",
    question="The model reads a sum such as 374+814 and writes the answer digit by digit. Is it right, what do its "
    "heads attend to, and which heads matter?",
    targets={
        "operator": "the plus sign",
        "diagonal": "the token at its own place",
        "aligned column": "the digits that the current digit is the sum of",
        "carry column": "the next lower column, which makes the carry",
        "previous output": "the token that was written just before",
    },
    groups={"digit": "at the {}", "longest chain": "where the longest carry chain is {}"},
    model="the adder",
    sign=" = ",
    mark="longest chain",
    event=CARRY,
)
FIXED = {"n_train": 10_000, "n_validation": 2_000, "n_test": 2_000}
PRESETS = {
    "older": Preset(
        "data of the older published reports: operands 0..999, 10,000 fixed sums, no pair in two splits",
        {"task": {**FIXED, "low": 0, "high": 999}},
    ),
    "newer": Preset(
        "data of the newer published reports: operands 100..999, 10,000 fixed sums, independent splits that overlap",
        {"task": {**FIXED, "low": 100, "high": 999, "splits_may_overlap": True}},
    ),
    "reports-recipe": Preset(
        "training of the reports: sinusoidal, post-LN, dropout 0.1, Adam at a constant 1e-3, batch 64, 50 epochs",
        {"model": {"encoding": "sinusoidal", **REPORTS_NORM}, "training": REPORTS_TRAINING},
    ),
}
"""Presets with the data and the training of the five reports (docs/reports.md)."""


class Addition(SequenceTask):
    """The addition task; an example is a pair of operands, and examples are an int64 array [example, 2]."""

    name: ClassVar[str] = "addition"
    output_type: ClassVar[Literal["sequence", "class"]] = "sequence"
    words: ClassVar[TaskWords] = WORDS
    config_class: ClassVar[type] = AdditionConfig
    presets: ClassVar[Mapping[str, Preset]] = PRESETS
    tokens: tuple[str, ...] = (*"0123456789+", "<s>", "<pad>")
    pad_id = PAD

    def __init__(self, config: AdditionConfig | None = None) -> None:
        self.config = config or AdditionConfig()
        self.low, self.high = self.config.range
        self.n_operands = self.high - self.low + 1
        self.domain_size = self.n_operands**2
        self.n_columns = n = self.config.digits
        self.longest = 2 * n + 1  # length of the source; the decoder input is never longer
        first, given = (START, ()) if self.config.start_token else (0, (0,))
        self.decoding_start = DecodingStart(first, given, n_tokens=n + 1 - len(given))
        columns = self._in_order(np.arange(n + 1)).tolist()
        a, b = ([Position("operand", f"{'ab'[i]} {column_name(c)}", c, i) for c in columns if c < n] for i in (0, 1))
        self.source_positions = (*a, Position("operator", "+"), *b)
        self.answer_positions = tuple(Position("sum", column_name(c), c) for c in columns)
        start = (Position("start", "<s>"),) if self.config.start_token else ()
        self.decoder_input_positions = (*start, *self.answer_positions[:-1])

    @classmethod
    def describe_data(cls, settings: Mapping[str, Any]) -> str:
        """Return a phrase that completes "The model was trained ...".

        >>> Addition.describe_data({"digits": 3})
        'to write the sums of two 3-digit numbers, most significant digit first'
        """
        if "digits" not in settings:
            return ""
        order = "least" if settings.get("least_first") else "most"
        return f"to write the sums of two {settings['digits']}-digit numbers, {order} significant digit first"

    # --- examples -----------------------------------------------------------------------------------------------------

    @cached_property
    def splits(self) -> dict[str, Examples]:
        """The sums of the splits `validation`, `test` and `train` (empty unless the training set is fixed), by name.

        No two splits share a sum, where a+b and b+a count as one sum (unless the setting `splits_may_overlap` is on).
        """
        c = self.config
        sizes = {"validation": c.n_validation, "test": c.n_test, "train": c.n_train}
        if c.splits_may_overlap:
            return {
                name: self._distinct(stream(c.split_seed, f"split/{name}"), size, swap_is_same=False)
                for name, size in sizes.items()
            }
        everything = self._distinct(stream(c.split_seed, "split"), sum(sizes.values()), swap_is_same=True)
        ends = np.cumsum(list(sizes.values()))
        return dict(zip(sizes, np.split(everything, ends[:-1]), strict=True))

    def sample(self, rng: np.random.Generator, n: int) -> Examples:
        """Return `n` training sums, drawn with replacement; neither a+b nor b+a is in the validation or test set."""
        if self.config.n_train:
            return self.splits["train"][rng.integers(self.config.n_train, size=n)]
        pairs = self._uniform(rng, n)
        while (held := self.is_held_out(pairs)).any():
            pairs[held] = self._uniform(rng, int(held.sum()))
        return pairs

    def is_held_out(self, pairs: Examples) -> NDArray[np.bool_]:
        """Return a mask of the sums a+b for which a+b or b+a is in the validation or test set."""
        keys, held = self._keys(pairs), self._held_keys
        return np.asarray(held[np.minimum(np.searchsorted(held, keys), len(held) - 1)] == keys)

    @cached_property
    def _held_keys(self) -> NDArray[np.int64]:
        return np.sort(self._keys(np.concatenate([self.splits["validation"], self.splits["test"]])))

    def _keys(self, pairs: Examples) -> NDArray[np.int64]:
        """Return one number per sum; a+b and b+a have the same number."""
        ordered: NDArray[np.int64] = np.sort(pairs - self.low, axis=1)
        return ordered[:, 0] * self.n_operands + ordered[:, 1]

    def _uniform(self, rng: np.random.Generator, n: int) -> Examples:
        return rng.integers(self.low, self.high + 1, size=(n, 2))

    def _distinct(self, rng: np.random.Generator, n: int, *, swap_is_same: bool) -> Examples:
        """Return `n` different sums in random order; with `swap_is_same`, a+b and b+a do not count as different."""
        pairs = np.empty((0, 2), dtype=np.int64)
        while len(pairs) < n:
            pairs = np.concatenate([pairs, self._uniform(rng, 2 * (n - len(pairs)) + 16)])
            keys = self._keys(pairs) if swap_is_same else pairs @ np.array([self.high + 1, 1])
            pairs = pairs[np.sort(np.unique(keys, return_index=True)[1])]
        return pairs[:n]

    def iter_domain(self) -> Iterator[Examples]:
        """Yield all possible sums, in blocks of sums with the same answer."""
        for total in range(2 * self.low, 2 * self.high + 1):
            first = np.arange(max(self.low, total - self.high), min(self.high, total - self.low) + 1)
            yield np.stack([first, total - first], axis=1)

    def index(self, examples: Examples) -> Tokens:
        """Return a unique number for each sum: 0 for `100+100`, 1 for `100+101`, ...; invalid sums are errors."""
        if not ((self.low <= examples) & (examples <= self.high)).all():
            raise ValueError(
                f"operands must be from {self.low} to {self.high}, got {examples.min()} to {examples.max()}"
            )
        first, second = (examples - self.low).T
        return np.asarray(first * self.n_operands + second)

    # --- tokens -------------------------------------------------------------------------------------------------------

    def encode(self, examples: Examples) -> Batch:
        """Return the token ids of these sums: the question, the decoder's input, the labels and the answer."""
        operands = self._in_order(digits_of(examples, self.n_columns))
        answer = self._in_order(digits_of(examples.sum(axis=1), self.n_columns + 1))
        plus = np.full((len(examples), 1), PLUS)
        source = np.concatenate([operands[:, 0], plus, operands[:, 1]], axis=1)
        decoder_input, labels = answer[:, :-1], answer[:, len(self.decoding_start.given) :]
        if self.config.start_token:
            decoder_input = np.concatenate([np.full_like(plus, START), decoder_input], axis=1)
        if self.config.loss_ignores_zero:
            labels = np.where(labels == 0, IGNORE, labels)
        return Batch(source, decoder_input, labels, answer)

    def _in_order(self, columns: Columns) -> Columns:
        """Convert digits between order of significance, least first, and the order in which the task writes them."""
        return columns if self.config.least_first else np.ascontiguousarray(columns[..., ::-1])

    # --- meaning ------------------------------------------------------------------------------------------------------

    def carries(self, examples: Examples) -> Carries:
        """Return the carries of these sums: into and out of each column, their number, and the longest chain.

        >>> truth = Addition().carries(np.array([[374, 814], [999, 1]]))
        >>> truth.out.tolist()
        [[False, False, True], [True, True, True]]
        >>> truth.count.tolist(), truth.longest.tolist()
        ([1, 3], [1, 3])
        """
        digit_sums = digits_of(examples, self.n_columns).sum(axis=1)
        out, carry = np.zeros(digit_sums.shape, dtype=bool), np.zeros(len(examples), dtype=bool)
        run, longest = np.zeros((2, len(examples)), dtype=np.int64)
        for column in range(self.n_columns):
            out[:, column] = carry = digit_sums[:, column] + carry > 9
            run = np.where(carry, run + 1, 0)
            longest = np.maximum(longest, run)
        return Carries(np.pad(out[:, :-1], ((0, 0), (1, 0))), out, out.sum(axis=1), longest)

    def facets(self, examples: Examples) -> Mapping[str, tuple[str, ...]]:
        """Return the group of each sum for three ways of grouping: number of carries, longest carry chain, and size."""
        carries, limit = self.carries(examples), 10**self.n_columns
        return {
            "carries": tuple(map(str, carries.count.tolist())),
            "longest chain": tuple(map(str, carries.longest.tolist())),
            "sum": tuple(f"below {limit}" if s < limit else f"from {limit}" for s in examples.sum(axis=1)),
        }

    def attention_targets(self, stack: str, kind: str, examples: Examples) -> AttentionTargets:
        """Return the tokens that heads of an attention block may attend to (targets), and which sums have a carry.

        For 374+814, in the decoder's cross-attention, when the 10s of the answer are predicted:

            source            3 7 4 + 8 1 4
            aligned column      x       x          both digits that make this digit of the answer
            carry column          x       x        the next lower column, which makes the carry into this one
            operator                x
            first token       x

        In the encoder, the aligned column of a digit is in the other operand only. In the decoder's self-attention,
        the token that was just predicted is on the diagonal, so the diagonal is called "previous output" there.
        """
        predicted = self.answer_positions[len(self.decoding_start.given) :]
        queries = self.source_positions if stack == "encoder" else predicted
        written = list(dict.fromkeys(p.column for p in queries if p.column is not None))
        query_column = np.array([-1 if p.column is None else written.index(p.column) for p in queries])
        carry_in = np.pad(self.carries(examples).out, ((0, 0), (1, 0)))[:, written]
        condition = Condition(*CARRY.conditions, "a carry comes in", carry_in)
        if (stack, kind) == ("decoder", "self"):
            is_digit = np.array([p.role == "sum" for p in self.decoder_input_positions])
            targets: dict[str, Target] = {"previous output": lambda q, k: (q == k) & is_digit[k]}
        else:
            keys = self.source_positions
            # As floats, None becomes NaN, which is not equal to anything, not even to itself.
            columns, key_columns = (np.array([p.column for p in part], dtype=float) for part in (queries, keys))
            operands, key_operands = (np.array([p.operand for p in part], dtype=float) for part in (queries, keys))
            is_operator = np.array([p.role == "operator" for p in keys])
            targets = {
                "operator": lambda q, k: is_operator[k],
                "diagonal": lambda q, k: q == k,
                "aligned column": lambda q, k: (columns[q] == key_columns[k]) & (operands[q] != key_operands[k]),
                "carry column": lambda q, k: columns[q] - 1 == key_columns[k],
            }
        targets["first token"] = lambda q, k: k == 0
        return AttentionTargets(targets, tuple(map(column_name, written)), query_column, condition)

    def contrast(self, rng: np.random.Generator, n: int) -> Contrast:
        """Return up to `n` triples of sums per column, which separate the effect of a carry from the effect of a digit.

        The 1s of 374+615 add to 9. One more makes them add to 10, and a carry enters the 10s. One less makes them add
        to 8, which changes a digit but no carry:

            8 -> 9     373+615  374+615     the effect of a digit
            9 -> 10    374+615  375+615     the effect of a digit and a carry

        The difference between the two is the effect of the carry. No carry comes into the column, and the next higher
        column does not add to 9, so that the carry stops there. The digits of that higher column are the same in all
        three sums, and so is the decoder input before that column is predicted (most significant digit first).

        >>> contrast = Addition().contrast(np.random.default_rng(0), 2)
        >>> contrast.columns
        ('10s', '10s', '100s', '100s', '1000s', '1000s')
        >>> [step[0].tolist() for step in contrast.steps]
        [[865, 673], [865, 674], [865, 675]]
        """
        triples = [self._contrast_at(column, rng, n) for column in range(self.n_columns)]
        steps = tuple(np.concatenate(parts) for parts in zip(*triples, strict=True))
        columns = tuple(column_name(i + 1) for i, (before, *_) in enumerate(triples) for _ in before)
        words = "change in attention if the next lower column adds to 10 instead of 9, minus the change from 8 to 9"
        return Contrast("carry sensitivity", words, (steps[0], steps[1], steps[2]), columns)

    def _contrast_at(self, column: int, rng: np.random.Generator, n: int) -> tuple[Examples, Examples, Examples]:
        """Return three sets of sums whose digits in a column add to 8, to 9 and to 10.

        From set to set, only one of the two digits changes.
        """
        pairs, unit = self._uniform(rng, TRIES * n), 10**column
        digit_sum = digits_of(pairs, self.n_columns)[:, :, column].sum(axis=1)
        pairs[:, 1] += (9 - digit_sum) * unit  # sets the second digit to 9 minus the first
        step = np.zeros_like(pairs)
        step[np.arange(len(pairs)), rng.integers(2, size=len(pairs))] = unit
        before, after = pairs - step, pairs + step
        usable: NDArray[np.bool_] = ~self.carries(pairs).into[:, column]
        if column + 1 < self.n_columns:
            usable &= digits_of(pairs, self.n_columns)[:, :, column + 1].sum(axis=1) != 9
        for step_pairs, total in ((before, 8), (pairs, 9), (after, 10)):
            usable &= ((self.low <= step_pairs) & (step_pairs <= self.high)).all(axis=1)
            # A step below 0 or above 9 changes the next column as well.
            usable &= digits_of(step_pairs, self.n_columns)[:, :, column].sum(axis=1) == total
        _, first = np.unique(pairs[usable], axis=0, return_index=True)  # without repeats, in the order drawn
        rows = np.flatnonzero(usable)[np.sort(first)[:n]]
        return before[rows], pairs[rows], after[rows]

    def quartets(self, rng: np.random.Generator, n: int) -> list[Quartets]:
        """Return up to `n` sets of four sums for each pair of columns in which a carry from one reaches the other.

        From the 1s into the 100s, the 10s add to 9 and pass the carry on; the 100s do not add to 9 and stop it:

            smaller    without    with_event   larger
            374+223    374+225    374+227      374+229     the 1s add to 7, 9, 11 and 13; the 10s add to 9

        >>> [(each.source, each.read, each.chain) for each in Addition().quartets(np.random.default_rng(0), 2)][:3]
        [('1s', '10s', 1), ('1s', '100s', 2), ('1s', '1000s', 3)]
        """
        ways = [(source, read) for source in range(self.n_columns) for read in range(source + 1, self.n_columns + 1)]
        return [self._quartets_from(source, read, rng, n) for source, read in ways]

    def _quartets_from(self, source: int, read: int, rng: np.random.Generator, n: int) -> Quartets:
        n_drawn, unit = 4 * TRIES * n, 10**source
        digits = digits_of(self._uniform(rng, n_drawn), self.n_columns)
        for column in range(source + 1, read):
            digits[:, 1, column] = 9 - digits[:, 0, column]
        rows, which = np.arange(n_drawn), rng.integers(2, size=n_drawn)
        step, rising = rng.integers(1, 4, size=n_drawn), digits[rows, which, source]
        pairs = digits @ 10 ** np.arange(self.n_columns)
        sums = digits.sum(axis=1)
        usable = (sums[:, source] <= 9) & (sums[:, source] + step >= 10)
        usable &= (rising - step >= 0) & (rising + 2 * step <= 9)
        usable &= ~self.carries(pairs).into[:, source]
        if read < self.n_columns:
            usable &= sums[:, read] != 9
        change = np.zeros_like(pairs)
        change[rows, which] = step * unit
        fours = [pairs + times * change for times in (-1, 0, 1, 2)]
        for four in fours:
            usable &= ((self.low <= four) & (four <= self.high)).all(axis=1)
        # Different sums first. Sums of one digit are so few that some are used again, with another step.
        order = [_first_rows(pairs[usable]), _first_rows(np.concatenate([pairs, change], axis=1)[usable])]
        chosen = np.flatnonzero(usable)[list(dict.fromkeys(np.concatenate(order).tolist()))[:n]]
        smaller, without, with_event, larger = (four[chosen] for four in fours)
        names, place = (column_name(source), column_name(read)), self._place(read)
        return Quartets(*names, read - source, (smaller, without, with_event, larger), place)

    def _place(self, column: int) -> int:
        return next(i for i, position in enumerate(self.answer_positions) if position.column == column)

    def event_tokens(self, examples: Examples, place: int) -> Tokens:
        """Return the digit at a position of the answer without and with a carry into it, [example, 2]."""
        column = self.answer_positions[place].column or 0
        digit_sums = np.pad(digits_of(examples, self.n_columns).sum(axis=1), ((0, 0), (0, 1)))
        return np.stack([digit_sums[:, column] % 10, (digit_sums[:, column] + 1) % 10], axis=1)

    def has_event(self, examples: Examples, place: int) -> NDArray[np.bool_]:
        """Return a mask of the sums with a carry into the position `place` of the answer."""
        return np.pad(self.carries(examples).out, ((0, 0), (1, 0)))[:, self.answer_positions[place].column or 0]

    def repeated_tokens(self) -> Examples | None:
        """Return sums in which one digit is repeated at all positions, such as 555+555.

        >>> Addition().repeated_tokens()[4].tolist()
        [555, 555]
        """
        numbers = [int(str(digit) * self.n_columns) for digit in range(1, 10)]
        pairs = [[number, number] for number in numbers if self.low <= number <= self.high]
        return np.array(pairs) if pairs else None

    def hard_examples(self, rng: np.random.Generator, n: int) -> Examples:
        """Return up to `n` sums on which models often err, most of them with patterns that random sums rarely show.

        A carry runs through columns that add to 9 (958+42), every column makes a carry (567+879) or none does
        (512+386), or a sum has many zeros and operands of unequal size (900+7).
        """
        sums = [self._extreme_sums()]
        for _ in range(4):  # in a narrow range, most sums are outside
            operands = self._patterned_operands(rng, n)
            sums.append(operands[((self.low <= operands) & (operands <= self.high)).all(axis=1)])
        in_range = np.concatenate([sums[0], rng.permutation(np.concatenate(sums[1:]))])
        _, first = np.unique(in_range, axis=0, return_index=True)
        return in_range[np.sort(first)[:n]]

    def _extreme_sums(self) -> Examples:
        """Return all sums of extreme operands: the smallest, the largest and the powers of ten, plus or minus one."""
        centres = [self.low, self.high, *(10**column for column in range(self.n_columns))]
        numbers = {centre + step for centre in centres for step in (-1, 0, 1)}
        in_range = [number for number in sorted(numbers) if self.low <= number <= self.high]
        return np.array([(a, b) for a in in_range for b in in_range])

    def _patterned_operands(self, rng: np.random.Generator, n: int) -> Examples:
        """Return `n` pairs of operands with carry patterns, some of them out of range.

        Each column adds to 9, makes a carry, makes none, or has a 0.
        """
        columns, shape = np.arange(self.n_columns), (n, self.n_columns)
        nine, carry, none, zero = range(4)
        start = rng.integers(self.n_columns, size=(n, 1))
        chain = np.where(columns == start, carry, np.where(columns > start, nine, rng.choice([none, zero], size=shape)))
        alike = np.broadcast_to(rng.integers(4, size=(n, 1)), shape)
        kinds = np.where(rng.random((n, 1)) < 0.5, chain, alike)
        kinds = np.where(rng.random(shape) < 0.1, rng.integers(4, size=shape), kinds)
        first = rng.integers(10, size=shape)
        first = np.where((kinds == carry) & (first == 0), 9, first)
        least = np.where(kinds == carry, 10 - first, 0)
        most = np.where(kinds == carry, 9, np.where(kinds == none, 9 - first, 0))
        second = np.where(kinds == nine, 9 - first, least + rng.integers(most - least + 1))
        is_swapped = rng.random(shape) < 0.5
        digits = np.stack([np.where(is_swapped, second, first), np.where(is_swapped, first, second)], axis=1)
        n_digits = np.where(rng.random(n) < 0.3, rng.integers(1, self.n_columns + 1, size=n), self.n_columns)
        digits[:, 1] = np.where(columns < n_digits[:, None], digits[:, 1], 0)
        return np.asarray(digits @ 10**columns)

    def mutate(self, rng: np.random.Generator, examples: Examples) -> Examples:
        """Return each sum with one digit of one operand changed; if the operand is then out of range, draw it anew."""
        mutated, rows = examples.copy(), np.arange(len(examples))
        which, column = rng.integers(2, size=len(rows)), rng.integers(self.n_columns, size=len(rows))
        old = examples[rows, which]
        digit = old // 10**column % 10
        new = old + ((digit + rng.integers(1, 10, size=len(rows))) % 10 - digit) * 10**column
        other = self.low + (old - self.low + rng.integers(1, self.n_operands, size=len(rows))) % self.n_operands
        mutated[rows, which] = np.where((self.low <= new) & (new <= self.high), new, other)
        return mutated

    # --- text ---------------------------------------------------------------------------------------------------------

    def page_script(self) -> str:
        """Return the JavaScript with which the report's page reads sums that people type."""
        return files("headcount.tasks").joinpath("addition.js").read_text(encoding="utf-8")

    def parse(self, text: str) -> Examples:
        """Return the sum in a text such as `374+814`, as an array of one example; raise an error for other texts."""
        sample = f"{(2 * self.low + self.high) // 3}+{(self.low + 4 * self.high) // 5}"
        allowed = f"write two numbers from {self.low} to {self.high} with a plus between them, such as {sample}"
        match = re.fullmatch(r"\s*([0-9]+)\s*\+\s*([0-9]+)\s*", text)
        if match is None:
            raise InputError(f"{text!r} is not a sum" if text.strip() else "no sum was given", allowed)
        operands = [digits.lstrip("0") or "0" for digits in match.groups()]
        for digits in operands:
            if len(digits) > self.n_columns or not self.low <= int(digits) <= self.high:
                raise InputError(f"{digits[:20]} in {text.strip()[:40]!r} is out of range", allowed)
        return np.array([[int(digits) for digits in operands]])

    def show(self, example: Examples) -> str:
        """Return a sum as text, such as `374+814`."""
        return f"{example[0]}+{example[1]}"

    def answer(self, example: Examples) -> str:
        """Return the sum of the operands as text, such as `1188`."""
        return str(int(example[0]) + int(example[1]))

    def show_tokens(self, tokens: Tokens) -> str:
        """Return the tokens of an answer as a number, most significant digit first, such as `1188`."""
        text = [self.tokens[token] for token in tokens]
        return "".join(reversed(text) if self.config.least_first else text)

    def read_answer(self, text: str) -> Tokens | None:
        """Return the tokens of an answer such as `1188`, or None if the text is not one.

        Either all leading zeros must be written, or none.

        >>> Addition().read_answer("42"), Addition().read_answer("0042"), Addition().read_answer("042")
        (array([0, 0, 4, 2]), array([0, 0, 4, 2]), None)
        """
        if re.fullmatch(f"0|[1-9][0-9]{{0,{self.n_columns}}}|[0-9]{{{self.n_columns + 1}}}", text) is None:
            return None
        return np.ascontiguousarray(self._in_order(digits_of(np.array(int(text)), self.n_columns + 1)))

    def explain(self, example: Examples, predicted: Tokens) -> str:
        """Return a description of the wrong digits of an answer, and of the carries that it lost or made up."""
        if (predicted > 9).any():
            return f"{self.show_tokens(predicted)} is not a number"
        wrong = self._wrong(example, predicted)
        return "; ".join(f"{column_name(c)}: {digits}{f' ({note})' if note else ''}" for c, digits, note in wrong)

    def faults(self, example: Examples, predicted: Tokens) -> tuple[str, ...]:
        """Return the kinds of mistakes in a wrong answer, such as `lost the carry from the 10s`."""
        if (predicted > 9).any():
            return ("not a number",)
        wrong = self._wrong(example, predicted)
        return tuple(note or f"wrong in the {column_name(column)} for another reason" for column, _, note in wrong)

    def _wrong(self, example: Examples, predicted: Tokens) -> list[tuple[int, str, str]]:
        """Return (column, description, note on the carry into the column) for each wrong digit of an answer.

        The most significant column comes first.

        >>> Addition()._wrong(np.array([374, 816]), np.array([1, 1, 8, 0]))
        [(1, '8, should be 9', 'lost the carry from the 1s')]
        """
        digits, right = self._in_order(predicted), digits_of(example.sum(), len(predicted))
        carry_in = np.pad(self.carries(example[None]).out[0], (1, len(predicted)))
        wrong = []
        for column in reversed(np.flatnonzero(digits != right).tolist()):
            note, off_by = "", (digits[column] - right[column]) % 10
            if carry_in[column] and off_by == 9:
                note = f"lost the carry from the {column_name(column - 1)}"
            elif column and not carry_in[column] and off_by == 1:
                note = f"made up a carry from the {column_name(column - 1)}"
            wrong.append((column, f"{digits[column]}, should be {right[column]}", note))
        return wrong


PART = Addition
