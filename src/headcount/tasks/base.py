"""What every task offers, and the batches it makes.

A task asks either for a sequence (`SequenceTask`, answered token by token) or for a class (`ClassTask`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from headcount.errors import InputError
from headcount.registry import suggestion

Examples = NDArray[Any]
"""Examples of a task; the first axis counts them, the rest is the task's own affair."""
Tokens = NDArray[np.int64]

Target = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.bool_]]
"""Which keys, at places [1, key], are this target of which queries, at places [query, 1]: [#query, #key], or
[example, query, key] where it depends on the example. Asked about some places at a time."""

SPLIT_SIZES = ("n_train", "n_validation", "n_test")
"""Settings that say how many examples a split has. A task may lack any; without `n_train` training draws fresh ones."""
IGNORE = -100
"""A label that the loss and the teacher-forced score pass over."""
EMPTY = -1
"""What stands behind the end of a short example, in tasks whose examples have different lengths."""


@dataclass(frozen=True)
class Position:
    """What one token position means.

    `role` is operand, operator, start, sum or number; `column` counts digits from the least significant (0), so that a
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
    decoder_input: Tokens
    """What the decoder is fed under teacher forcing."""
    labels: Tokens
    """What it should predict after each fed token; `IGNORE` where nothing is asked."""
    answer: Tokens
    """The whole right answer."""

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, rows: slice) -> Batch:
        return Batch(self.source[rows], self.decoder_input[rows], self.labels[rows], self.answer[rows])


@dataclass(frozen=True)
class ClassBatch:
    """Token ids of some examples, [example, position], and the right class of each, [example]."""

    source: Tokens
    labels: Tokens

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, rows: slice) -> ClassBatch:
        return ClassBatch(self.source[rows], self.labels[rows])


@dataclass(frozen=True)
class DecodingStart:
    """How free-running generation begins: fed `first`; of the answer, `given` tokens are taken as written already.

    A sound task feeds its start token and is given nothing. The missing-start-token fault feeds a digit that counts
    as the answer's first.
    """

    first: int
    given: tuple[int, ...]
    n_tokens: int


@dataclass(frozen=True)
class Condition:
    """Something that holds in some examples and not in others, such as a carry that comes in."""

    yes: str
    """What an example is called where it holds."""
    no: str
    """And where it does not."""
    when: str
    """How a sentence goes on after "when"."""
    holds: NDArray[np.bool_]
    """[example, column]; [example, 1] if the queries have no columns."""


@dataclass(frozen=True)
class AttentionTargets:
    """What the heads of a site could be attending to, in some examples."""

    targets: Mapping[str, Target]
    """Keys that have a meaning for a query, by name."""
    columns: tuple[str, ...]
    """The columns that queries are about, in the order they are written; none if the task has no columns."""
    query_column: NDArray[np.int64]
    """Which of the columns each query is about; -1 for none."""
    condition: Condition


@dataclass(frozen=True)
class Contrast:
    """Examples of which one token goes up by one, twice: first beside a border that matters, then across it."""

    name: str
    """What a head shows that attends elsewhere across the border, such as `carry sensitivity`."""
    words: str
    """What the two steps are."""
    steps: tuple[Examples, Examples, Examples]
    """Alike but for that token: before the step beside the border, between the two, after the step across it."""
    columns: tuple[str, ...]
    """By example, the column whose queries are compared: their own tokens are the same in all three."""


@dataclass(frozen=True)
class EventWords:
    """Words for something that happens inside some examples and that heads may handle, such as a carry."""

    name: str
    """One event: `carry`."""
    question: str
    """The title of the section about it: `Which heads handle the carry?`"""
    conditions: tuple[str, str]
    """What examples with and without the event are called: `carry in`, `no carry in`."""
    facet: str
    """The facet whose groups count the events of an example."""
    absent: str
    """The group of examples without the event."""
    contrast: str
    """Which examples are compared to see whether a head responds to the event: a sentence or two."""
    error: str
    """What an error about the event is, as a clause."""


@dataclass(frozen=True)
class TaskWords:
    """The words that messages and reports use for a task: nobody else knows what its examples are called."""

    example: str = "example"
    examples: str = "examples"
    place: str = "token"
    """What one place of an answer is called: `digit`."""
    question: str = "What do the heads of the model attend to, and which heads matter?"
    """What a report asks about models of this task."""
    targets: Mapping[str, str] = field(default_factory=dict)
    """What an attention target is, for targets whose name does not say it."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """How a sentence names a group of a facet: `where the longest carry chain is {}`."""
    model: str = "the model"
    """What a model of this task is called where nothing names it."""
    mark: str = ""
    """A facet or a group of examples that no other task has: by it a result without a name tells its task."""
    event: EventWords | None = None


@dataclass(frozen=True)
class Preset:
    """Named settings by section, and what they are for."""

    help: str
    settings: Mapping[str, Mapping[str, Any]]


REPORTS_NORM = {"norm": "post", "dropout": 0.1}
REPORTS_TRAINING = {
    "steps": 50 * 10_000 // 64,
    "batch_size": 64,
    "learning_rate": 1e-3,
    "schedule": "constant",
    "weight_decay": 0.0,
    "beta2": 0.999,
    "averaging": 0.0,
    "hard_share": 0.0,
    "target": None,
}
"""The model's normalisation and the training of the five reports, whatever the task."""


