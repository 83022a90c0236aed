"""The interface of a task, and the batches that tasks return.

The answer of a task is either a sequence of tokens (`SequenceTask`) or a class (`ClassTask`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from headcount.errors import InputError
from headcount.registry import suggestion

Examples = NDArray[Any]
"""Examples of a task; the first axis counts examples, and each task defines the other axes."""
Tokens = NDArray[np.int64]

Target = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.bool_]]
"""A function that returns whether each key is the target of each query.

The arguments are the places of queries [query, 1] and keys [1, key]. The result is [#query, #key], or [example, query,
key] if it depends on the example.
"""

SPLIT_SIZES = ("n_train", "n_validation", "n_test")
"""Settings for the sizes of splits. A task may lack any of them; without `n_train`, training draws new examples."""
IGNORE = -100
"""A label that the loss and the teacher-forced score pass over."""
EMPTY = -1
"""What stands behind the end of a short example, in tasks whose examples have different lengths."""


@dataclass(frozen=True)
class Position:
    """What one token position means in every example of a task, such as the tens digit of the first operand.

    `role` is operand, operator, start, sum or number. `column` counts digits from the least significant (0), so that
    the same column of an operand and of the sum have the same number.
    """

    role: str
    label: str
    column: int | None = None
    operand: int | None = None


@dataclass(frozen=True)
class Batch:
    """Token ids of examples of a sequence task; each array is [example, position]."""

    source: Tokens
    """Input of the encoder."""
    decoder_input: Tokens
    """Input of the decoder under teacher forcing."""
    labels: Tokens
    """Token to predict at each position of the decoder input; `IGNORE` where no token is required."""
    answer: Tokens
    """The whole right answer."""

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, rows: slice) -> Batch:
        return Batch(self.source[rows], self.decoder_input[rows], self.labels[rows], self.answer[rows])


@dataclass(frozen=True)
class ClassBatch:
    """Token ids of examples of a class task, [example, position], and their right classes, [example]."""

    source: Tokens
    labels: Tokens

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, rows: slice) -> ClassBatch:
        return ClassBatch(self.source[rows], self.labels[rows])


@dataclass(frozen=True)
class DecodingStart:
    """How free-running decoding begins: with the token `first`, and with the tokens `given` already in the answer.

    A correct task begins with its start token, and `given` is empty. With the missing-start-token fault, decoding
    begins with a digit that also counts as the first digit of the answer.
    """

    first: int
    given: tuple[int, ...]
    n_tokens: int


@dataclass(frozen=True)
class Condition:
    """A condition that is true for some examples and false for others, such as a carry that comes in."""

    yes: str
    """Name of the examples for which the condition is true."""
    no: str
    """Name of the examples for which the condition is false."""
    when: str
    """The condition as a clause after "when"."""
    holds: NDArray[np.bool_]
    """Whether the condition is true, [example, column]; [example, 1] if the queries have no columns."""


@dataclass(frozen=True)
class AttentionTargets:
    """Possible attention targets of the heads of a site, for some examples."""

    targets: Mapping[str, Target]
    """Functions that mark the keys of each target, by the name of the target."""
    columns: tuple[str, ...]
    """Names of the columns that queries are about, in order; empty if the task has no columns."""
    query_column: NDArray[np.int64]
    """Index of the column that each query is about; -1 for none."""
    condition: Condition


@dataclass(frozen=True)
class Contrast:
    """Triples of examples in which one token increases by one twice: first without, then with a change in meaning."""

    name: str
    """Name of the measure that compares the two steps, such as `carry sensitivity`."""
    words: str
    """A description of the two steps."""
    steps: tuple[Examples, Examples, Examples]
    """The examples before, between and after the two steps; they differ only in that token."""
    columns: tuple[str, ...]
    """For each example, the column whose queries are compared; its own tokens do not change."""


@dataclass(frozen=True)
class Quartets:
    """Sets of four examples in which one token rises in equal steps; only the middle step makes an event appear.

    In `smaller` and `without`, the event is absent; in `with_event` and `larger`, it is present. The outer steps change
    the same token by the same amount as the middle one, so they show what the token does without the event (placebo).
    """

    source: str
    """Name of the place where the token changes, such as `1s`."""
    read: str
    """Name of the place of the answer that the event changes, such as `10s`."""
    chain: int
    """Number of places that the event passes on its way, its last one included."""
    examples: tuple[Examples, Examples, Examples, Examples]
    """The examples `smaller`, `without`, `with_event` and `larger`."""
    place: int
    """Index of the place `read` in the answer."""

    def __len__(self) -> int:
        return len(self.examples[0])


@dataclass(frozen=True)
class EventWords:
    """Words for an event inside some examples that heads may handle, such as a carry."""

    name: str
    """Name of the event, such as `carry`."""
    question: str
    """Title of the report's section about the event, such as `Which heads handle the carry?`"""
    conditions: tuple[str, str]
    """Names of examples with and without the event, such as `carry in` and `no carry in`."""
    facet: str
    """Facet whose groups count the events of an example."""
    absent: str
    """Group of examples without the event."""
    contrast: str
    """One or two sentences that describe which examples are compared to measure the response of a head."""
    error: str
    """A clause that defines an error about the event."""


