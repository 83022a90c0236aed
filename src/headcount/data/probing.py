"""Find out which token of a task is at which position of the tensors that an adapter's encode() makes.

The adapter need not say so: encode() is called with texts whose tokens are drawn at random. If the ids at a position
map one to one to one of these tokens, the position holds this token:

    question  37+81      answer  118            for an encoder-decoder with ids of its own
    encoder   <cls> 3 7 + 8 1 <sep>             -1  0  1  2  3  4 -1     places among the tokens of the question
    decoder   <s> 1 1 8                         -1  0  1  2              places among the tokens of the answer
    labels    1 1 8 <eos>                        0  1  2 -1

A position whose id never changes holds a token that the model adds, or an operator if it is between the operands. Texts
are split into the task's tokens, not into characters: `12 57 31` has three tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headcount.data.from_adapter import encoded
from headcount.errors import HeadcountError, InputError
from headcount.external.adapter import Adapter
from headcount.models.reading import Places
from headcount.seeds import stream
from headcount.tasks.base import ClassTask, Examples, SequenceTask

N_PROBES = 64
"""Number of random texts with which the adapter's encode() is called."""
MOST_TRIES = 40
"""Number of attempts at each random text, because not every random text is a valid question."""
MOST_VALUES = 10
"""Largest number of different tokens in random answers; few, so that each occurs several times in the texts."""
N_READ = 1000
"""Number of right answers from which the tokens of a task's answers are collected."""
N_WORDS = 6
"""Number of different words in the random sequences for a classifier."""
ONE_POSITION = (
    "change encode() so that each token has a position of its own; this is not needed to see the attention on one "
    "example: --on EXAMPLE"
)
Ids = NDArray[np.int64]
"""An array [text, position] of integers for the values that encode() made; equal integers mean equal values."""


# --- tokens of a text -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AnswerTokens:
    """The tokens that occur in right answers, and the separator between them in a text.

    >>> from headcount.tasks.addition import Addition
    >>> AnswerTokens.of(Addition()).split("118")
    ('1', '1', '8')
    """

    tokens: tuple[str, ...]
    separator: str
    """The text that the task writes between two tokens."""

    @classmethod
    def of(cls, task: SequenceTask) -> AnswerTokens:
        """Return the tokens of a task's answers, collected from its test set, with the separator between tokens."""
        numbers = np.unique(task.encode(task.split("test")[:N_READ]).answer)
        one, other = task.tokens[:2]
        text = task.show_tokens(np.array([0, 1]))
        first, last = (one, other) if text.startswith(one) and text.endswith(other) else (other, one)
        separator = text[len(first) : len(text) - len(last)]
        return cls(tuple(task.tokens[i] for i in numbers if task.tokens[i]), separator)

    def split(self, text: str) -> tuple[str, ...]:
        """Return the tokens of an answer in the order of the text; an unknown character becomes its own token."""
        if self.separator:
            return tuple(text.split(self.separator))
        tokens = sorted(self.tokens, key=len, reverse=True)
        return tuple(re.findall("|".join([*map(re.escape, tokens), "."]), text, flags=re.DOTALL))

    def join(self, tokens: Iterable[str]) -> str:
        """Return tokens as one text, with the task's separator between them."""
        return self.separator.join(tokens)


# --- places of tokens -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class QuestionProbe:
    """Where a question is in a model's inputs: which tensor holds it, and which of its tokens is at each position."""

    source: int
    places: Places
    """For each position, the index of its token in the question; -1 for a token that the model adds, such as <cls>."""

    @classmethod
    def of(cls, inputs: Sequence[Ids], tokens: Ids) -> QuestionProbe:
        """Return where the tokens of a question are, found by comparing encoded random questions with their tokens.

        `inputs` are the encoded tensors, and `tokens` is [text, token].
        """
        by_input = [_places(ids, tokens) for ids in inputs]
        source = max(range(len(by_input)), key=lambda i: len(set(by_input[i]) - {-1}))
        places, varies = by_input[source], (tokens != tokens[0]).any(axis=0)
        if missing := set(np.flatnonzero(varies)) - set(places):
            raise InputError(
                f"{len(missing)} tokens of a question cannot be found in the tensors of encode(): no position has a "
                "different id for each value of such a token",
                ONE_POSITION,
            )
        is_fixed = (inputs[source] == inputs[source][0]).all(axis=0)
        for token in np.flatnonzero(~varies):  # constant tokens, such as an operator
            ends = [np.flatnonzero(places == near) for near in (token - 1, token + 1)]
            if all(map(len, ends)):
                low, high = sorted(int(end[0]) for end in ends)
                between = [position for position in range(low + 1, high) if is_fixed[position]]
                if len(between) == 1:
                    places[between[0]] = token
        return cls(source, places)


