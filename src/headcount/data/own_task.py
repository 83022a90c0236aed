"""A task made from an adapter's own data: the questions and right answers that the user gives.

headcount's own tasks can generate new examples; a task of given data cannot. Methods that would need new examples raise
an error that says so, and checks of the audit that need them do not apply.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from headcount.data.from_adapter import Pairs, encoded, own_pairs, training_pairs
from headcount.errors import InputError, shortened
from headcount.external.adapter import Adapter
from headcount.tasks.base import Batch, ClassBatch, ClassTask, DecodingStart, Examples, Position, SequenceTask, Tokens

NAME = "the author's data"


class OwnData:
    """Base class of tasks made from a user's own questions and answers; an example is the index of a question."""

    name = NAME
    defaults: Mapping[str, Mapping[str, Any]] = {}
    config_class, config = type(None), None

    def __init__(self, test: Pairs, train: Pairs = ()) -> None:
        self._answers = dict((*train, *test))
        self._questions = list(self._answers)
        self._number = {question: i for i, question in enumerate(self._questions)}
        self._splits = {"test": self._numbers(test), **({"train": self._numbers(train)} if train else {})}

    def _numbers(self, pairs: Pairs) -> Examples:
        return np.array([[self._number[question]] for question, _ in pairs], dtype=np.int64)

    @property
    def splits(self) -> Mapping[str, Examples]:
        """The splits `test` and, if the adapter has `training_data`, `train`."""
        return self._splits

    def split(self, name: str) -> Examples:
        """Return the examples of the user's split `test` or `train`."""
        if name not in self._splits:
            raise InputError(f"{NAME} have no split {name!r}", f"there are: {', '.join(self._splits)}")
        return self._splits[name]

    def parse(self, text: str) -> Examples:
        """Return the example whose question is `text`; raise an error if the user's data does not contain it."""
        if text not in self._number:
            raise InputError(
                f"{shortened(text)!r} is not a question in {NAME}", "give a question that the adapter's data() returns"
            )
        return np.array([[self._number[text]]], dtype=np.int64)

    def show(self, example: Examples) -> str:
        """Return the question of an example as text; an example is the index of a question."""
        return self._questions[int(example[0])]

    def answer(self, example: Examples) -> str:
        """Return the right answer to an example as text, from the user's data."""
        return self._answers[self.show(example)]

    def sample(self, rng: np.random.Generator, n: int) -> Examples:
        """Return `n` examples drawn from the user's training set; raise an error if the adapter has none."""
        if "train" not in self._splits:
            raise InputError(
                f"there are no training examples in {NAME}", "add training_data() to the headcount.Adapter class"
            )
        return rng.permutation(self._splits["train"])[:n]

    def attention_targets(self, stack: str, kind: str, examples: Examples) -> NoReturn:
        """Raise an error, because headcount does not know what the tokens of a user's data mean."""
        raise _no_more("what its tokens mean")


class OwnSequences(OwnData, SequenceTask):
    """A task made from a user's own data, whose answers are texts; each character is a token."""

    output_type = "sequence"

    @cached_property
    def tokens(self) -> tuple[str, ...]:  # type: ignore[override]
        """The task's alphabet: all characters that occur in answers, and last an empty text, which is padding."""
        return (*sorted({letter for answer in self._answers.values() for letter in answer}), "")

    @cached_property
    def pad_id(self) -> int:  # type: ignore[override]
        """The token id of padding, which is the last token of the alphabet."""
        return len(self.tokens) - 1

    @cached_property
    def longest(self) -> int:  # type: ignore[override]
        """The number of characters of the longest answer in the user's data."""
        return max(map(len, self._answers.values()))

    @cached_property
    def answer_positions(self) -> tuple[Position, ...]:  # type: ignore[override]
        """The positions of an answer, one for each character, counted from 1."""
        return tuple(Position("answer", f"{i + 1}.") for i in range(self.longest))

    @property
    def source_positions(self) -> NoReturn:  # type: ignore[override]
        """Raise an error, because headcount does not know what the positions of a user's questions mean."""
        raise _no_more("what its positions mean")

    decoder_input_positions = source_positions

    @property
    def decoding_start(self) -> DecodingStart:  # type: ignore[override]
        """How decoding begins: with padding as start token, and with no token of the answer given."""
        return DecodingStart(self.pad_id, (), self.longest)

    @property
    def domain_size(self) -> int:  # type: ignore[override]
        """The number of questions whose right answer is known."""
        return len(self._questions)

    def iter_domain(self) -> Iterator[Examples]:
        """Raise an error, because a user's data does not contain all possible questions."""
        raise _no_more("which other questions exist")

    def index(self, examples: Examples) -> Tokens:
        """Return the index of each example's question, which is the example itself."""
        return np.asarray(examples[:, 0], dtype=np.int64)

    def encode(self, examples: Examples) -> Batch:
        """Return a batch with the right answers as token ids and without inputs, which only the adapter can make."""
        answers = np.array([self.read_answer(self.answer(example)) for example in examples], dtype=np.int64)
        answers = answers.reshape(len(examples), self.longest)
        return Batch(np.asarray(examples, dtype=np.int64), answers, answers, answers)

    def show_tokens(self, tokens: Tokens) -> str:
        """Return the tokens of an answer as text, without padding."""
        return "".join(self.tokens[token] for token in tokens.tolist())

    def read_answer(self, text: str) -> Tokens | None:
        """Return the token ids of an answer, padded at the end; None if it is too long or has unknown characters."""
        if len(text) > self.longest or not set(text) <= set(self.tokens):
            return None
        numbers = {token: i for i, token in enumerate(self.tokens)}
        return np.array([numbers[letter] for letter in text] + [self.pad_id] * (self.longest - len(text)))

    def facets(self, examples: Examples) -> Mapping[str, tuple[str, ...]]:
        """Return the group of each example for one way of grouping: by the length of the right answer."""
        lengths = tuple(f"{len(self.answer(example))} characters" for example in examples)
        return {"right answer": lengths}

    def explain(self, example: Examples, predicted: Tokens) -> str:
        """Return a text that says how many characters of a predicted answer are wrong."""
        right = self.read_answer(self.answer(example))
        assert right is not None, "of the data"
        n = int((right != predicted).sum())
        return f"{n} of {self.longest} characters {'is' if n == 1 else 'are'} wrong"

    def faults(self, example: Examples, predicted: Tokens) -> tuple[str, ...]:
        """Return an empty tuple, because headcount knows no kinds of mistakes in a user's data."""
        return ()


