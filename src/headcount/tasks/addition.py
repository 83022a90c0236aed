"""Addition: two numbers in, their sum out, digit by digit.

One example, most significant digit first, 3-digit operands:

    source   3 7 4 + 8 1 4       columns 2 1 0 . 2 1 0
    answer   1 1 8 8             columns 3 2 1 0        zero-filled to one digit more than the operands
    fed      <s> 1 1 8           the answer behind a start token, without its last digit
    carry    out of column 2 (3 + 8 = 11) into column 3; none out of 0 (4 + 4 = 8) or 1 (7 + 1 = 8)

The two faults of the reports (off by default) change what is fed and asked:

    start_token=False   fed 1 1 8, asked 1 8 8: the first digit is never predicted; generation starts from 0
    loss_ignores_zero   a 0 in the answer is never asked for, as if it were padding
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationInfo, field_validator, model_validator

from headcount.config import config
from headcount.errors import InputError
from headcount.tasks._carries import (
    Carries,
    carries_of,
    carry_contrast,
    column_name,
    digits_of,
    explain_digits,
    wrong_columns,
)
from headcount.tasks._pairs import PairSplits
from headcount.tasks.base import (
    IGNORE,
    AttentionTargets,
    Batch,
    Condition,
    Contrast,
    DecodingStart,
    Examples,
    Position,
    Target,
    Tokens,
)

Operand = Annotated[int, Field(ge=0)]
PLUS, START, PAD = 10, 11, 12


@config
class AdditionConfig:
    """The data."""

    digits: Annotated[int, Field(ge=1, le=9)] = 3
    """Digits of each operand; shorter numbers are zero-filled."""
    low: Operand | None = None
    """Smallest operand [default: the smallest with that many digits]."""
    high: Operand | None = None
    """Largest operand [default: the largest with that many digits]."""
    least_first: bool = False
    """Write numbers with their least significant digit first."""
    n_train: Annotated[int, Field(ge=0)] = 0
    """Train on a fixed set of this many sums; 0 draws fresh ones at every step."""
    n_validation: Annotated[int, Field(ge=1)] = 2000
    """Held-out sums that training is watched with."""
    n_test: Annotated[int, Field(ge=1)] = 2000
    """Held-out sums that the finished model is tested on."""
    splits_may_overlap: bool = False
    """FAULT of the newer reports: draw each split by itself, so that they share sums."""
    split_seed: int = 0
    """Decides what is held out; apart from --seed, so that runs with different seeds share a test set."""
    start_token: bool = True
    """Begin the decoder's input with a start token. Without it (FAULT of the reports) the first digit is fed, never
    predicted, and generation starts from 0."""
    loss_ignores_zero: bool = False
    """FAULT of the reports: the loss passes over digit 0 as if it were padding."""

    @model_validator(mode="before")
    @classmethod
    def _by_its_old_name(cls, settings: Any) -> Any:
        """Runs of before had this setting the other way round."""
        if isinstance(settings, dict) and isinstance(without := settings.get("no_start_token"), bool):
            others = {name: value for name, value in settings.items() if name != "no_start_token"}
            return {"start_token": not without} | others
        return settings

    @property
    def range(self) -> tuple[int, int]:
        """The smallest and the largest operand."""
        return _range(self.digits, self.low, self.high)

    @field_validator("low", "high")
    @classmethod
    def _fits(cls, operand: int | None, info: ValidationInfo) -> int | None:
        digits = info.data.get("digits", 9)
        if operand is not None and operand >= 10**digits:
            raise ValueError(f"has more than {digits} digits: raise digits, or stay below {10**digits}")
        return operand

    @field_validator("high")
    @classmethod
    def _above_low(cls, high: int | None, info: ValidationInfo) -> int | None:
        if {"digits", "low"} <= info.data.keys():
            low, top = _range(info.data["digits"], info.data["low"], high)
            if top < low:
                raise ValueError(f"is below the smallest operand ({low}): lower low, or raise high")
        return high

    @field_validator("n_test")
    @classmethod
    def _leaves_something_to_train_on(cls, n_test: int, info: ValidationInfo) -> int:
        if {"digits", "low", "high", "n_train", "n_validation"} <= info.data.keys():
            low, high = _range(info.data["digits"], info.data["low"], info.data["high"])
            pairs = (high - low + 1) * (high - low + 2) // 2
            asked = info.data["n_train"] + info.data["n_validation"] + n_test
            if asked > pairs // 2:
                raise ValueError(
                    f"n_train + n_validation + n_test = {asked:,} sums, but {low}..{high} has only {pairs:,} pairs "
                    f"and at most half of them may be set apart: ask for fewer, or widen the range"
                )
        return n_test


def _range(digits: int, low: int | None, high: int | None) -> tuple[int, int]:
    smallest = 10 ** (digits - 1) if digits > 1 else 0
    return smallest if low is None else low, 10**digits - 1 if high is None else high


class Addition:
    """The addition task. An example is a pair of operands; examples are int64 [example, 2]."""

    name: ClassVar[str] = "addition"
    output_type: ClassVar[Literal["sequence", "class"]] = "sequence"
    config_class: ClassVar[type] = AdditionConfig
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    tokens: tuple[str, ...] = (*"0123456789+", "<s>", "<pad>")
    pad_id = PAD

    def __init__(self, config: AdditionConfig | None = None) -> None:
        self.config = config or AdditionConfig()
        self.low, self.high = self.config.range
        self.n_columns = self.config.digits
        self.longest = 2 * self.n_columns + 1  # the source; what is fed is never longer

    # --- examples
    # ---------------------------------------------------------------------------------------------------------

    @cached_property
    def splits(self) -> PairSplits:
        """Which pairs are trained on and which are held out."""
        c = self.config
        return PairSplits(self.low, self.high, c.n_train, c.n_validation, c.n_test, c.splits_may_overlap, c.split_seed)

    def split(self, name: str) -> Examples:
        """The `validation`, `test` or fixed `train` examples."""
        if name not in self.splits.sets:
            raise InputError(f"no split {name!r}", f"there are: {', '.join(self.splits.sets)}")
        return self.splits.sets[name]

    def sample(self, rng: np.random.Generator, n: int) -> Examples:
        """`n` training examples; never a held-out one, nor its swap."""
        return self.splits.sample(rng, n)

    @property
    def domain_size(self) -> int:
        """How many sums there are."""
        return self.splits.n_operands**2

    def iter_domain(self) -> Iterator[Examples]:
        """Every sum there is, those with the same answer together."""
        for total in range(2 * self.low, 2 * self.high + 1):
            first = np.arange(max(self.low, total - self.high), min(self.high, total - self.low) + 1)
            yield np.stack([first, total - first], axis=1)

    def index(self, examples: Examples) -> Tokens:
        """Row by row: `100+100` is 0, `100+101` is 1, ...; of any other pair, an error."""
        if not ((self.low <= examples) & (examples <= self.high)).all():
            raise ValueError(f"operands from {examples.min()} to {examples.max()}, not {self.low} to {self.high}")
        first, second = (examples - self.low).T
        return np.asarray(first * self.splits.n_operands + second)

    # --- tokens
    # -----------------------------------------------------------------------------------------------------------

    def encode(self, examples: Examples) -> Batch:
        """Token ids of these sums."""
        operands = self._in_order(digits_of(examples, self.n_columns))
        answer = self._in_order(digits_of(examples.sum(axis=1), self.n_columns + 1))
        plus = np.full((len(examples), 1), PLUS)
        source = np.concatenate([operands[:, 0], plus, operands[:, 1]], axis=1)
        if not self.config.start_token:
            decoder_input, labels = answer[:, :-1], answer[:, 1:]
        else:
            decoder_input, labels = np.concatenate([np.full_like(plus, START), answer[:, :-1]], axis=1), answer
        if self.config.loss_ignores_zero:
            labels = np.where(labels == 0, IGNORE, labels)
        return Batch(source, decoder_input, labels, answer)

    @cached_property
    def decoding_start(self) -> DecodingStart:
        """How free-running generation begins."""
        if not self.config.start_token:
            return DecodingStart(first=0, given=(0,), n_tokens=self.n_columns)
        return DecodingStart(first=START, given=(), n_tokens=self.n_columns + 1)

    def _in_order(self, least_first: NDArray[np.int64]) -> NDArray[np.int64]:
        return least_first if self.config.least_first else np.ascontiguousarray(least_first[..., ::-1])

    # --- meaning
    # ----------------------------------------------------------------------------------------------------------

    @cached_property
    def source_positions(self) -> tuple[Position, ...]:
        """What each token of the source is."""
        a, b = ([self._position("operand", c, operand) for c in self._columns(self.n_columns)] for operand in (0, 1))
        return (*a, Position("operator", "+"), *b)

    @cached_property
    def answer_positions(self) -> tuple[Position, ...]:
        """What each token of the answer is."""
        return tuple(self._position("sum", c) for c in self._columns(self.n_columns + 1))

    @cached_property
    def decoder_input_positions(self) -> tuple[Position, ...]:
        """What each token fed to the decoder is."""
        start = (Position("start", "<s>"),) if self.config.start_token else ()
        return (*start, *self.answer_positions[:-1])

    def carries(self, examples: Examples) -> Carries:
        """Carry into and out of each column."""
        return carries_of(examples, self.n_columns)

    def facets(self, examples: Examples) -> Mapping[str, tuple[str, ...]]:
        """By number of carries, longest carry chain, and whether the sum has a digit more than the operands."""
        carries, limit = self.carries(examples), 10**self.n_columns
        return {
            "carries": tuple(map(str, carries.count.tolist())),
            "longest chain": tuple(map(str, carries.longest.tolist())),
            "sum": tuple(f"below {limit}" if s < limit else f"from {limit}" for s in examples.sum(axis=1)),
        }

    def attention_targets(self, stack: str, kind: str, examples: Examples) -> AttentionTargets:
        """Operator, aligned column, the column that makes the carry, ...; with and without a carry in."""
        predicted = self.answer_positions[len(self.decoding_start.given) :]
        queries = self.source_positions if stack == "encoder" else predicted
        keys = self.decoder_input_positions if (stack, kind) == ("decoder", "self") else self.source_positions
        return addition_targets(queries, keys, self.carries(examples))

    def contrast(self, rng: np.random.Generator, n: int) -> Contrast:
        """A column that adds to 10 instead of 9, and to 9 instead of 8, with all else alike: what does a carry do?"""
        return carry_contrast(rng, n, self.low, self.high, self.n_columns)

    def _columns(self, n: int) -> list[int]:
        return list(range(n)) if self.config.least_first else list(reversed(range(n)))

    def _position(self, role: str, column: int, operand: int | None = None) -> Position:
        which = "" if operand is None else "ab"[operand] + " "
        return Position(role, which + column_name(column), column, operand)

    # --- text
    # -------------------------------------------------------------------------------------------------------------

    def parse(self, text: str) -> Examples:
        """One sum, such as `374+814`."""
        allowed = f"write two numbers from {self.low} to {self.high} with a plus between them, such as {self._sample}"
        found = re.fullmatch(r"\s*([0-9]+)\s*\+\s*([0-9]+)\s*", text)
        if found is None:
            raise InputError(f"{text!r} is not a sum" if text.strip() else "no sum was given", allowed)
        operands = [digits.lstrip("0") or "0" for digits in found.groups()]
        for digits in operands:
            if len(digits) > self.n_columns or not self.low <= int(digits) <= self.high:
                raise InputError(f"{digits[:20]} in {text.strip()[:40]!r} is outside what this task knows", allowed)
        return np.array([[int(digits) for digits in operands]])

    @property
    def _sample(self) -> str:
        return f"{(2 * self.low + self.high) // 3}+{(self.low + 4 * self.high) // 5}"

    def show(self, example: Examples) -> str:
        """`374+814`."""
        return f"{example[0]}+{example[1]}"

    def answer(self, example: Examples) -> str:
        """`1188`."""
        return str(int(example[0]) + int(example[1]))

    def show_tokens(self, tokens: Tokens) -> str:
        """An answer's tokens as people write numbers: most significant digit first, `1188`."""
        text = [self.tokens[token] for token in tokens]
        return "".join(reversed(text) if self.config.least_first else text)

    def explain(self, example: Examples, predicted: Tokens) -> str:
        """What is wrong with a wrong sum."""
        if (predicted > 9).any():
            return f"said {self.show_tokens(predicted)}, which is not a number"
        return explain_digits(example, self._least_first(predicted))

    def faults(self, example: Examples, predicted: Tokens) -> tuple[str, ...]:
        """The kinds of mistake in a wrong sum, such as `lost the carry from the 10s`."""
        if (predicted > 9).any():
            return ("not a number",)
        wrong = wrong_columns(example, self._least_first(predicted))
        return tuple(note or f"{column_name(column)} off otherwise" for column, note in wrong)

    def _least_first(self, predicted: Tokens) -> Tokens:
        return predicted if self.config.least_first else predicted[::-1]


