"""What a model writes, beside the right answers: texts, places that never vary, and tokens that never come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from headcount.auditing.observed import Hits, Observed
from headcount.data.adapter_task import AdapterSequences
from headcount.data.probing import AnswerTokens
from headcount.stats import Proportion
from headcount.tasks.base import SequenceTask, Tokens
from headcount.training.answers import RARELY, leading_zeros

ENOUGH = 20
"""Times that a token has to be right."""
OTHERS = 0.5
"""Share of other tokens that are right at the same places, at least: a model that learned little misses them all."""


@dataclass(frozen=True)
class Written:
    """One decoded answer in the task's tokens, in the order of writing, beside the right one."""

    text: tuple[str, ...]
    """The answer without separators."""
    full: tuple[str, ...]
    """The right answer with all of its leading zeros."""
    plain: tuple[str, ...]
    """The right answer as people write it."""
    is_right: bool
    is_answer: bool
    """Whether the answer as it was written, separators included, is an answer of the task."""
    is_filled: bool
    """Whether this model writes all leading zeros, in every answer that can be read."""

    @property
    def kind(self) -> str:
        """In which of the ways it is of a wrong length; empty if in none."""
        rights = (self.full,) if self.is_filled else (self.full, self.plain)
        if self.is_right:
            return ""
        if any(_begins_with(right, self.text) for right in rights):
            return "stop early"
        if any(_begins_with(self.text, right) for right in rights):
            return "go on after their end"
        return "" if self.is_answer else "are no answers"


def _begins_with(tokens: tuple[str, ...], others: tuple[str, ...]) -> bool:
    """Whether the tokens begin with others and go on after them."""
    return tokens != others and tokens[: len(others)] == others


def answer_texts(observed: Observed) -> list[str]:
    """Decoded answers as they were written."""
    show = cast(SequenceTask, observed.task).show_tokens
    return list(observed.sequences.texts) or [show(tokens) for tokens in observed.free]


def has_separators(observed: Observed) -> bool:
    """Whether answers can only be read without what stands between their tokens."""
    return observed.readable is not observed.sequences


def is_turned(task: SequenceTask) -> bool:
    """Whether the task writes the least significant token first."""
    return task.show_tokens(np.array([0, 1])) == AnswerTokens.of(task).join(task.tokens[1::-1])


def written_answers(observed: Observed) -> list[Written]:
    """All decoded answers, turned round where the task writes the least significant token first."""
    task = cast(SequenceTask, observed.task)
    writing = AnswerTokens.of(task)
    step, texts = -1 if is_turned(task) else 1, answer_texts(observed)
    readable, filled = list(observed.readable.texts) or texts, observed.readable.filled
    rows = zip(texts, readable, observed.right_answers, observed.examples, observed.right, strict=True)
    return [
        Written(
            writing.split(text)[::step],
            writing.split(task.show_tokens(right))[::step],
            writing.split(task.answer(example))[::step],
            bool(is_right),
            task.read_answer(raw) is not None,
            is_filled=filled is None or (bool(observed.readable.is_answer.any()) and not filled.any()),
        )
        for raw, text, right, example, is_right in rows
    ]


def begins_as_given(observed: Observed) -> Hits:
    """[example]: whether the right answer begins with what the decoder is handed, if anything."""
    if isinstance(observed.answers, AdapterSequences):
        return observed.answers.begins_right(observed.examples)
    given = cast(SequenceTask, observed.task).decoding_start.given
    return np.asarray((observed.right_answers[:, : len(given)] == given).all(axis=1))


# --- tokens by place ---


@dataclass(frozen=True)
class Place:
    """One place of the answers: a column, or the leading digit of numbers that are not filled up."""

    name: str
    is_first: bool
    """Whether it is written first."""
    column: int | None
    """Its index in the answer; None for the leading digit, which stands in several columns."""
    predicted: Tokens
    """[example]: the token that the model wrote there; -1 if none."""
    right: Tokens
    """[example]: the right token."""

    @property
    def constant(self) -> int | None:
        """The one token that nearly all answers have there; None if there is none."""
        found = self.predicted[self.predicted >= 0]
        if not len(found):
            return None
        token = int(np.bincount(found).argmax())
        others = Proportion.count(found != token)
        return token if others.high < RARELY or not others.correct else None

    @property
    def is_shown(self) -> bool:
        """Whether there are enough answers to call the place constant."""
        n = int((self.predicted >= 0).sum())
        return n > 0 and Proportion.of(0, n).high < RARELY


