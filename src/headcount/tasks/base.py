"""What every sequence-to-sequence task offers, and the batch it makes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

Examples = NDArray[Any]
"""Examples of a task; the first axis counts them, the rest is the task's own affair."""
Tokens = NDArray[np.int64]

IGNORE = -100
"""A label that the loss and the teacher-forced score pass over."""


@dataclass(frozen=True)
class Position:
    """What one token position means.

    `role` is operand, operator, start or sum; `column` counts digits from the least significant (0), so that a
    column of an operand and the same column of the sum have the same number.
    """

    role: str
    label: str
    column: int | None = None
    operand: int | None = None


@dataclass(frozen=True)
class Batch:
    """Token ids of some examples: [example, position] each."""

    source: Tokens
    """What the encoder reads."""
    fed: Tokens
    """What the decoder is fed under teacher forcing."""
    labels: Tokens
    """What it should say after each fed token; `IGNORE` where nothing is asked."""
    answer: Tokens
    """The whole right answer."""

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, rows: slice) -> Batch:
        return Batch(self.source[rows], self.fed[rows], self.labels[rows], self.answer[rows])


@dataclass(frozen=True)
class Generation:
    """How free-running generation begins: fed `first`; of the answer, `given` tokens are taken as said already.

    A sound task feeds its start token and is given nothing. The missing-start-token fault feeds a digit that counts
    as the answer's first.
    """

    first: int
    given: tuple[int, ...]
    n_tokens: int


class Task(Protocol):
    """A task of known answers."""

    name: ClassVar[str]
    config: Any
    tokens: tuple[str, ...]
    pad_id: int
    generation: Generation
    source_positions: tuple[Position, ...]
    fed_positions: tuple[Position, ...]
    answer_positions: tuple[Position, ...]
    domain_size: int

    def split(self, name: str) -> Examples:
        """The `train` (if it is a fixed set), `validation` or `test` examples."""

    def draw(self, rng: np.random.Generator, n: int) -> Examples:
        """`n` training examples; never a held-out one."""

    def encode(self, examples: Examples) -> Batch:
        """Token ids of these examples."""

    def walk(self) -> Iterator[Examples]:
        """Every example there is, in blocks that share one answer."""

    def facets(self, examples: Examples) -> Mapping[str, tuple[str, ...]]:
        """Ways to group the examples: the name of a facet, and each example's group in it."""

    def parse(self, text: str) -> Examples:
        """The one example that the text names."""

    def show(self, example: Examples) -> str:
        """The text that names this example."""

    def show_tokens(self, tokens: Tokens) -> str:
        """Tokens as text."""

    def explain(self, example: Examples, said: Tokens) -> str:
        """What is wrong with a wrong answer, in words."""
