"""Compare decoded answers with the right ones: their format, places that never vary, and tokens never output."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headcount.auditing.audited_model import AuditedSequenceModel, Hits
from headcount.data.probing import AnswerTokens
from headcount.limits import RARELY
from headcount.stats import Proportion
from headcount.tasks.base import SequenceTask, Tokens

STOPS_EARLY, RUNS_ON, NO_ANSWER = "stop early", "go on after the right answer", "are not valid answers"
OTHER_ZEROS = "have other leading zeros than the task's answers"
MIN_TOKEN_COUNT = 20
"""A token is called missing only if it is the right one at this many places: fewer may all be wrong by chance."""
MIN_OTHERS_RIGHT = 0.5
"""A token is called missing only if other tokens at the same places are predicted correctly at least this often."""


Words = tuple[str, ...]
"""The tokens of one answer, as texts."""


@dataclass(frozen=True)
class DecodedAnswer:
    """One decoded answer and the right answer, with their tokens in the order in which the model writes them."""

    written: str
    """The text exactly as the model wrote it."""
    words: Words
    """The tokens of the decoded answer, in the format of the task (see AuditedSequenceModel.readable_answers)."""
    full: Words
    """The tokens of the right answer with all of its leading zeros."""
    plain: Words
    """The tokens of the right answer without leading zeros."""
    right: str
    """The right answer as people write it."""
    is_right: bool
    is_answer: bool
    """Whether the decoded text is a valid answer of the task."""
    has_other_zeros: bool
    """Whether the decoded value is right, but with another number of leading zeros than the task writes."""
    is_filled: bool
    """Whether the model writes all leading zeros in every valid answer."""

    @property
    def format_error(self) -> str:
        """What is wrong with the length or the format of the decoded answer; empty if nothing is."""
        if self.is_right:
            return ""
        if self.has_other_zeros:
            return OTHER_ZEROS
        others = [
            right for right in ((self.full,) if self.is_filled else (self.full, self.plain)) if right != self.words
        ]
        if any(right[: len(self.words)] == self.words for right in others):
            return STOPS_EARLY
        if any(self.words[: len(right)] == right for right in others):
            return RUNS_ON
        return "" if self.is_answer else NO_ANSWER


def writes_least_first(task: SequenceTask) -> bool:
    """Return whether the task writes the least significant token of an answer first."""
    return task.show_tokens(np.array([0, 1])) == AnswerTokens.of(task).join(task.tokens[1::-1])


def decoded_answers(model: AuditedSequenceModel) -> list[DecodedAnswer]:
    """Return all decoded answers. Tokens are reversed if the task writes the least significant token first."""
    task, readable = model.task, model.readable_answers
    texts = list(model.answers.texts) or [task.show_tokens(tokens) for tokens in model.decoded]
    step, split = -1 if writes_least_first(task) else 1, model.answer_tokens.split
    is_filled = readable.filled is None or (bool(readable.is_answer.any()) and not readable.filled.any())
    readable_texts = list(readable.texts) or texts
    rows = zip(texts, readable_texts, model.right_answers, map(task.answer, model.examples), model.right, strict=True)
    return [
        DecodedAnswer(
            written,
            split(text)[::step],
            split(task.show_tokens(right))[::step],
            split(answer)[::step],
            answer,
            bool(is_right),
            is_answer=task.read_answer(written) is not None,
            has_other_zeros=written != text == (written.lstrip("0") or "0"),
            is_filled=is_filled,
        )
        for written, text, right, answer, is_right in rows
    ]


# --- tokens by place --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """The tokens of all answers at one place: in a fixed column, or as leading digit, which may be in any column."""

    name: str
    is_first: bool
    """Whether the model writes the token at this place first."""
    column: int | None
    """The index of the place in the answer; None for the leading digit, whose column differs between answers."""
    predicted: Tokens
    """[example]: the token id that the model wrote at this place; -1 if it wrote none."""
    right: Tokens
    """[example]: the token id that is right at this place."""

    @property
    def constant(self) -> int | None:
        """The token id that nearly all answers have at this place; None if the tokens vary."""
        tokens = self.predicted[self.predicted >= 0]
        if not len(tokens):
            return None
        token = int(np.bincount(tokens).argmax())
        others = Proportion.count(tokens != token)
        return token if others.high < RARELY or not others.correct else None

    @property
    def has_enough_answers(self) -> bool:
        """Whether there are enough answers to call the place constant."""
        n = int((self.predicted >= 0).sum())
        return n > 0 and Proportion.of(0, n).high < RARELY


def answer_places(model: AuditedSequenceModel) -> list[Place]:
    """Return the tokens at each place of the answer and, if answers differ in length, of the leading digit."""
    answers, right = model.readable_answers, model.right_answers
    predicted, noun = np.where(answers.written, model.decoded, -1), model.task.words.place
    columns = [Place(f"{name} {noun}", i == 0, i, predicted[:, i], right[:, i]) for i, name in enumerate(model.places)]
    if answers.filled is None or not answers.filled.any() or answers.optional is None:
        return columns
    is_reversed = writes_least_first(model.task)
    leading = (
        _leading_tokens(predicted, predicted >= 0, is_reversed),
        _leading_tokens(right, ~answers.optional, is_reversed),
    )
    return [*columns, Place(f"{'last' if is_reversed else 'first'} {noun}", not is_reversed, None, *leading)]


def _leading_tokens(tokens: Tokens, is_written: Hits, is_reversed: bool) -> Tokens:
    """Return the most significant token that is written in each answer; -1 if no token is written."""
    tokens, is_written = (tokens[:, ::-1], is_written[:, ::-1]) if is_reversed else (tokens, is_written)
    leading = tokens[np.arange(len(tokens)), is_written.argmax(axis=1)]
    return np.where(is_written.any(axis=1), leading, -1)


def constant_columns(model: AuditedSequenceModel) -> dict[int, int]:
    """Return the columns of the answer whose decoded token never varies, each with its token id."""
    if not model.can_decode:
        return {}
    constants = {each.column: each.constant for each in answer_places(model)}
    return {column: token for column, token in constants.items() if column is not None and token is not None}


def is_constant_for_lack_of_others(model: AuditedSequenceModel, column: int, token: int) -> bool:
    """Return whether a column is constant only because the model never outputs the other tokens anywhere."""
    _, missing = missing_tokens(model)
    others = np.setdiff1d(model.right_answers[:, column], [token])
    return token not in missing and bool(np.isin(others, missing).all())


def missing_tokens(model: AuditedSequenceModel) -> tuple[Proportion, list[int]]:
    """Return the accuracy of all other tokens, and the ids of tokens that are never output where they are right."""
    right, (hits, is_counted), constants = model.right_answers, model.token_hits, constant_columns(model)
    is_counted = is_counted & np.array([column not in constants for column in range(right.shape[1])])
    missing = []
    for token in np.unique(right[is_counted]).tolist():
        is_token = is_counted & (right == token)
        is_other = is_counted & (right != token) & is_token.any(axis=0)
        share = Proportion.count(hits[is_token])
        is_rare = share.n >= MIN_TOKEN_COUNT and (not share.correct or share.high < RARELY)
        if is_rare and is_other.any() and Proportion.count(hits[is_other]).low > MIN_OTHERS_RIGHT:
            missing.append(token)
    rest = is_counted & ~np.isin(right, missing)
    return Proportion.count(hits[rest]) if rest.any() else Proportion.of(0, 1), missing