def answer_places(observed: Observed) -> list[Place]:
    """Every column, and the leading digit where answers are of several lengths; only what the model wrote counts."""
    found, right, task = observed.readable, observed.right_answers, cast(SequenceTask, observed.task)
    predicted = np.where(found.written, observed.free, -1)
    columns = [
        Place(f"{name} digit", i == 0, i, predicted[:, i], right[:, i]) for i, name in enumerate(observed.places)
    ]
    if found.filled is None or not found.filled.any() or found.optional is None:
        return columns
    turned = is_turned(task)
    leading = _leading(predicted, predicted >= 0, turned), _leading(right, ~found.optional, turned)
    return [*columns, Place(f"{'last' if turned else 'first'} digit", not turned, None, *leading)]


def _leading(tokens: Tokens, is_there: Hits, is_turned: bool) -> Tokens:
    """[example]: the most significant token that is there; -1 if none is."""
    tokens, is_there = (tokens[:, ::-1], is_there[:, ::-1]) if is_turned else (tokens, is_there)
    found = tokens[np.arange(len(tokens)), is_there.argmax(axis=1)]
    return np.where(is_there.any(axis=1), found, -1)


def token_hits(observed: Observed) -> tuple[Hits, Hits]:
    """[example, place]: right, and whether that counts; decoded, or from one pass where that gave no answer.

    A leading zero that the model did not write does not count.
    """
    found = observed.readable
    if found.free is None:
        return found.teacher_forced_hits, found.asked
    is_answer = found.is_answer[:, None]
    hits = np.where(is_answer, found.written_hits, found.teacher_forced_hits)
    return hits, np.where(is_answer, found.counted, found.asked)


def has_to_be_written(observed: Observed) -> Hits:
    """[example, place]: whether an answer of this model has this token: all but leading zeros that it leaves out."""
    found = observed.readable
    if found.free is None or found.optional is None:
        return found.asked | ~leading_zeros(cast(SequenceTask, observed.task), observed.right_answers)
    return np.where(found.is_answer[:, None], found.counted, found.asked | ~found.optional)


def constant_places(observed: Observed) -> dict[int, int]:
    """By place that is not predicted as it seems, its one token."""
    if not observed.decodes:
        return {}
    places = [each for each in answer_places(observed) if each.column is not None and each.constant is not None]
    return {cast(int, each.column): cast(int, each.constant) for each in places}


def is_constant_for_lack_of_others(observed: Observed, place: int, token: int) -> bool:
    """Whether a place is constant only because every other token that is right there is never output anywhere."""
    _, missing = missing_tokens(observed)
    others = np.setdiff1d(observed.right_answers[:, place], [token])
    return token not in missing and bool(np.isin(others, missing).all())


def missing_tokens(observed: Observed) -> tuple[Proportion, list[int]]:
    """How often tokens that are not missing are right, at places that vary, and the missing ones."""
    right, (hits, is_known), constant = observed.right_answers, token_hits(observed), constant_places(observed)
    counts = is_known & np.array([place not in constant for place in range(right.shape[1])])
    missing = []
    for token in np.unique(right[counts]).tolist():
        mine = counts & (right == token)
        at_its_places = counts & (right != token) & mine.any(axis=0)
        own = Proportion.count(hits[mine])
        is_rare = own.n >= ENOUGH and (not own.correct or own.high < RARELY)
        if is_rare and at_its_places.any() and Proportion.count(hits[at_its_places]).low > OTHERS:
            missing.append(token)
    rest = counts & ~np.isin(right, missing)
    return Proportion.count(hits[rest]) if rest.any() else Proportion.of(0, 1), missing
