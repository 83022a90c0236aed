"""Addition of numbers of any length: a decoder-only model reads a sum and writes the digits of the answer behind it.

Models train on operands of at most 10 digits, and are tested on any number of digits. 374+81, in a task whose operands
have up to 4 digits, least significant digit first:

    source   4 7 3 . + 1 8 . .     one place per column; . is padding, which the model does not see
    answer   5 5 4 <end>           the end token fills the rest of the row
    decoder  = 5 5 4               decoder input: an equals sign, then the answer without its last token
    ids      1 2 3 4 0 1 2 3 4     coupled position ids: one id per column
             0 1 2 3               the equals sign has the id before the first digit

Five kinds of sums are drawn and tested separately, because models that are right on one kind may fail on another:

    uniform       two random numbers of the same length
    unequal       two random numbers of different lengths
    no-carry      no column makes a carry
    long-chain    a carry runs through many columns that add to 9
    all-carry     every column of the longer number makes a carry, as in 99999+1
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from headcount.config import config
from headcount.errors import InputError
from headcount.seeds import stream
from headcount.suggestions import suggestion
from headcount.tasks.addition import CARRY as CARRY_EVENT
from headcount.tasks.addition import Addition, AdditionConfig, column_name
from headcount.tasks.base import (
    EMPTY,
    IGNORE,
    AttentionTargets,
    Batch,
    Condition,
    Contrast,
    DecodingStart,
    Examples,
    IdScheme,
    Position,
    Preset,
    Quartets,
    SequenceTask,
    Target,
    TaskWords,
    Tokens,
    past_end,
)

Columns = NDArray[np.int64]
"""Digits [..., column], the least significant first; `EMPTY` above a number's most significant digit."""
Lengths = NDArray[np.int64]
PLUS, EQUALS, END, PAD = 10, 11, 12, 13
MOST_TRAINED = 10
"""Most digits of an operand in training."""
LONGEST = 100_000
"""Most digits of an operand in a sum that people type."""
CHUNK = 1000
"""Number of digits that are converted to a Python integer at once; conversions of long texts are slow."""
FITS = 17
"""Most digits of operands whose sum is computed with 64-bit integers."""


# --- kinds of sums ----------------------------------------------------------------------------------------------------

KINDS = ("uniform", "unequal", "no-carry", "long-chain", "all-carry")
ANY, NINE, CARRY, NONE = range(4)
"""What the digits of a column add to: anything, 9, at least 10, or at most 9."""


def draw_sums(rng: np.random.Generator, kinds: NDArray[np.str_], lengths: Lengths, width: int) -> Examples:
    """Return one sum of each kind, as digits [sum, operand, column]; `lengths` are those of the longer operands.

    >>> draw_sums(np.random.default_rng(0), np.array(["all-carry"]), np.array([3]), 4).tolist()
    [[[9, 9, 9, -1], [1, -1, -1, -1]]]
    """
    shorter = _shorter_lengths(rng, kinds, lengths)
    columns, top = np.arange(width), lengths[:, None] - 1
    wanted = np.full((len(kinds), width), ANY)
    start = (rng.random((len(kinds), 1)) ** 2 * shorter[:, None]).astype(np.int64)
    end = np.where(rng.random((len(kinds), 1)) < 0.5, top, start + (rng.random(start.shape) * (top - start + 1)))
    chain = np.where(columns == start, CARRY, np.where((start < columns) & (columns <= end), NINE, ANY))
    only_nines = np.where(columns == 0, CARRY, np.where(rng.random((len(kinds), 1)) < 0.5, NINE, CARRY))
    patterns = {"no-carry": np.full_like(wanted, NONE), "long-chain": chain, "all-carry": only_nines}
    for kind, pattern in patterns.items():
        wanted = np.where((kinds == kind)[:, None], pattern, wanted)
    digits = _digits_with(rng, wanted, lengths, shorter)
    # The sums 9...9+1 have a share of their own.
    extreme = (kinds == "all-carry") & (shorter == 1) & (rng.random(len(kinds)) < 0.5)
    digits[extreme, 0] = np.where(digits[extreme, 0] == EMPTY, EMPTY, 9)
    digits[extreme, 1, 0] = 1
    swapped = rng.random(len(kinds)) < 0.5
    digits[swapped] = digits[swapped, ::-1]
    return digits


def _shorter_lengths(rng: np.random.Generator, kinds: NDArray[np.str_], lengths: Lengths) -> Lengths:
    """Return the number of digits of each shorter operand."""
    share, any_length = rng.random(len(kinds)), 1 + (rng.random(len(kinds)) * lengths).astype(np.int64)
    less = 1 + (rng.random(len(kinds)) * (lengths - 1)).astype(np.int64)
    shorter = np.where(share < 0.6, lengths, any_length)
    shorter = np.where((kinds == "all-carry") & (share > 0.8), 1, shorter)
    shorter = np.where(kinds == "unequal", np.minimum(less, np.maximum(1, lengths - 1)), shorter)
    return np.where(kinds == "uniform", lengths, shorter)