@dataclass(frozen=True)
class TaskWords:
    """The words that messages and reports use for a task."""

    example: str = "example"
    examples: str = "examples"
    place: str = "token"
    """Name of one place of an answer, such as `digit`."""
    symbols: str = "tokens"
    """Name of the tokens of an example, such as `numbers`."""
    question: str = "What do the heads of the model attend to, and which heads matter?"
    """The question that a report answers about models of this task."""
    targets: Mapping[str, str] = field(default_factory=dict)
    """Explanations of attention targets whose names need one."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """Phrase for a group of a facet, such as `where the longest carry chain is {}`."""
    model: str = "the model"
    """Name of a model of this task that has no other name."""
    sign: str = " → "
    """What stands between an example and its answer, such as ` = ` in `374+814 = 1188`."""
    mark: str = ""
    """A facet or group of examples that only this task has; it identifies the task of a result without a task name."""
    event: EventWords | None = None


@dataclass(frozen=True)
class Preset:
    """A named set of settings for `train --preset`: the settings by section, and a help text."""

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
"""Normalisation and training settings of the five reports, for every task."""


class Task(Protocol):
    """A task with known right answers."""

    name: ClassVar[str]
    words: ClassVar[TaskWords] = TaskWords()
    output_type: ClassVar[Literal["sequence", "class"]]
    config_class: ClassVar[Any] = None
    """Dataclass of the task's settings (`headcount.config.config`), each with a default.

    None for a task that is built from the user's own data.
    """
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Default settings of the model and of training for this task."""
    presets: ClassVar[Mapping[str, Preset]] = {}
    """Named settings that `train --preset` offers."""
    config: Any
    """Settings of the task; settings for the sizes of splits have the names in `SPLIT_SIZES`."""
    tokens: tuple[str, ...]
    pad_id: int
    longest: int
    """Length of the longest sequence in training."""

    @classmethod
    def describe_data(cls, settings: Mapping[str, Any]) -> str:
        """Return a phrase that completes "The model was trained ..."; empty if the settings are not known."""
        return ""

    @property
    def splits(self) -> Mapping[str, Examples]:
        """The held-out sets `validation` and `test`, and `train` if the training set is fixed."""

    def split(self, name: str) -> Examples:
        """Return the examples of a split: `validation`, `test`, or `train` if the training set is fixed."""
        if name not in self.splits:
            raise InputError(f"no split {name!r}", suggestion(name, self.splits))
        return self.splits[name]

    def sample(self, rng: np.random.Generator, n: int) -> Examples:
        """Return `n` training examples, none of which is held out."""

    def facets(self, examples: Examples) -> Mapping[str, tuple[str, ...]]:
        """Return the group of each example for each facet, such as its length or its number of carries."""

    def attention_targets(self, stack: str, kind: str, examples: Examples) -> AttentionTargets:
        """Return the possible attention targets at a site, such as `decoder` `cross`, for these examples."""

    def contrast(self, rng: np.random.Generator, n: int) -> Contrast | None:
        """Return up to `n` examples per column for a contrast, or None if the task has no contrast."""
        return None

    def repeated_tokens(self) -> Examples | None:
        """Return examples that have one token at nearly all positions, such as 555+555; None if the task has none."""
        return None

    def hard_examples(self, rng: np.random.Generator, n: int) -> Examples | None:
        """Return up to `n` examples on which models often err, inside the range of training; None if not known.

        They are simple patterns that random examples rarely show, such as one number repeated. Some may be held out.
        """
        return None

    def mutate(self, rng: np.random.Generator, examples: Examples) -> Examples | None:
        """Return each example with one small random change, inside the range of training; None if not known."""
        return None

    def page_script(self) -> str:
        """Return JavaScript with which a page reads examples that people type (`addition.js` shows its form).

        Without a script, people choose from held-out examples.
        """
        return ""

    def parse(self, text: str) -> Examples:
        """Return the example that the text names, as an array of one example."""

    def show(self, example: Examples) -> str:
        """Return the text that names this example."""

    def answer(self, example: Examples) -> str:
        """Return the right answer to an example as text."""


