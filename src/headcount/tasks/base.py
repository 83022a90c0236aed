"""The interface of a task, and the batches that tasks return.

The answer of a task is either a sequence of tokens (`SequenceTask`) or a class (`ClassTask`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from headcount.errors import InputError
from headcount.suggestions import suggestion

Examples = NDArray[Any]
"""An array of examples of a task; the first axis counts examples, and each task defines the other axes."""
Tokens = NDArray[np.int64]

Target = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.bool_]]
"""A function that says which keys are an attention target (such as the operator) for each query.

It takes the positions of queries [query, 1] and keys [1, key], and returns a mask [#query, #key], or [example, query,
key] if the target depends on the example.
"""

SPLIT_SIZES = ("n_train", "n_validation", "n_test")
"""Names of the settings for the sizes of splits; a task may lack some; without `n_train`, training draws examples."""
IGNORE = -100
"""The label of positions that the loss and the teacher-forced score ignore."""
EMPTY = -1
"""The filler after the end of short examples in an array, in tasks whose examples have different lengths."""


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
    """The input of the encoder."""
    decoder_input: Tokens
    """The input of the decoder under teacher forcing: the start token and the right answer without its last token."""
    labels: Tokens
    """The token to predict at each position of the decoder input; `IGNORE` where no token is required."""
    answer: Tokens
    """All tokens of the right answer."""

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
    """How decoding begins: the decoder's first input token, and tokens of the answer that are given to it.

    A correct task begins with its start token, and no token is given. If the start token is missing (a fault that can
    be planted), decoding begins with a digit that also counts as the first digit of the answer.
    """

    first: int
    given: tuple[int, ...]
    n_tokens: int


@dataclass(frozen=True)
class IdScheme:
    """A way in which a task gives position ids to the tokens of a decoder-only model."""

    ids: Callable[[Any, Any, Any], tuple[Any, Any]]
    """Return the ids of a question's tokens and of the decoder's input tokens, two arrays [#example, place].

    The arguments are the question's tokens [example, place], their places [1, place] and the places of the decoder's
    input tokens [1, place], as arrays of NumPy or of PyTorch; only operations that both have may be used. The ids of
    the decoder's input may not depend on its tokens, because the ids are needed before the tokens are known.
    """
    hard_codes: str
    """The structure of the task that the ids give to the model, in words."""
    zero_is_fixed: bool = False
    """Whether the id 0 stays 0 when ids start at a random number in training."""


@dataclass(frozen=True)
class Condition:
    """A condition on examples, such as "a carry comes in", by which attention to targets is compared."""

    yes: str
    """The name of examples for which the condition is true, such as `carry in`."""
    no: str
    """The name of examples for which the condition is false, such as `no carry in`."""
    when: str
    """The condition as a clause that can follow "when", such as "a carry comes in"."""
    holds: NDArray[np.bool_]
    """A mask [example, column]: whether the condition is true; [example, 1] if the task has no columns."""


@dataclass(frozen=True)
class AttentionTargets:
    """The tokens that heads of an attention block may attend to (targets), such as the operator, for some examples."""

    targets: Mapping[str, Target]
    """For each target, by name, a function that says which keys are this target for each query."""
    columns: tuple[str, ...]
    """The names of the columns (such as `10s`) that queries are about, in order; empty if the task has no columns."""
    query_column: NDArray[np.int64]
    """For each query, the index of the column that it is about; -1 for none."""
    condition: Condition


@dataclass(frozen=True)
class Contrast:
    """Triples of examples in which one token increases by one twice; only the second step makes an event appear.

    For example, 373+615, 374+615 and 375+615: the 1s add to 8, 9 and 10, and only 10 makes a carry.
    """

    name: str
    """The name of the measure that compares the two steps, such as `carry sensitivity`."""
    words: str
    """A description, for reports, of the two steps in which one token increases."""
    steps: tuple[Examples, Examples, Examples]
    """The examples before, between and after the two steps; those of a triple differ only in one token."""
    columns: tuple[str, ...]
    """For each triple, the column that the event changes, such as `10s`; its own tokens do not change."""


@dataclass(frozen=True)
class Quartets:
    """Sets of four examples in which one token rises in equal steps; only the middle step makes an event appear.

    In `smaller` and `without`, the event (such as a carry) is absent; in `with_event` and `larger`, it is present. The
    outer steps change the token by the same amount as the middle step, so they show the effect of the token without a
    change of the event (a placebo).
    """

    source: str
    """The name of the position where the token changes, such as `1s`."""
    read: str
    """The name of the position of the answer that the event changes, such as `10s`."""
    chain: int
    """The number of positions from `source` to `read`: 1 from the 1s to the 10s, 2 from the 1s to the 100s."""
    examples: tuple[Examples, Examples, Examples, Examples]
    """Four arrays of examples, `smaller`, `without`, `with_event` and `larger`; a set of four has one row in each."""
    place: int
    """The index of the position `read` in the answer."""

    def __len__(self) -> int:
        return len(self.examples[0])


@dataclass(frozen=True)
class EventWords:
    """The words that reports use for a task's event: something that heads may handle in some examples (a carry)."""

    name: str
    """The name of the event, such as `carry`."""
    question: str
    """The title of the report's section about the event, such as `Which heads handle the carry?`"""
    conditions: tuple[str, str]
    """The names of examples with and without the event, such as `carry in` and `no carry in`."""
    facet: str
    """The name of the facet (way of grouping examples) that counts events, such as `carries`."""
    absent: str
    """The name of the group of that facet without any event, such as `0`."""
    contrast: str
    """One or two sentences that say which examples are compared to measure how a head responds to the event."""
    error: str
    """A clause that says when a wrong answer is an error about the event, such as "every wrong digit lost a carry"."""


@dataclass(frozen=True)
class TaskWords:
    """The words that messages and reports use for a task."""

    example: str = "example"
    examples: str = "examples"
    place: str = "token"
    """The name of one position of an answer, such as `digit`."""
    symbols: str = "tokens"
    """The name of the tokens of an example, such as `numbers`."""
    length: str = "tokens"
    """What the length of an example counts, such as `digits`."""
    question: str = "What do the heads of the model attend to, and which heads matter?"
    """The question that a report answers about models of this task."""
    targets: Mapping[str, str] = field(default_factory=dict)
    """Explanations of attention targets (tokens that heads attend to) by name, for names that need one."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """For some facets (ways of grouping), a phrase for a group, such as `where the longest carry chain is {}`."""
    model: str = "the model"
    """What reports call a model of this task that has no other name, such as `the adder`."""
    sign: str = " → "
    """The text between an example and its answer, such as ` = ` in `374+814 = 1188`."""
    mark: str = ""
    """The name of a facet (way of grouping) or group that no other task has; results that lack the name of their task
    are recognised by it."""
    event: EventWords | None = None


@dataclass(frozen=True)
class Preset:
    """A named set of settings for the option `train --preset`, with a help text."""

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
"""The training settings of the five published reports (docs/reports.md), for the presets of all tasks."""


class Task(Protocol):
    """The interface of a task with known right answers, such as addition."""

    name: ClassVar[str]
    words: ClassVar[TaskWords] = TaskWords()
    output_type: ClassVar[Literal["sequence", "class"]]
    model_kind: ClassVar[Literal["encoder-decoder", "decoder-only", "classifier"]]
    """The kind of model that is trained on the task."""
    config_class: ClassVar[Any] = None
    """The dataclass of the task's settings, in which each setting has a default; None for a user's own data."""
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """The settings of model and training whose defaults differ for this task, by section."""
    presets: ClassVar[Mapping[str, Preset]] = {}
    """The sets of settings that `train --preset` offers, by name."""
    config: Any
    """The settings of the task; those for the sizes of splits have the names in `SPLIT_SIZES`."""
    tokens: tuple[str, ...]
    pad_id: int
    longest: int
    """The length of the longest sequence in training, in tokens."""

    @classmethod
    def describe_data(cls, settings: Mapping[str, Any]) -> str:
        """Return a phrase that completes the sentence "The model was trained ...", given the task's settings.

        Return an empty text if the settings are not known.
        """
        return ""

    @property
    def splits(self) -> Mapping[str, Examples]:
        """The examples of the held-out sets `validation` and `test`, and of `train` if the training set is fixed."""

    def split(self, name: str) -> Examples:
        """Return the examples of a split: `validation`, `test`, or `train` if the training set is fixed."""
        if name not in self.splits:
            raise InputError(f"no split {name!r} in this task", suggestion(name, self.splits))
        return self.splits[name]

    def sample(self, rng: np.random.Generator, n: int) -> Examples:
        """Return `n` training examples, none of which is held out."""

    def facets(self, examples: Examples) -> Mapping[str, tuple[str, ...]]:
        """Return the group of each example for each facet; a facet is a way of grouping, such as by length."""

    def attention_targets(self, stack: str, kind: str, examples: Examples) -> AttentionTargets:
        """Return the tokens that heads of a kind of attention block may attend to (targets), such as the operator.

        `stack` and `kind` name the block, such as `decoder` and `cross`.
        """

    def contrast(self, rng: np.random.Generator, n: int) -> Contrast | None:
        """Return up to `n` triples of examples per column that show an event's effect; None if there is no event."""
        return None

    def repeated_tokens(self) -> Examples | None:
        """Return examples with the same token at nearly all positions, such as 555+555; None if the task has none."""
        return None

    def hard_examples(self, rng: np.random.Generator, n: int) -> Examples | None:
        """Return up to `n` examples in the range of training on which models often err; None if none are known.

        They have simple patterns that random examples rarely show, such as one number repeated. Some may be in the
        held-out sets.
        """
        return None

    def mutate(self, rng: np.random.Generator, examples: Examples) -> Examples | None:
        """Return each example with one small random change that stays in the range of training.

        Return None if the task does not define such changes.
        """
        return None

    def page_script(self) -> str:
        """Return the JavaScript with which the report's page reads examples that people type.

        `addition.js` shows its form. If the script is empty, people choose from held-out examples.
        """
        return ""

    def parse(self, text: str) -> Examples:
        """Return the example in a text such as `374+814`, as an array of one example; invalid texts are errors."""

    def show(self, example: Examples) -> str:
        """Return an example as text, such as `374+814`."""

    def answer(self, example: Examples) -> str:
        """Return the right answer to an example as text."""


class SequenceTask(Task, Protocol):
    """The interface of a task whose answers are sequences of tokens."""

    model_kind: ClassVar[Literal["encoder-decoder", "decoder-only", "classifier"]] = "encoder-decoder"
    end_id: int | None = None
    """The token that ends an answer and fills the rest of its row; None if all answers have the same length."""
    id_schemes: ClassVar[Mapping[str, Callable[[Any], IdScheme]]] = {}
    """The ways in which the task can give position ids to a decoder-only model's tokens, by name.

    Each is called with the settings of the task. If the settings do not allow it, it raises a `ValueError` with the
    reason.
    """
    kinds: tuple[str, ...] = ()
    """The names of the kinds of examples that `sample_of_length` draws; empty if examples have one length."""
    length_facet: str = ""
    """A facet whose groups are numbers, such as the longest carry chain, by which other lengths are grouped; or ""."""
    decoding_start: DecodingStart
    source_positions: tuple[Position, ...]
    decoder_input_positions: tuple[Position, ...]
    answer_positions: tuple[Position, ...]
    domain_size: int

    def sized_for(self, examples: Examples) -> Self:
        """Return this task with positions for examples as long as these; the task itself if its lengths are fixed.

        In a task with an `end_id`, examples may have a longer last axis than in training, filled with `EMPTY`.
        """
        return self

    def sample_of_length(self, rng: np.random.Generator, length: int, kind: str, n: int) -> Examples:
        """Return `n` new examples of one length and one of the `kinds`."""
        raise InputError(f"all examples of {self.name} have the same length", "leave the lengths out")

    def encode(self, examples: Examples) -> Batch:
        """Return the token ids of these examples: the source, the decoder's input, the labels and the answer."""

    def iter_domain(self) -> Iterator[Examples]:
        """Yield every example of the task, in blocks of examples with the same answer."""

    def index(self, examples: Examples) -> Tokens:
        """Return a unique number for each example, from 0 to `domain_size` - 1; invalid examples are errors."""

    def quartets(self, rng: np.random.Generator, n: int) -> list[Quartets]:
        """Return up to `n` sets of four similar examples for each way that the task's event (such as a carry) can take.

        The list is empty if the task has no event. `Quartets` explains the four examples.
        """
        return []

    def event_tokens(self, examples: Examples, place: int) -> Tokens:
        """Return the right token at a position of the answer without and with the event (a carry), [example, 2]."""
        raise InputError(
            f"the task {self.name} has no event, such as a carry",
            "to define one, give the task's class words.event (its name) and quartets() (sets of four examples with "
            "and without it)",
        )

    def has_event(self, examples: Examples, place: int) -> NDArray[np.bool_]:
        """Return a mask of the examples in which the event, such as a carry, changes this position of the answer."""
        raise InputError(
            f"the task {self.name} has no event, such as a carry",
            "to define one, give the task's class words.event (its name) and quartets() (sets of four examples with "
            "and without it)",
        )

    def show_tokens(self, tokens: Tokens) -> str:
        """Return the tokens of an answer as text, such as `1188`."""

    def read_answer(self, text: str) -> Tokens | None:
        """Return the tokens of an answer that is given as text, or None if the text is not an answer of the task."""

    def explain(self, example: Examples, predicted: Tokens) -> str:
        """Return a description of what is wrong with a predicted answer, such as its wrong digits."""

    def faults(self, example: Examples, predicted: Tokens) -> tuple[str, ...]:
        """Return the kinds of mistakes in a wrong answer, such as `lost the carry from the 10s`, to count them."""


def with_article(place: str) -> str:
    """Return the name of a position of an answer, with an article if it needs one: `the 10s`, but `answer 3`.

    >>> with_article("10s"), with_article("answer 3")
    ('the 10s', 'answer 3')
    """
    return f"the {place}" if place[:1].isdigit() else place


def natural_order(group: str) -> list[tuple[bool, int, str]]:
    """Return a sort key for names of groups that sorts them by the numbers in them, so that 6 comes before 10.

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


def stack_positions(task: SequenceTask, stack: str) -> tuple[Position, ...]:
    """Return the positions of a stack's queries: the source's tokens, or the tokens that are predicted there.

    The one stack (`layer`) of a decoder-only model has both: the source, then the tokens that are predicted.
    """
    predicted = task.answer_positions[len(task.decoding_start.given) :]
    if stack == "layer" and task.model_kind == "decoder-only":
        return (*task.source_positions, *predicted)
    return task.source_positions if stack == "encoder" else predicted


def key_positions(task: SequenceTask, stack: str, kind: str) -> tuple[Position, ...]:
    """Return the positions of the keys of an attention block, which is named by its stack and kind."""
    if stack == "layer" and task.model_kind == "decoder-only":
        return (*task.source_positions, *task.decoder_input_positions)
    return task.decoder_input_positions if (stack, kind) == ("decoder", "self") else task.source_positions


def widened(examples: Examples, n: int) -> Examples:
    """Return examples with `n` more places at the end of their last axis, filled with `EMPTY`."""
    return np.pad(examples, [(0, 0)] * (examples.ndim - 1) + [(0, n)], constant_values=EMPTY)


def past_end(tokens: Tokens, end_id: int | None) -> NDArray[np.bool_]:
    """Return a mask [example, place] of the tokens behind the end token of each answer.

    >>> past_end(np.array([[4, 2, 9, 9]]), end_id=9).tolist()
    [[False, False, False, True]]
    """
    is_end = np.zeros(tokens.shape, dtype=bool) if end_id is None else tokens == end_id
    return np.asarray(is_end.cumsum(axis=1) - is_end > 0)


class ClassTask(Task, Protocol):
    """The interface of a task whose answers are classes."""

    model_kind: ClassVar[Literal["encoder-decoder", "decoder-only", "classifier"]] = "classifier"
    classes: tuple[str, ...]
    masks_padding: bool
    """Whether the attention mask hides padding; False only if this fault is planted."""
    trained_lengths: tuple[int, int]
    """The lengths of the shortest and the longest sequence in training."""
    negatives: tuple[str, ...]
    """The names of the ways to generate an example of the first class (such as unsorted)."""
    local_negative: str
    """The name of the way in `negatives` whose examples differ from the last class in one place only."""

    def encode(self, examples: Examples) -> ClassBatch:
        """Return the token ids and the right classes of these examples."""

    @property
    def allowed_neighbours(self) -> NDArray[np.bool_] | None:
        """A mask [token, token] of the pairs of neighbours that are allowed in the last class (such as sorted).

        An example is in the last class if and only if every pair of its neighbours is allowed. With such a table,
        models whose positions see a bounded context can be proved right at every length. None if pairs of neighbours do
        not decide the class.
        """
        return None

    def lengths(self, examples: Examples) -> NDArray[np.int64]:
        """Return the number of tokens of each example, without padding."""

    def sample_of_length(self, rng: np.random.Generator, length: int, kind: str | None, n: int) -> Examples:
        """Return `n` new examples of one length.

        They are of the first class, generated in the way `kind`, or of the last class if `kind` is None.
        """

    def patterns_of_length(self, rng: np.random.Generator, length: int, n: int) -> Examples | None:
        """Return `n` hard examples of one length and of both classes, or None if the task has none.

        They have simple patterns that random examples rarely show, and on which models often err.
        """
        return None

    def cropped(self, rng: np.random.Generator, examples: Examples, length: int) -> tuple[Examples, Examples]:
        """Return pieces of long examples of the first class, each around its wrong place, and their counterparts.

        The examples must be of the kind `local_negative`. A counterpart has the same values but is in the last class.
        """

    def describe(self, example: Examples) -> str:
        """Return the reason for an example's right answer, such as its first pair of numbers in the wrong order."""

    def explain(self, example: Examples, predicted: int) -> str:
        """Return a description of what is wrong with a predicted class; empty if it is right."""