PART = Addition


# --- what a head could be attending to in a sum -----------------------------------------------------------------------
# What a head could be looking at in a sum.
#
# Of 374+814, in the decoder's cross-attention, while the 10s of the answer are being said:
#
#     source            3 7 4 + 8 1 4
#     aligned column      x       x          both digits that make this digit of the answer
#     carry column          x       x        the next lower column, which makes the carry into this one
#     operator                x
#     first token       x
#
# A digit in the encoder has its aligned column in the other operand alone. In the decoder's self-attention the token
# that was just said stands on the diagonal, so it is called the previous output there.


Numbers = NDArray[np.float64]
"""NaN where there is none: it equals nothing, itself neither."""


def addition_targets(queries: Sequence[Position], keys: Sequence[Position], carries: Carries) -> AttentionTargets:
    """The targets between these queries (in the decoder: what each says) and keys, and where a carry comes in."""
    columns = _numbers([p.column for p in queries])
    written = list(dict.fromkeys(p.column for p in queries if p.column is not None))
    query_column = np.array([-1 if p.column is None else written.index(p.column) for p in queries])
    carry_in = np.pad(carries.out, ((0, 0), (1, 0)))[:, written]
    condition = Condition("carry in", "no carry in", "a carry comes in", carry_in)
    is_source = any(p.role == "operator" for p in keys)
    targets = _in_the_source(queries, keys, columns) if is_source else _in_the_answer(keys)
    return AttentionTargets(targets, tuple(map(column_name, written)), query_column, condition)


def _in_the_source(queries: Sequence[Position], keys: Sequence[Position], columns: Numbers) -> dict[str, Target]:
    key_columns = _numbers([p.column for p in keys])
    operands, key_operands = (_numbers([p.operand for p in positions]) for positions in (queries, keys))
    is_operator = np.array([p.role == "operator" for p in keys])
    return {
        "operator": lambda q, k: is_operator[k],
        "diagonal": lambda q, k: q == k,
        "aligned column": lambda q, k: (columns[q] == key_columns[k]) & (operands[q] != key_operands[k]),
        "carry column": lambda q, k: columns[q] - 1 == key_columns[k],
        "first token": lambda q, k: k == 0,
    }


def _in_the_answer(keys: Sequence[Position]) -> dict[str, Target]:
    is_digit = np.array([p.role == "sum" for p in keys])
    return {
        "previous output": lambda q, k: (q == k) & is_digit[k],
        "first token": lambda q, k: k == 0,
    }


def _numbers(found: Sequence[int | None]) -> Numbers:
    return np.array([np.nan if number is None else number for number in found])