def _digits_with(rng: np.random.Generator, wanted: Columns, lengths: Lengths, shorter: Lengths) -> Examples:
    """Return digits [sum, operand, column] that add to what is wanted of each column, without leading zeros."""
    columns = np.arange(wanted.shape[1])
    # The most significant digit of a number is not 0, unless it is the only one.
    least_1, least_2 = (((columns == n[:, None] - 1) & (columns > 0)).astype(np.int64) for n in (lengths, shorter))
    most_1 = np.where(np.isin(wanted, (NINE, NONE)), 9 - least_2, 9)
    least_1 = np.where(wanted == CARRY, 1, least_1)
    first = rng.integers(least_1, most_1 + 1)
    least_2 = np.where(wanted == CARRY, 10 - first, np.where(wanted == NINE, 9 - first, least_2))
    most_2 = np.where(np.isin(wanted, (NINE, NONE)), 9 - first, 9)
    second = rng.integers(least_2, np.maximum(least_2, most_2) + 1)
    is_alone = columns >= shorter[:, None]
    first = np.where(is_alone & np.isin(wanted, (NINE, CARRY)), 9, first)
    first = np.where(columns >= lengths[:, None], EMPTY, first)
    return np.stack([first, np.where(is_alone, EMPTY, second)], axis=1)


def kind_shares(text: str) -> dict[str, float]:
    """Return the share of each kind of sum in training, from weights such as `uniform:2,all-carry`.

    >>> kind_shares("uniform:2,all-carry:1,no-carry")
    {'uniform': 0.5, 'all-carry': 0.25, 'no-carry': 0.25}
    """
    weights: dict[str, float] = {}
    for part in text.split(","):
        kind, _, weight = (piece.strip() for piece in part.partition(":"))
        if kind not in KINDS:
            raise ValueError(f"there is no kind of sum {kind!r}; {suggestion(kind, KINDS)}")
        if kind in weights:
            raise ValueError(f"{kind} is named twice: write {kind}:2 to use it twice as often")
        if not re.fullmatch(r"\d{0,4}(\.\d{1,4})?", weight) or float(weight or 1) == 0:
            raise ValueError(f"{weight!r} is not a weight for {kind}: write a number, such as {kind}:2")
        weights[kind] = float(weight or 1)
    total = sum(weights.values())
    return {kind: weight / total for kind, weight in weights.items()}


# --- digits and numbers -----------------------------------------------------------------------------------------------


def lengths_of(digits: Columns) -> Lengths:
    """Return the number of digits of each number in an array of digits [..., column]."""
    return np.asarray((digits != EMPTY).sum(axis=-1))


def text_of(digits: Columns) -> str:
    """Return one number as text, most significant digit first."""
    return "".join(map(str, digits[digits != EMPTY][::-1].tolist()))


def digits_of_text(text: str, width: int) -> Columns:
    """Return the digits of a number that is written most significant digit first."""
    digits = np.full(width, EMPTY)
    digits[: len(text)] = np.frombuffer(text[::-1].encode(), dtype=np.uint8) - ord("0")
    return digits


def add_texts(first: str, second: str) -> str:
    """Return the sum of two numbers written as text, computed with Python's integers.

    >>> add_texts("9" * 2500, "1") == "1" + "0" * 2500
    True
    """
    width = max(len(first), len(second))
    first, second, parts, carry = first.zfill(width), second.zfill(width), [], 0
    for stop in range(width, 0, -CHUNK):
        here = slice(max(0, stop - CHUNK), stop)
        carry, rest = divmod(int(first[here]) + int(second[here]) + carry, 10 ** (stop - here.start))
        parts.append(str(rest).zfill(stop - here.start))
    return (str(carry) + "".join(reversed(parts))).lstrip("0") or "0"


def sums_of(examples: Examples) -> Columns:
    """Return the digits of each sum, in one column more than the operands have."""
    width = examples.shape[2]
    if width <= FITS:
        totals = values_of(examples).sum(axis=1)
        digits = totals[:, None] // 10 ** np.arange(width + 1) % 10
        n_digits = np.maximum(1, (totals[:, None] >= 10 ** np.arange(width + 1)).sum(axis=1))
        return np.where(np.arange(width + 1) < n_digits[:, None], digits, EMPTY)
    rows = [digits_of_text(add_texts(text_of(a), text_of(b)), width + 1) for a, b in examples]
    return np.stack(rows) if rows else np.empty((0, width + 1), dtype=np.int64)


def values_of(examples: Examples) -> NDArray[np.int64]:
    """Return the operands of sums that fit into 64-bit integers, [sum, operand]."""
    return np.asarray(np.maximum(examples, 0) @ 10 ** np.arange(examples.shape[2]))