class Task(Protocol):
    """A task whose right answers are known."""

    name: ClassVar[str]
    words: ClassVar[TaskWords] = TaskWords()
    output_type: ClassVar[Literal["sequence", "class"]]
    config_class: ClassVar[Any] = None
    """A dataclass of the task's settings (`headcount.config.config`), each with a default.

    None for a task that is made from somebody's own data.
    """
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Settings of the model and of training that suit this task better than the general ones."""
    presets: ClassVar[Mapping[str, Preset]] = {}
    """Named settings that `train --preset` offers."""
    config: Any
    """Its settings; those that say how many examples a split has are named as in `SPLIT_SIZES`."""
    tokens: tuple[str, ...]
    pad_id: int
    longest: int
    """The longest sequence in training."""

    @classmethod
    def describe_data(cls, settings: Mapping[str, Any]) -> str:
        """Say what a model with these settings was trained to do, after "was trained"; empty if they do not say."""
        return ""

    @property
    def splits(self) -> Mapping[str, Examples]:
        """The held-out sets, `validation` and `test`, and `train` if that is a fixed set."""

    def split(self, name: str) -> Examples:
        """The `train` (if it is a fixed set), `validation` or `test` examples."""
        if name not in self.splits:
            raise InputError(f"no split {name!r}", suggestion(name, self.splits))
        return self.splits[name]

    def sample(self, rng: np.random.Generator, n: int) -> Examples:
        """`n` training examples; never a held-out one."""

    def facets(self, examples: Examples) -> Mapping[str, tuple[str, ...]]:
        """Ways to group the examples: the name of a facet, and each example's group in it."""

    def attention_targets(self, stack: str, kind: str, examples: Examples) -> AttentionTargets:
        """What the heads of a site, such as `decoder` `cross`, could be attending to while these are answered."""

    def contrast(self, rng: np.random.Generator, n: int) -> Contrast | None:
        """`n` examples, or as many as there are, for each column of a contrast; None if the task has none."""
        return None

    def repeated_tokens(self) -> Examples | None:
        """Return examples that have one token at nearly all positions, such as 555+555; None if the task has none."""
        return None

    def parse(self, text: str) -> Examples:
        """The one example that the text names."""

    def show(self, example: Examples) -> str:
        """The text that names this example."""

    def answer(self, example: Examples) -> str:
        """The right answer, as people write it."""


class SequenceTask(Task, Protocol):
    """A task whose answer is written token by token."""

    decoding_start: DecodingStart
    source_positions: tuple[Position, ...]
    decoder_input_positions: tuple[Position, ...]
    answer_positions: tuple[Position, ...]
    domain_size: int

    def encode(self, examples: Examples) -> Batch:
        """Token ids of these examples."""

    def iter_domain(self) -> Iterator[Examples]:
        """Every example there is, in blocks that share one answer."""

    def index(self, examples: Examples) -> Tokens:
        """A number of its own for every example, from 0 to the size of the domain; an error for what is no example."""

    def show_tokens(self, tokens: Tokens) -> str:
        """Tokens as text."""

    def read_answer(self, text: str) -> Tokens | None:
        """The tokens of an answer that somebody wrote; None if it is none."""

    def explain(self, example: Examples, predicted: Tokens) -> str:
        """What is wrong with a wrong answer, in words."""

    def faults(self, example: Examples, predicted: Tokens) -> tuple[str, ...]:
        """The kinds of mistake in a wrong answer, so that they can be counted."""


class ClassTask(Task, Protocol):
    """A task whose answer is one of a few classes."""

    classes: tuple[str, ...]
    masks_padding: bool
    """Whether the model is told which tokens are padding; it should be."""
    trained_lengths: tuple[int, int]
    """The shortest and the longest sequence in training."""
    negatives: tuple[str, ...]
    """Ways to make an example of the first class."""
    local_negative: str
    """The one whose examples differ from the last class in one place: a piece around it has the values of any piece."""

    def encode(self, examples: Examples) -> ClassBatch:
        """Token ids of these examples."""

    def lengths(self, examples: Examples) -> NDArray[np.int64]:
        """How long each example is."""

    def sample_of_length(self, rng: np.random.Generator, length: int, kind: str | None, n: int) -> Examples:
        """`n` fresh examples of any length: of the first class, made in this way, or of the last class if None."""

    def cropped(self, rng: np.random.Generator, examples: Examples, length: int) -> tuple[Examples, Examples]:
        """A piece of each example of the local kind that shows its class, and the same values as the last class."""

    def describe(self, example: Examples) -> str:
        """Why the right answer is right, in words."""

    def explain(self, example: Examples, predicted: int) -> str:
        """What is wrong with a wrong answer, in words; empty for a right one."""