class SequenceTask(Task, Protocol):
    """A task whose answer is a sequence of tokens."""

    decoding_start: DecodingStart
    source_positions: tuple[Position, ...]
    decoder_input_positions: tuple[Position, ...]
    answer_positions: tuple[Position, ...]
    domain_size: int

    def encode(self, examples: Examples) -> Batch:
        """Return the token ids of these examples: the source, the decoder's input, the labels and the answer."""

    def iter_domain(self) -> Iterator[Examples]:
        """Yield every example of the task, in blocks of examples with the same answer."""

    def index(self, examples: Examples) -> Tokens:
        """Return a unique number for each example, from 0 to `domain_size` - 1; raise an error for invalid examples."""

    def quartets(self, rng: np.random.Generator, n: int) -> list[Quartets]:
        """Return up to `n` sets of four examples for each route of the task's event; empty if there is no event."""
        return []

    def event_tokens(self, examples: Examples, place: int) -> Tokens:
        """Return the right token at a place of the answer without and with the event there, [example, 2]."""
        raise InputError(
            f"the task {self.name} names no event, such as a carry", "give it one: words.event and quartets()"
        )

    def has_event(self, examples: Examples, place: int) -> NDArray[np.bool_]:
        """[example]: whether the event, such as a carry, changes this place of the answer."""
        raise InputError(
            f"the task {self.name} names no event, such as a carry", "give it one: words.event and quartets()"
        )

    def show_tokens(self, tokens: Tokens) -> str:
        """Return the tokens of an answer as text, as the task writes answers."""

    def read_answer(self, text: str) -> Tokens | None:
        """Return the tokens of a written answer, or None if the text is not an answer."""

    def explain(self, example: Examples, predicted: Tokens) -> str:
        """Return a description of what is wrong with an answer."""

    def faults(self, example: Examples, predicted: Tokens) -> tuple[str, ...]:
        """Return the kinds of mistakes in a wrong answer, for counting."""


def with_article(place: str) -> str:
    """Return the name of a place with its article where it needs one: `the 10s`, but `answer 3`.

    >>> with_article("10s"), with_article("answer 3")
    ('the 10s', 'answer 3')
    """
    return f"the {place}" if place[:1].isdigit() else place


def natural_order(group: str) -> list[tuple[bool, int, str]]:
    """Return a key that sorts names by the numbers in them, so that 6 comes before 10.

    >>> sorted(["10", "6", "3 or more", "below 1000"], key=natural_order)
    ['3 or more', '6', '10', 'below 1000']
    """
    parts = (each for each in re.split(r"(\d+)", group) if each.strip())
    return [(not each.isdecimal(), int(each) if each.isdecimal() else 0, each) for each in parts]


def longest_rows(task: SequenceTask, examples: Examples) -> NDArray[np.int64]:
    """Return the indices of the examples with the most tokens; shorter examples are padded to their length."""
    batch = task.encode(examples)
    n_tokens = sum((part != task.pad_id).sum(axis=1) for part in (batch.source, batch.decoder_input))
    return np.flatnonzero(n_tokens == np.max(n_tokens))


class ClassTask(Task, Protocol):
    """A task whose answer is a class."""

    classes: tuple[str, ...]
    masks_padding: bool
    """Whether padding is masked; False only in a deliberate fault."""
    trained_lengths: tuple[int, int]
    """Lengths of the shortest and the longest sequence in training."""
    negatives: tuple[str, ...]
    """Ways to generate an example of the first class."""
    local_negative: str
    """The way whose examples differ from the last class in one place only."""

    def encode(self, examples: Examples) -> ClassBatch:
        """Return the token ids and classes of these examples."""

    @property
    def allowed_neighbours(self) -> NDArray[np.bool_] | None:
        """[token, token]: the pairs of neighbours that the last class allows, if these pairs decide the class.

        An example is in the last class if and only if every pair of its neighbours is allowed. With such a table,
        models whose positions see a bounded context can be proved right at every length. None if the class needs more.
        """
        return None

    def lengths(self, examples: Examples) -> NDArray[np.int64]:
        """Return the number of tokens of each example, without padding."""

    def sample_of_length(self, rng: np.random.Generator, length: int, kind: str | None, n: int) -> Examples:
        """Return `n` new examples of one length: of the first class and this kind, or of the last class if None."""

    def patterns_of_length(self, rng: np.random.Generator, length: int, n: int) -> Examples | None:
        """Return `n` hard examples of one length and of both classes, or None if the task has none.

        They have simple patterns that random examples rarely show, and on which models often err.
        """
        return None

    def cropped(self, rng: np.random.Generator, examples: Examples, length: int) -> tuple[Examples, Examples]:
        """Return a piece of each local negative around its fault, and the same values as examples of the last class."""

    def describe(self, example: Examples) -> str:
        """Return why the right answer is right, such as the first pair of numbers in the wrong order."""

    def explain(self, example: Examples, predicted: int) -> str:
        """Return a description of what is wrong with an answer; empty for a right one."""