@dataclass(frozen=True)
class AnswerProbe:
    """The tensors that an adapter's encode() makes of random answers which all have the same number of tokens.

    They show which token of an answer is at which position.
    """

    inputs: tuple[Ids, ...]
    labels: Ids
    tokens: Ids
    """The random answers as the task's tokens, [text, place]; a leading zero that is not written has a fixed value."""
    filled: AnswerProbe | None = None
    """The probe of the same answers with all leading zeros written; None if encode() then returns other shapes."""

    @classmethod
    def of(cls, adapter: Adapter, task: SequenceTask, questions: Sequence[str], n_written: int) -> AnswerProbe:
        """Return the probe for answers with `n_written` tokens: encode random answers to these questions.

        The answers need not be right.
        """
        probe, n_tokens = cls._encoded(adapter, task, questions, n_written), len(task.answer_positions)
        if n_written == n_tokens:
            return probe
        with suppress(InputError):  # a task may have no answers that long
            filled = cls._encoded(adapter, task, questions, n_tokens)
            if filled.widths == probe.widths and filled.labels.shape == probe.labels.shape:
                return cls(probe.inputs, probe.labels, probe.tokens, filled)
        return probe

    @classmethod
    def _encoded(cls, adapter: Adapter, task: SequenceTask, questions: Sequence[str], n_written: int) -> AnswerProbe:
        answers = _random_answers(task, n_written, len(questions))
        try:
            inputs, labels = encoded(adapter, list(zip(questions, answers, strict=True)))
        except HeadcountError as error:
            raise InputError(
                f"encode() fails on the question {questions[0]!r} with the wrong answer {answers[0]!r}",
                "encode() should accept wrong answers, too: headcount uses random answers to find out which "
                "position holds which token",
                error.what,
            ) from error
        if labels.dim() != 2:
            raise InputError(
                "encode() returned class labels, but the answers of this task are sequences of tokens",
                "return the labels as a tensor of shape [example, position], with one token id for each position",
            )
        tokens = np.array([task.read_answer(answer) for answer in answers])
        return cls(tuple(map(ids_of, inputs)), ids_of(labels), tokens)

    @property
    def widths(self) -> tuple[int, ...]:
        """The number of positions of each input tensor [example, position]."""
        return tuple(ids.shape[1] for ids in self.inputs)

    @property
    def decoder(self) -> int:
        """The index of the decoder's input: the tensor with most tokens of the answer, or the last if none has any."""
        n_known = [len(set(_places(ids, self.tokens)) - {-1}) for ids in self.inputs]
        return n_known.index(max(n_known)) if any(n_known) else len(n_known) - 1

    @property
    def fed(self) -> Places:
        """For each position of the decoder's input, the index of the answer token there; -1 for none."""
        filled = None if self.filled is None else self.filled.inputs[self.decoder]
        return self._with_fillers(self.inputs[self.decoder], filled)

    @property
    def labelled(self) -> Places:
        """For each label, the index of the answer token that it stands for; -1 for none."""
        return self._with_fillers(self.labels, None if self.filled is None else self.filled.labels)

    @property
    def predicted(self) -> Places:
        """For each position of the decoder's input, the index of the answer token to predict there; -1 for none."""
        if self.labels.shape[1] == self.widths[self.decoder]:
            return self.labelled
        fed = self.fed  # only some positions have labels: each token is predicted where the one before it is fed
        predicted = np.append(fed[1:], -1)
        written = set(np.flatnonzero((self.tokens != self.tokens[0]).any(axis=0)).tolist())
        if len(left := written - set(predicted.tolist())) == 1 and (fed >= 0).any():
            predicted[np.flatnonzero(fed >= 0)[-1]] = left.pop()
        return predicted

    def _with_fillers(self, ids: Ids, filled_ids: Ids | None) -> Places:
        """Return, for each position, the index of the answer token there; -1 for none.

        Tokens that encode() fills in, such as the zero in 057 for 57, are found from `filled_ids`.
        """
        places = _places(ids, self.tokens)
        absent = np.flatnonzero((self.tokens == self.tokens[0]).all(axis=0))
        if self.filled is None or filled_ids is None or not len(absent):
            return places
        filler, known = self.tokens[0, absent[0]], np.flatnonzero(places >= 0)
        filler_ids = [ids[self.tokens[:, places[p]] == filler, p] for p in known]
        id_of_filler = np.concatenate(filler_ids)[:1] if filler_ids else np.arange(0)
        is_filler = (ids == id_of_filler).all(axis=0) if len(id_of_filler) else np.zeros(ids.shape[1], dtype=bool)
        filled = _places(filled_ids, self.filled.tokens)
        return np.where((places < 0) & is_filler & np.isin(filled, absent), filled, places)