def digits_of_values(values: NDArray[np.int64], width: int) -> Examples:
    """Return pairs of operands [sum, operand] as digits [sum, operand, column]."""
    powers = 10 ** np.arange(width)
    n_digits = np.maximum(1, (values[..., None] >= powers).sum(axis=-1))
    return np.where(np.arange(width) < n_digits[..., None], values[..., None] // powers % 10, EMPTY)


@dataclass(frozen=True)
class Carries:
    """The carries of some sums: out of each column [sum, column], and the longest run of columns that carry."""

    out: NDArray[np.bool_]
    longest: NDArray[np.int64]

    @classmethod
    def of(cls, examples: Examples) -> Carries:
        """Compute the carries of these sums column by column.

        >>> carries = Carries.of(np.array([[[9, 9], [1, EMPTY]]]))
        >>> carries.out.tolist(), carries.longest.tolist()
        ([[True, True]], [2])
        """
        digit_sums = np.maximum(examples, 0).sum(axis=1)
        out, carry = np.zeros(digit_sums.shape, dtype=bool), np.zeros(len(examples), dtype=bool)
        run, longest = np.zeros((2, len(examples)), dtype=np.int64)
        for column in range(digit_sums.shape[1]):
            out[:, column] = carry = digit_sums[:, column] + carry > 9
            run = np.where(carry, run + 1, 0)
            longest = np.maximum(longest, run)
        return cls(out, longest)

    @property
    def into(self) -> NDArray[np.bool_]:
        """Whether a carry comes into each column, [sum, column], with one column more than the operands have."""
        return np.pad(self.out, ((0, 0), (1, 0)))


def kinds_of(examples: Examples) -> NDArray[np.str_]:
    """Return the kind of each sum, judged by its digits; `uniform` if it has nothing special."""
    carries, lengths = Carries.of(examples), lengths_of(examples)
    longer = lengths.max(axis=1)
    n_carries = carries.out.sum(axis=1)
    conditions = [
        n_carries == longer,
        carries.longest >= np.maximum(3, (longer + 1) // 2),
        n_carries == 0,
        lengths[:, 0] != lengths[:, 1],
    ]
    return np.select(conditions, ["all-carry", "long-chain", "no-carry", "unequal"], "uniform")


# --- position ids -----------------------------------------------------------------------------------------------------


def _column_ids(source: Any, source_places: Any, fed_places: Any, least_first: bool) -> tuple[Any, Any]:
    """Return one id per column: 1 for the 1s, 2 for the 10s, and so on; 0 for the plus sign.

    The equals sign has the id of the column before the first digit of the answer: 0, or one above its first digit.
    """
    n = source_places.shape[1] // 2
    if least_first:
        return (source_places % (n + 1) + 1) % (n + 1), fed_places
    n_written = (source[:, :n] != PAD).sum(1)[:, None]  # both operands are filled to this length
    return n - source_places % (n + 1), (n_written + 2 - fed_places) % (n_written + 3)


def _require_known_columns(settings: AdditionLongConfig) -> None:
    if not settings.least_first and not settings.zero_fill:
        raise ValueError(
            "needs the columns of the answer before it is written: write the least significant digit first, or fill "
            "with zeros"
        )


def coupled(settings: AdditionLongConfig) -> IdScheme:
    """Return position coupling (Cho et al. 2024, "Position coupling", arXiv 2405.20671): one id per column.

    The digits of one significance share an id, in both operands and in the answer.
    """
    _require_known_columns(settings)
    least_first = settings.least_first
    return IdScheme(partial(_column_ids, least_first=least_first), "digits aligned by significance (coupled ids)")


def abacus(settings: AdditionLongConfig) -> IdScheme:
    """Return the ids of Abacus (McLeish et al. 2024, "Transformers can do arithmetic with the right embeddings").

    (arXiv 2405.17399.) Each digit has the number of its place in its own number; all other tokens have the id 0, which
    stays 0 when ids start at a random number.
    """
    if not settings.least_first:
        raise ValueError("counts the digits of each number from the least significant one: write that one first")
    return IdScheme(
        partial(_column_ids, least_first=True), "digits aligned by significance (abacus)", zero_is_fixed=True
    )


# --- the task ---------------------------------------------------------------------------------------------------------


@config
class AdditionLongConfig:
    """Settings of the sums: the number of digits, how they are written, the kinds of sums, the sizes of the splits."""

    digits: Annotated[int, Field(ge=1, le=MOST_TRAINED)] = MOST_TRAINED
    """Most digits of an operand in training; every number of digits from 1 on is as frequent."""
    least_first: bool = True
    """Write numbers with their least significant digit first."""
    zero_fill: bool = False
    """Fill the shorter operand with zeros, and the answer to one digit more than the operands."""
    kinds: str = "uniform:2,unequal:2,no-carry:1,long-chain:3,all-carry:2"
    """Kinds of sums in training with their weights: uniform, unequal, no-carry, long-chain, all-carry."""
    n_validation: Annotated[int, Field(ge=1)] = 1000
    """Number of held-out sums for validation during training."""
    n_test: Annotated[int, Field(ge=1)] = 2000
    """Number of held-out sums for the test of the trained model."""
    split_seed: int = 0
    """Seed of the held-out sets; separate from --seed, so that runs with different seeds share a test set."""

    @field_validator("kinds")
    @classmethod
    def _are_kinds(cls, text: str) -> str:
        kind_shares(text)
        return text


WORDS = TaskWords(
    example="sum",
    examples="sums",
    place="digit",
    length="digits",
    question="The model reads a sum and writes the answer digit by digit. It was trained on operands of at most 10 "
    "digits: is it right on longer ones, and which heads matter?",
    targets={
        "operator": "the plus sign",
        "aligned column": "the digits that the current digit is the sum of",
        "carry column": "the next lower column, which makes the carry",
        "previous output": "the token that was written just before",
    },
    groups={"digit": "at the {}", "kind of sum": "on “{}” sums", "operand digits": "with operands of up to {} digits"},
    model="the adder",
    sign=" = ",
    mark="kind of sum",
    event=CARRY_EVENT,
)
WINDOWED: dict[str, Any] = {"encoding": "relative", "clip_distance": 1, "window": 1, "position_ids": "coupled"}
# One layer of 52,000 parameters.
DEFAULTS: dict[str, dict[str, Any]] = {
    "model": {**WINDOWED, "d_model": 64, "n_heads": 4, "d_ff": 256, "n_layers": 1},
    "training": {"steps": 1000, "batch_size": 128, "learning_rate": 1e-2},
}
PRESETS = {
    "small": Preset(
        "the default model (coupled ids, a window of ±1 on them) with fewer than 10,000 parameters",
        {"model": {**WINDOWED, "d_model": 24, "n_heads": 4, "d_ff": 128}, "training": {"steps": 3000}},
    ),
    "coupling": Preset(
        "position coupling as published: coupled ids with a random start in a learned table. GIVES alignment",
        {
            "model": {
                **{"encoding": "learned", "n_positions": 212, "random_start": 200, "position_ids": "coupled"},
                **{"window": None, "d_model": 128, "d_ff": 512, "n_layers": 2},
            }
        },
    ),
    "abacus": Preset(
        "abacus ids with a random start in a learned table. GIVES alignment",
        {
            "model": {
                **{"encoding": "learned", "n_positions": 212, "random_start": 200, "position_ids": "abacus"},
                **{"window": None, "d_model": 128, "d_ff": 512, "n_layers": 2},
            }
        },
    ),
    "generic": Preset(
        "no structure of the task: FIRE over the order of the tokens, two layers",
        {
            "model": {
                **{"encoding": "fire", "position_ids": "order", "window": None},
                **{"d_model": 128, "d_ff": 512, "n_layers": 2},
            }
        },
    ),
}
EVENT_DIGITS = 4
"""Digits of the operands in sums that are compared to follow the carry."""
SHOWN = 5
"""Largest number of wrong digits that an explanation lists."""


class AdditionLong(SequenceTask):
    """The task `addition-long`; examples are digits, an int64 array [example, 2, column] with `EMPTY` above a number.

    Column 0 is the least significant digit. Arrays may have more columns than training uses.
    """

    name: ClassVar[str] = "addition-long"
    output_type: ClassVar[Literal["sequence", "class"]] = "sequence"
    model_kind: ClassVar[Literal["encoder-decoder", "decoder-only", "classifier"]] = "decoder-only"
    words: ClassVar[TaskWords] = WORDS
    config_class: ClassVar[type] = AdditionLongConfig
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = DEFAULTS
    presets: ClassVar[Mapping[str, Preset]] = PRESETS
    id_schemes: ClassVar[Mapping[str, Any]] = {"coupled": coupled, "abacus": abacus}
    tokens: tuple[str, ...] = (*"0123456789+=", "<end>", "<pad>")
    pad_id = PAD
    end_id = END
    kinds: tuple[str, ...] = KINDS
    length_facet = "carry chain"

    def __init__(self, config: AdditionLongConfig | None = None) -> None:
        self.config = config or AdditionLongConfig()
        self.domain_size = 10 ** (2 * self.config.digits)
        self.shares = kind_shares(self.config.kinds)
        self.trained_lengths = 1, self.config.digits
        self._lay_out(self.config.digits)

    def _lay_out(self, n: int) -> None:
        """Set the positions of sums with operands of up to `n` digits."""
        self.n_columns, self.longest = n, 2 * n + 1
        self.decoding_start = DecodingStart(EQUALS, (), n_tokens=n + 2)
        columns = range(n) if self.config.least_first else range(n - 1, -1, -1)
        a, b = ([Position("operand", f"{'ab'[i]} {column_name(c)}", c, i) for c in columns] for i in (0, 1))
        self.source_positions = (*a, Position("operator", "+"), *b)
        places = range(n + 1)
        if self.config.least_first:
            digits = [Position("sum", column_name(c), c) for c in places]
        else:  # which column it is depends on the length of the answer
            digits = [Position("sum", f"digit {place + 1}") for place in places]
        self.answer_positions = (*digits, Position("sum", "end"))
        self.decoder_input_positions = (Position("start", "="), *self.answer_positions[:-1])

    def sized_for(self, examples: Examples) -> Self:
        """Return this task with positions for sums of as many columns as these examples have."""
        if examples.shape[2] == self.n_columns:
            return self
        sized = copy.copy(self)
        sized._lay_out(examples.shape[2])
        return sized

    @classmethod
    def describe_data(cls, settings: Mapping[str, Any]) -> str:
        """Return a phrase that completes "The model was trained ...".

        >>> AdditionLong.describe_data({"digits": 10})
        'to write the sums of numbers of 1 to 10 digits, least significant digit first'
        """
        if "digits" not in settings:
            return ""
        order = "least" if settings.get("least_first", True) else "most"
        filled = ", filled with zeros" if settings.get("zero_fill") else ""
        return (
            f"to write the sums of numbers of 1 to {settings['digits']} digits, {order} significant digit first{filled}"
        )

    # --- examples -----------------------------------------------------------------------------------------------------

    @cached_property
    def splits(self) -> dict[str, Examples]:
        """The sums of the splits `validation` and `test`; no two of them are equal or equal when swapped.

        At most a quarter of all sums may be held out, so that training has sums of every length.
        """
        c = self.config
        sums, rng = np.empty((0, 2, c.digits), dtype=np.int64), stream(c.split_seed, "addition-long splits")
        n, n_draws = c.n_validation + c.n_test, 0
        while len(sums) < n:
            drawn = self._draw(rng, 2 * n + 64)
            sums = np.concatenate([sums, drawn[_may_be_held_out(_keys(drawn))]])
            sums = sums[np.sort(np.unique(_keys(sums), return_index=True)[1])]
            n_draws += 1
            if n_draws > 100:
                raise InputError(
                    f"sums of at most {c.digits} digits are too few for {n:,} held-out ones",
                    "lower n_validation and n_test, or raise digits",
                )
        return {"validation": sums[: c.n_validation], "test": sums[c.n_validation : n]}

    @cached_property
    def _held_keys(self) -> NDArray[np.uint64]:
        return np.sort(_keys(np.concatenate(list(self.splits.values()))))

    def sample(self, rng: np.random.Generator, n: int) -> Examples:
        """Return `n` training sums; neither a+b nor b+a is in the validation or test set."""
        sums = self._draw(rng, n)
        while (held := self.is_held_out(sums)).any():
            sums[held] = self._draw(rng, int(held.sum()))
        assert lengths_of(sums).max(initial=1) <= MOST_TRAINED, "training never has longer operands"
        return sums

    def is_held_out(self, sums: Examples) -> NDArray[np.bool_]:
        """Return a mask of the sums a+b for which a+b or b+a is in the validation or test set."""
        keys, held = _keys(sums), self._held_keys
        return np.asarray(held[np.minimum(np.searchsorted(held, keys), len(held) - 1)] == keys)

    def _draw(self, rng: np.random.Generator, n: int) -> Examples:
        kinds = rng.choice(list(self.shares), size=n, p=list(self.shares.values()))
        return draw_sums(rng, kinds, rng.integers(1, self.config.digits + 1, size=n), self.config.digits)

    def sample_of_length(self, rng: np.random.Generator, length: int, kind: str, n: int) -> Examples:
        """Return `n` sums of one kind, such as `long-chain`, whose longer operand has `length` digits."""
        if kind not in KINDS:
            raise InputError(f"there is no kind of sum {kind!r}", suggestion(kind, KINDS))
        return draw_sums(rng, np.full(n, kind), np.full(n, length), max(length, self.config.digits))

    def iter_domain(self) -> Iterator[Examples]:
        """Yield all sums of training lengths, in blocks of sums with the same answer."""
        highest = 10**self.config.digits - 1
        for total in range(2 * highest + 1):
            first = np.arange(max(0, total - highest), min(highest, total) + 1)
            yield digits_of_values(np.stack([first, total - first], axis=1), self.config.digits)

    def index(self, examples: Examples) -> Tokens:
        """Return a unique number for each sum of training lengths: a 10^digits + b, as Python integers if large."""
        if (lengths_of(examples) > self.config.digits).any() or ((examples < 0) & (examples != EMPTY)).any():
            raise ValueError(f"operands must have at most {self.config.digits} digits")
        fits = 2 * self.config.digits <= FITS
        first, second = values_of(examples).astype(np.int64 if fits else object).T
        return np.asarray(first * 10**self.config.digits + second)

    def hard_examples(self, rng: np.random.Generator, n: int) -> Examples:
        """Return up to `n` sums on which models often err: extreme operands, long chains of carries, all or none."""
        width = self.config.digits
        numbers = sorted({max(0, 10**column + step) for column in range(width + 1) for step in (-1, 0, 1)})
        in_range = np.array([number for number in numbers if number < 10**width])
        extreme = digits_of_values(np.stack(np.meshgrid(in_range, in_range), axis=2).reshape(-1, 2), width)
        kinds = rng.choice(["long-chain", "all-carry", "no-carry", "unequal"], size=4 * n)
        drawn = draw_sums(rng, kinds, rng.integers(1, width + 1, size=4 * n), width)
        sums = np.concatenate([rng.permutation(extreme)[: n // 2], drawn])
        _, first = np.unique(sums, axis=0, return_index=True)
        return sums[np.sort(first)[:n]]

    def mutate(self, rng: np.random.Generator, examples: Examples) -> Examples:
        """Return each sum with one digit of one operand changed; a first digit does not become 0."""
        mutated, rows, which = examples.copy(), np.arange(len(examples)), rng.integers(2, size=len(examples))
        lengths = lengths_of(examples)[rows, which]
        column = (rng.random(len(rows)) * lengths).astype(np.int64)
        least = ((column == lengths - 1) & (lengths > 1)).astype(np.int64)
        old, n_values = examples[rows, which, column], 10 - least
        mutated[rows, which, column] = least + (old - least + 1 + rng.integers(n_values - 1)) % n_values
        return mutated

    # --- tokens -------------------------------------------------------------------------------------------------------

    def encode(self, examples: Examples) -> Batch:
        """Return the token ids of these sums: the question, the decoder's input, the labels and the answer."""
        width, columns = examples.shape[2], np.arange(examples.shape[2] + 2)
        answer = np.pad(sums_of(examples), ((0, 0), (0, 1)), constant_values=EMPTY)
        if self.config.zero_fill:
            longer = lengths_of(examples).max(axis=1)
            is_filled = columns[:width] < longer[:, None, None]
            examples = np.where((examples == EMPTY) & is_filled, 0, examples)
            answer = np.where((answer == EMPTY) & (columns <= longer[:, None]), 0, answer)
        operands = np.where(examples == EMPTY, PAD, examples)
        if not self.config.least_first:
            operands = operands[:, :, ::-1]
            answer = np.take_along_axis(answer, (lengths_of(answer)[:, None] - 1 - columns) % (width + 2), axis=1)
        answer = np.where(answer == EMPTY, END, answer)
        plus = np.full((len(examples), 1), PLUS)
        source = np.concatenate([operands[:, 0], plus, operands[:, 1]], axis=1)
        decoder_input = np.concatenate([np.full_like(plus, EQUALS), answer[:, :-1]], axis=1)
        return Batch(source, decoder_input, np.where(past_end(answer, END), IGNORE, answer), answer)

    def _columns_written(self, tokens: Tokens) -> Columns:
        """Return the digits of one written answer without its end, the least significant first."""
        digits = tokens[~past_end(tokens[None], END)[0] & (tokens != END)]
        return digits if self.config.least_first else digits[::-1]

    # --- meaning ------------------------------------------------------------------------------------------------------

    def facets(self, examples: Examples) -> Mapping[str, tuple[str, ...]]:
        """Return the group of each sum for four ways of grouping: operand digits, kind, carries and longest chain."""
        carries = Carries.of(examples)
        return {
            "operand digits": tuple(map(str, lengths_of(examples).max(axis=1).tolist())),
            "kind of sum": tuple(kinds_of(examples).tolist()),
            "carries": tuple(map(str, carries.out.sum(axis=1).tolist())),
            "carry chain": tuple(map(str, carries.longest.tolist())),
        }

    def attention_targets(self, stack: str, kind: str, examples: Examples) -> AttentionTargets:
        """Return the tokens that heads may attend to (targets), and which sums have a carry.

        A query in the answer is about the digit that is predicted there. When the 10s of 374+81 are predicted:

            tokens           4 7 3 + 1 8 = 5
            aligned column     x       x
            carry column     x       x     x      the next lower column, with the digit written there
            previous output                x

        A query in the question is about the column of its own digit.
        """
        task = self.sized_for(examples)
        fed, answers = task.decoder_input_positions, task.answer_positions
        positions, n_source = (*task.source_positions, *fed), len(task.source_positions)
        if self.config.least_first:
            own = np.array([[-1 if p.column is None else p.column for p in positions]])
            predicted = np.array([[-1 if p.column is None else p.column for p in answers]])
        else:
            n_written = lengths_of(np.where(self.encode(examples).answer == END, EMPTY, 0))[:, None]
            predicted = np.maximum(n_written - 1 - np.arange(len(answers)), -1)
            source = np.array([[-1 if p.column is None else p.column for p in task.source_positions]])
            own = np.concatenate([source.repeat(len(examples), axis=0), np.full_like(n_written, -1)], axis=1)
            own = np.concatenate([own, predicted[:, :-1]], axis=1)
        about = np.concatenate([own[:, :n_source], predicted], axis=1)
        operand = np.array([-1 if p.operand is None else p.operand for p in positions])
        is_operator = np.array([p.role == "operator" for p in positions])
        is_written = np.array([i > n_source for i in range(len(positions))])
        targets: dict[str, Target] = {
            "operator": lambda q, k: is_operator[k],
            "aligned column": lambda q, k: (
                (_at(about, q) == _at(own, k)) & (_at(own, k) >= 0) & (operand[k] >= 0) & (operand[q] != operand[k])
            ),
            "carry column": lambda q, k: (_at(about, q) - 1 == _at(own, k)) & (_at(own, k) >= 0) & (k <= q),
            "previous output": lambda q, k: (q == k) & is_written[k],
            "first token": lambda q, k: k == 0,
        }
        into = np.pad(Carries.of(examples).into, ((0, 0), (0, 1)))
        columns = np.broadcast_to(np.maximum(predicted, 0), (len(into), len(answers)))
        by_place = np.take_along_axis(into, columns, axis=1)
        names = tuple(p.label for p in answers)
        query_column = np.concatenate([np.full(n_source, -1), np.arange(len(answers))])
        if self.config.least_first:
            query_column[:n_source] = own[0, :n_source]
        condition = Condition(*CARRY_EVENT.conditions, "a carry comes in", by_place)
        return AttentionTargets(targets, names, query_column, condition)

    @cached_property
    def _shorter(self) -> Addition:
        """Addition with few digits, which chooses the sums that are compared to follow the carry."""
        digits = min(self.config.digits, EVENT_DIGITS)
        least_first = self.config.least_first
        return Addition(AdditionConfig(digits=digits, least_first=least_first, n_validation=1, n_test=1))

    def contrast(self, rng: np.random.Generator, n: int) -> Contrast:
        """Return up to `n` triples of sums per column, which separate the effect of a carry from that of a digit.

        They are those of the task `addition` (`Addition.contrast`), for the lowest columns.
        """
        contrast = self._shorter.contrast(rng, n)
        before, between, after = (digits_of_values(step, self.config.digits) for step in contrast.steps)
        return Contrast(contrast.name, contrast.words, (before, between, after), contrast.columns)

    def quartets(self, rng: np.random.Generator, n: int) -> list[Quartets]:
        """Return up to `n` sets of four sums for each pair of low columns in which a carry from one reaches the other.

        They are those of the task `addition` (`Addition.quartets`). The list is empty if numbers begin with their most
        significant digit and are not filled with zeros, because a column then has no fixed place in the answer.
        """
        if not self.config.least_first and not self.config.zero_fill:
            return []
        return [
            Quartets(
                four.source,
                four.read,
                four.chain,
                tuple(digits_of_values(part, self.config.digits) for part in four.examples),  # type: ignore[arg-type]
                four.place,
            )
            for four in self._shorter.quartets(rng, n)
        ]

    def event_tokens(self, examples: Examples, place: int) -> Tokens:
        """Return the token at a position of the answer without and with a carry into it, [example, 2]."""
        column = self._column_at(examples, place)[:, None]
        digit_sums = np.pad(np.maximum(examples, 0).sum(axis=1), ((0, 0), (0, 2)))
        digit_sum = np.take_along_axis(digit_sums, column, axis=1)
        is_above = (column >= lengths_of(examples).max(axis=1)[:, None]) & ~np.array(self.config.zero_fill)
        return np.concatenate([np.where(is_above, END, digit_sum % 10), (digit_sum + 1) % 10], axis=1)

    def has_event(self, examples: Examples, place: int) -> NDArray[np.bool_]:
        """Return a mask of the sums with a carry into the position `place` of the answer."""
        into = np.pad(Carries.of(examples).into, ((0, 0), (0, 1)))
        return np.take_along_axis(into, self._column_at(examples, place)[:, None], axis=1)[:, 0]

    def _column_at(self, examples: Examples, place: int) -> NDArray[np.int64]:
        if self.config.least_first:
            return np.full(len(examples), place)
        return np.maximum(0, lengths_of(np.where(self.encode(examples).answer == END, EMPTY, 0)) - 1 - place)

    def repeated_tokens(self) -> Examples:
        """Return sums in which one digit is repeated at all positions, such as 5555+5555.

        >>> text_of(AdditionLong().repeated_tokens()[4, 0])
        '5555555555'
        """
        return np.arange(1, 10)[:, None, None] + np.zeros((1, 2, self.config.digits), dtype=np.int64)

    # --- text ---------------------------------------------------------------------------------------------------------

    def parse(self, text: str) -> Examples:
        """Return the sum in a text such as `374+81`, as an array of one example; raise an error for other texts."""
        allowed = "write two numbers with a plus between them, such as 374+81; they may have thousands of digits"
        match = re.fullmatch(r"\s*([0-9]+)\s*\+\s*([0-9]+)\s*", text)
        if match is None:
            what = f"{text.strip()[:40]!r} is not a sum" if text.strip() else "no sum was given"
            raise InputError(what, allowed)
        operands = [digits.lstrip("0") or "0" for digits in match.groups()]
        if (most := max(map(len, operands))) > LONGEST:
            raise InputError(f"an operand has {most:,} digits", f"at most {LONGEST:,} can be read, such as 374+81")
        width = max(self.config.digits, most)
        return np.stack([digits_of_text(digits, width) for digits in operands])[None]

    def show(self, example: Examples) -> str:
        """Return a sum as text, such as `374+81`."""
        return f"{text_of(example[0])}+{text_of(example[1])}"

    def answer(self, example: Examples) -> str:
        """Return the sum of the operands as text, such as `455`."""
        return add_texts(text_of(example[0]), text_of(example[1]))

    def show_tokens(self, tokens: Tokens) -> str:
        """Return the tokens of an answer as a number, most significant digit first, such as `455`."""
        text = [self.tokens[token] for token in self._columns_written(tokens)]
        return "".join(reversed(text))

    def read_answer(self, text: str) -> Tokens | None:
        """Return the tokens of an answer such as `455`, or None if the text is not one.

        >>> AdditionLong(AdditionLongConfig(digits=3)).read_answer("455").tolist()
        [5, 5, 4, 12, 12]
        """
        if re.fullmatch("[0-9]+", text) is None or len(text) > self.n_columns + 1:
            return None
        if not self.config.zero_fill and text != (text.lstrip("0") or "0"):
            return None
        digits = digits_of_text(text, len(text))
        digits = digits if self.config.least_first else digits[::-1]
        return np.pad(digits, (0, self.n_columns + 2 - len(digits)), constant_values=END)

    def explain(self, example: Examples, predicted: Tokens) -> str:
        """Return a description of the wrong digits of an answer, and of the carries that it lost or made up."""
        if (self._columns_written(predicted) > 9).any():
            return f"{self.show_tokens(predicted)} is not a number"
        wrong = [f"{what}{f' ({note})' if note else ''}" for what, note in self._wrong(example, predicted)]
        more = [f"and {len(wrong) - SHOWN} more"] if len(wrong) > SHOWN else []
        return "; ".join([*wrong[:SHOWN], *more])

    def faults(self, example: Examples, predicted: Tokens) -> tuple[str, ...]:
        """Return the kinds of mistakes in a wrong answer, such as `lost the carry from the 10s`."""
        if (self._columns_written(predicted) > 9).any():
            return ("not a number",)
        return tuple(
            note or f"{what.partition(':')[0]} off otherwise" for what, note in self._wrong(example, predicted)
        )

    def _wrong(self, example: Examples, predicted: Tokens) -> list[tuple[str, str]]:
        """Return (description, note on the carry) for each wrong digit of an answer, the least significant first.

        >>> task = AdditionLong(AdditionLongConfig(digits=3))
        >>> task._wrong(task.parse("374+816")[0], np.array([0, 8, 1, 1, 12]))
        [('10s: 8, should be 9', 'lost the carry from the 1s')]
        >>> task._wrong(task.parse("999+1")[0], np.array([0, 0, 0, 12, 12]))
        [('length: 3 digits, should be 4', 'lost the carry from the 100s')]
        """
        right = self._columns_written(self.encode(example[None]).answer[0])
        written, into, wrong = self._columns_written(predicted), Carries.of(example[None]).into[0], []
        for column in range(min(len(written), len(right))):
            note, off_by = "", (written[column] - right[column]) % 10
            if into[column] and off_by == 9:
                note = f"lost the carry from the {column_name(column - 1)}"
            elif column and not into[column] and off_by == 1:
                note = f"made up a carry from the {column_name(column - 1)}"
            if off_by:
                wrong.append((f"{column_name(column)}: {written[column]}, should be {right[column]}", note))
        if len(written) != len(right):
            note = ""
            if len(written) == len(right) - 1 and into[len(written)]:
                note = f"lost the carry from the {column_name(len(written) - 1)}"
            elif len(written) == len(right) + 1 and written[-1] == 1:
                note = f"made up a carry from the {column_name(len(right) - 1)}"
            wrong.append((f"length: {len(written)} digits, should be {len(right)}", note))
        elif not wrong and not np.array_equal(predicted, self.encode(example[None]).answer[0]):
            wrong.append(("length: the answer does not end", ""))
        return wrong


def _at(columns: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the columns at some places, [example, *places], from an array [#example, place]."""
    return columns[:, places] if len(columns) > 1 else columns[0, places]


def _keys(sums: Examples) -> NDArray[np.uint64]:
    """Return a 64-bit key for each sum; a+b and b+a have the same key. Different sums hardly ever share one."""
    low, high = np.sort(values_of(sums), axis=1).astype(np.uint64).T
    keys = low * np.uint64(0x9E3779B97F4A7C15) + high * np.uint64(0xC2B2AE3D27D4EB4F)
    keys ^= keys >> np.uint64(29)
    return np.asarray(keys * np.uint64(0xBF58476D1CE4E5B9))


def _may_be_held_out(keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return a mask of a quarter of all sums, from which the held-out sets are drawn."""
    return np.asarray(keys >> np.uint64(62) == 0)


PART = AdditionLong
