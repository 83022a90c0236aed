"""Reversal: a list of two-digit numbers in, the same numbers in reverse order out.

A task such as another package would add: this file, and an entry point (`registered`). Its tokens have two characters
each, and its answers are written with spaces:

    source   12 57 31       question  12 57 31
    answer   31 57 12       answer    31 57 12
    fed      <s> 31 57      the answer behind a start token, without its last number
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pytest
from pydantic import Field

from headcount import registry
from headcount.config import config
from headcount.errors import InputError
from headcount.seeds import stream
from headcount.tasks.base import (
    AttentionTargets,
    Batch,
    Condition,
    DecodingStart,
    Examples,
    Position,
    SequenceTask,
    Target,
    Tokens,
)


@config
class ReversalConfig:
    """The data."""

    n_numbers: Annotated[int, Field(ge=2, le=8)] = 4
    """Numbers in a list."""
    low: Annotated[int, Field(ge=0, le=90)] = 10
    """Smallest number of a list."""
    high: Annotated[int, Field(ge=5, le=99)] = 99
    """Largest number of a list."""
    n_validation: Annotated[int, Field(ge=1)] = 1000
    """Held-out lists that training is followed with."""
    n_test: Annotated[int, Field(ge=1)] = 2000
    """Held-out lists that the finished model is tested on."""


class Reversal(SequenceTask):
    """The reversal task. An example is a list of numbers; examples are int64 [example, number]."""

    name: ClassVar[str] = "reversal"
    output_type: ClassVar[Literal["sequence", "class"]] = "sequence"
    config_class: ClassVar[type] = ReversalConfig
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def __init__(self, config: ReversalConfig | None = None) -> None:
        self.config = config or ReversalConfig()
        self.longest = n = self.config.n_numbers
        self.low, self.high = self.config.low, self.config.high
        self.n_values = self.high - self.low + 1
        self.tokens = (*map(str, range(self.low, self.high + 1)), "<s>", "<pad>")
        self.start_id, self.pad_id = self.n_values, self.n_values + 1
        self.domain_size = self.n_values**n
        self.decoding_start = DecodingStart(self.start_id, (), n_tokens=n)
        self.source_positions = tuple(Position("number", f"question {i + 1}") for i in range(n))
        self.answer_positions = tuple(Position("number", f"answer {i + 1}") for i in range(n))
        self.decoder_input_positions = (Position("start", "<s>"), *self.answer_positions[:-1])

    @cached_property
    def splits(self) -> Mapping[str, Examples]:
        """Lists that are drawn once, each in one split alone; training draws its own."""
        c = self.config
        drawn = self._uniform(stream(0, "reversal splits"), 4 * (c.n_validation + c.n_test) + 64)
        _, first = np.unique(self.index(drawn), return_index=True)
        distinct = drawn[np.sort(first)]
        return {"validation": distinct[: c.n_validation], "test": distinct[c.n_validation :][: c.n_test]}

    def sample(self, rng: np.random.Generator, n: int) -> Examples:
        """Draw `n` lists, none of them held out."""
        drawn = self._uniform(rng, n)
        held_out = self.index(np.concatenate(list(self.splits.values())))
        while (is_held_out := np.isin(self.index(drawn), held_out)).any():
            drawn[is_held_out] = self._uniform(rng, int(is_held_out.sum()))
        return drawn

    def _uniform(self, rng: np.random.Generator, n: int) -> Examples:
        return rng.integers(self.low, self.high + 1, size=(n, self.longest))

    def hard_examples(self, rng: np.random.Generator, n: int) -> Examples:
        """Return lists of one number, with one other number in half of them."""
        drawn = np.repeat(rng.integers(self.low, self.high + 1, size=(n, 1)), self.longest, axis=1)
        drawn[::2] = self.mutate(rng, drawn[::2])
        return drawn

    def mutate(self, rng: np.random.Generator, examples: Examples) -> Examples:
        """Change one number of each list."""
        rows, place = np.arange(len(examples)), rng.integers(self.longest, size=len(examples))
        mutated, step = examples.copy(), rng.integers(1, self.n_values, size=len(rows))
        mutated[rows, place] = self.low + (examples[rows, place] - self.low + step) % self.n_values
        return mutated

    def iter_domain(self) -> Iterator[Examples]:
        """Every list; no two share an answer."""
        for numbers in product(range(self.low, self.high + 1), repeat=self.longest):
            yield np.array([numbers])

    def index(self, examples: Examples) -> Tokens:
        """The list, read as a number whose figures are the list's numbers."""
        if not ((examples >= self.low) & (examples <= self.high)).all():
            raise ValueError(f"numbers from {examples.min()} to {examples.max()}")
        return np.asarray((examples - self.low) @ self.n_values ** np.arange(self.longest)[::-1])

    def encode(self, examples: Examples) -> Batch:
        """Numbers are their own tokens."""
        source = np.asarray(examples - self.low, dtype=np.int64)
        answer = np.ascontiguousarray(source[:, ::-1])
        start = np.full((len(examples), 1), self.start_id)
        return Batch(source, np.concatenate([start, answer[:, :-1]], axis=1), answer, answer)

    def facets(self, examples: Examples) -> Mapping[str, tuple[str, ...]]:
        """By whether a number is repeated."""
        repeats = [len(set(row)) < len(row) for row in examples.tolist()]
        return {"numbers": tuple("one is repeated" if each else "all differ" for each in repeats)}

    def attention_targets(self, stack: str, kind: str, examples: Examples) -> AttentionTargets:
        """The number that is copied, and the first token; with large and small numbers."""
        n, places = self.longest, np.arange(self.longest)
        targets: dict[str, Target] = {"diagonal": lambda q, k: q == k, "first token": lambda q, k: k == 0}
        if kind == "cross":
            targets["mirrored number"] = lambda q, k: q + k == n - 1
        numbers = examples if stack == "encoder" else examples[:, ::-1]
        condition = Condition("large number", "small number", "the number is large", numbers > numbers.mean())
        names = tuple(p.label for p in (self.source_positions if stack == "encoder" else self.answer_positions))
        return AttentionTargets(targets, names, places, condition)

    def parse(self, text: str) -> Examples:
        """One list, such as `12 57 31`."""
        words = text.split()
        example = self.show(self.split("test")[0])
        allowed = f"write {self.longest} numbers from {self.low} to {self.high}, such as {example}"
        is_number = [word.isascii() and word.isdigit() and self.low <= int(word) <= self.high for word in words]
        if len(words) != self.longest or not all(is_number):
            raise InputError(f"{text!r} is not a list of this task", allowed)
        return np.array([[int(word) for word in words]])

    def show(self, example: Examples) -> str:
        """`12 57 31`."""
        return " ".join(map(str, example.tolist()))

    def answer(self, example: Examples) -> str:
        """`31 57 12`."""
        return self.show(example[::-1])

    def show_tokens(self, tokens: Tokens) -> str:
        """Numbers with a space between them."""
        return " ".join(self.tokens[token] for token in tokens.tolist())

    def read_answer(self, text: str) -> Tokens | None:
        """As many numbers as a list has, with one space between two of them."""
        words, known = text.split(" "), self.tokens[: self.n_values]
        if len(words) != self.longest or not set(words) <= set(known):
            return None
        return np.array([known.index(word) for word in words])

    def explain(self, example: Examples, predicted: Tokens) -> str:
        """Name the wrong places."""
        return "; ".join(self.faults(example, predicted))

    def faults(self, example: Examples, predicted: Tokens) -> tuple[str, ...]:
        """Each wrong place is a fault of its own."""
        wrong = np.flatnonzero(predicted != self.encode(example[None]).answer[0])
        return tuple(f"{self.answer_positions[i].label} is wrong" for i in wrong)


PART = Reversal


@contextmanager
def installed(folder: Path) -> Iterator[None]:
    """Install the task by an entry point, as another package does; afterwards it is gone."""
    info = folder / "reversal-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: reversal\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[headcount.tasks]\nreversal = reversal:Reversal\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        registry._loaders.cache_clear()
        yield
    registry._loaders.cache_clear()


@pytest.fixture(scope="module")
def registered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Make the task known to the tests of a module."""
    with installed(tmp_path_factory.mktemp("reversal")):
        yield