def _random_answers(task: SequenceTask, n_written: int, n: int) -> list[str]:
    """Return `n` answers as texts with `n_written` random tokens each; long numbers do not begin with 0."""
    rng, writing, answers = stream(0, "random answers", n_written), AnswerTokens.of(task), list[str]()
    places = np.linspace(0, len(writing.tokens) - 1, min(len(writing.tokens), MOST_VALUES)).round().astype(int)
    for _ in range(MOST_TRIES * n):
        tokens = [writing.tokens[i] for i in rng.choice(places, size=n_written)]
        text = writing.join(tokens)
        if task.read_answer(text) is not None and (n_written == 1 or tokens[0] != "0"):
            answers.append(text)
        if len(answers) == n:
            return answers
    raise InputError(
        f"headcount could not generate random answers of {n_written} tokens to {task.name}, with which it finds the "
        "positions of tokens",
        ONE_POSITION,
    )


def question_shape(text: str) -> str:
    """Return the shape of a question: every digit becomes 0, and every letter becomes a.

    >>> question_shape("374+81"), question_shape("x = 12")
    ('000+00', 'a = 00')
    """
    return re.sub(r"[^\W\d_]", "a", re.sub(r"\d", "0", text))


def random_questions(task: SequenceTask, shape: str) -> Examples:
    """Return questions of a shape such as `000+00`, drawn from the task; if it has too few, with random digits."""
    rng = stream(0, f"random questions {shape}")
    drawn = (row for row in task.sample(rng, MOST_TRIES * N_PROBES) if question_shape(task.show(row)) == shape)
    rows = list(islice(drawn, N_PROBES))
    for _ in range(MOST_TRIES * N_PROBES):
        if len(rows) == N_PROBES:
            break
        text = re.sub("0+", lambda zeros: _random_number(len(zeros.group()), rng), shape)
        with suppress(InputError):
            rows += [row for row in task.parse(text) if task.show(row) == text]
    if len(rows) < 2:
        raise InputError(
            f"the task {task.name} accepts fewer than 2 random examples of the form {shape} (0: any digit, a: any "
            "letter)",
            ONE_POSITION,
        )
    return np.stack(rows)


def random_sequences(task: ClassTask, length: int) -> Examples:
    """Return random sequences of one length for a classifier, made of a few different words (tokens)."""
    rng = stream(0, "layout", length)
    words = sorted({word for row in task.sample(rng, N_PROBES) for word in task.show(row).split()}, key=len)
    few = [*words[:2], *rng.permutation(words)[: N_WORDS - 2]]  # the two shortest words, and random ones
    return np.concatenate([task.parse(" ".join(rng.choice(few, size=length))) for _ in range(N_PROBES)])


def _random_number(n_digits: int, rng: np.random.Generator) -> str:
    return "".join(str(rng.integers(int(n_digits > 1 and i == 0), 10)) for i in range(n_digits))


def ids_of(tensor: Tensor) -> Ids:
    """Return an integer for each value in a tensor [text, position], equal for equal values.

    A tensor with one axis has no positions.
    """
    values = tensor.detach().cpu().numpy()
    if values.ndim < 2:
        return np.zeros((len(values), 0), dtype=np.int64)
    flat = values.reshape(values.shape[0] * values.shape[1], -1)
    return np.unique(flat, axis=0, return_inverse=True)[1].reshape(values.shape[:2])


def _places(ids: Ids, tokens: Ids) -> Places:
    """Return, for each position, the index of the token whose values map one to one to the ids there; -1 for none."""
    codes = {code: place for place, code in enumerate(map(_code, tokens.T)) if any(code)}
    return np.array([codes.get(_code(column), -1) for column in ids.T], dtype=np.int64)


def _code(column: Ids) -> bytes:
    """Return a key of a column of ids; two columns have equal keys if their values map one to one.

    Values are numbered by first occurrence, so all bytes are 0 for a column that never changes.
    """
    _, first, which = np.unique(column, return_index=True, return_inverse=True)
    return first.argsort().argsort()[which].astype(np.uint8).tobytes()