class OwnClasses(OwnData, ClassTask):
    """A task made from a user's own data, whose answers are classes."""

    output_type = "class"
    masks_padding = True
    tokens = ()
    pad_id = -1

    @cached_property
    def classes(self) -> tuple[str, ...]:  # type: ignore[override]
        """The names of the classes: all different right answers, sorted."""
        return tuple(sorted(set(self._answers.values())))

    @property
    def longest(self) -> int:  # type: ignore[override]
        """The length of the longest training question, in words or characters."""
        return self.trained_lengths[1]

    @cached_property
    def trained_lengths(self) -> tuple[int, int]:  # type: ignore[override]
        """The lengths of the shortest and the longest training question (without training data: test question)."""
        lengths = self.lengths(self._splits.get("train", self._splits["test"]))
        return int(lengths.min()), int(lengths.max())

    def encode(self, examples: Examples) -> ClassBatch:
        """Return a batch with the right classes and without inputs, which only the adapter can make."""
        labels = [self.classes.index(self.answer(example)) for example in examples]
        return ClassBatch(np.asarray(examples, dtype=np.int64), np.array(labels, dtype=np.int64))

    def lengths(self, examples: Examples) -> NDArray[np.int64]:
        """Return the number of words of each question, or of characters if no question has several words."""
        words = [self.show(example).split() for example in examples]
        one_word = all(len(each) < 2 for each in words)
        return np.array([len("".join(each)) if one_word else len(each) for each in words], dtype=np.int64)

    def facets(self, examples: Examples) -> Mapping[str, tuple[str, ...]]:
        """Return the group of each example for one way of grouping: by the right answer."""
        return {"right answer": tuple(map(self.answer, examples))}

    def describe(self, example: Examples) -> str:
        """Return an empty text, because headcount does not know why an answer is right."""
        return ""

    def explain(self, example: Examples, predicted: int) -> str:
        """Return a text that names the right answer if the predicted class is wrong, else an empty text."""
        return "" if self.classes[predicted] == self.answer(example) else f"should be {self.answer(example)}"

    @property
    def negatives(self) -> NoReturn:  # type: ignore[override]
        """Raise an error: headcount cannot generate examples of a user's data."""
        raise _no_more("how examples of each class are made")

    local_negative = negatives

    def sample_of_length(self, rng: np.random.Generator, length: int, kind: str | None, n: int) -> Examples:
        """Raise an error: headcount cannot generate examples of a user's data."""
        raise _no_more("how examples of another length are made")

    def cropped(self, rng: np.random.Generator, examples: Examples, length: int) -> tuple[Examples, Examples]:
        """Raise an error: headcount cannot generate examples of a user's data."""
        raise _no_more("how examples are made shorter")


def _no_more(what: str) -> InputError:
    return InputError(
        f"{NAME} do not say {what}",
        "if they belong to a task of headcount, name it in the headcount.Adapter class: task = ...",
    )


def own_task(adapter: Adapter) -> OwnSequences | OwnClasses:
    """Return a task made from an adapter's own data.

    Answers are sequences if the adapter's encode() returns labels with two axes, else classes.
    """
    test, train = own_pairs(adapter), training_pairs(adapter)
    is_sequence = encoded(adapter, test[:2])[1].dim() == 2
    return (OwnSequences if is_sequence else OwnClasses)(test, train)
