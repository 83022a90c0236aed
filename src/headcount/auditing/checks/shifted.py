"""Are decoded answers the right ones, shifted by one place or reversed?

In several submitted models, generate() is off by one: it returns the start token as a digit, drops the first digit, or
reads logits one position before the last. A perfect model then scores 0 %, or the share of answers that look the same
when they are shifted. The check shifts the right answers and compares them with the decoded answers that are wrong in
more than the first or the last token, because errors in these alone have other causes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headcount.auditing.audited_model import AuditedSequenceModel, Hits
from headcount.auditing.check import Check, Finding, failed, not_applicable, passed
from headcount.auditing.decoded_answers import STOPS_EARLY, DecodedAnswer, Words, decoded_answers
from headcount.stats import Proportion

MIN_PLACES = 3
"""Minimum number of tokens in an answer: shorter answers look shifted by chance."""
MIN_DISPLACED, MIN_DISPLACED_SHARE = 20, 0.05
"""Smallest number of answers wrong in more than the first or last token: as a count, and as a fraction of all."""
MIN_SHIFTED = 0.5
"""Fraction of the answers wrong in several tokens that one kind of shift must explain (lower end of the 95 % CI)."""
MIN_DIFFERENT = 5
"""Minimum number of different texts among the answers that look shifted: a few repeated texts may match by chance."""
Move = Callable[[Words, Words], Words]
"""A function of the right and the decoded answer. It returns the right answer shifted or reversed; a token that is
then missing comes from the decoded answer."""
MOVES: dict[str, Move] = {
    "one place late": lambda words, right: words[:1] + right[:-1],
    "behind one token too many": lambda words, right: words[:1] + right,
    "one place early": lambda words, right: right[1:] + words[-1:],
    "without the first token": lambda words, right: right[1:],
    "backwards": lambda words, right: right[::-1],
}
FORWARDS = (
    "consistent with a generate() that is off by one: the start token is returned, the first token is dropped, or "
    "logits are read at another position than the last",
    "read the logits of the last position, and return what follows the start token",
)
BACKWARDS = (
    "consistent with a model that writes the least significant digit first, whose answers are not reversed",
    "reverse the answers in generate(); if the task should write the least significant digit first too, set settings = "
    '{"least_first": True}',
)


def run(model: AuditedSequenceModel) -> Finding:
    """Fail if wrong decoded answers are the right answers, shifted by one place or reversed."""
    if len(model.places) < MIN_PLACES:
        return not_applicable(
            f"wrong answers of fewer than {MIN_PLACES} tokens may look like shifted right answers by chance"
        )
    answers = decoded_answers(model)
    rows = np.flatnonzero(_displaced(model, answers))
    name, form, count = max(
        ((name, form, _n_moved(answers, rows, name, form)) for name in MOVES for form in ("full", "plain")),
        key=lambda each: each[2],
    )
    n = len(rows)
    if n < max(MIN_DISPLACED, MIN_DISPLACED_SHARE * model.n) or Proportion.of(count, n).low < MIN_SHIFTED:
        return passed(
            "decoded answers are neither shifted nor reversed", n=model.n, wrong_in_several_places=n, moved=count
        )
    row = next(int(row) for row in rows if _is_moved(answers[row], name, form))
    cause, fix = BACKWARDS if name == "backwards" else FORWARDS
    return failed(
        f"{n:,} of {model.n:,} decoded answers are wrong in more than the first or the last token, and {count:,} of "
        f"these are the right answer {name}, such as {answers[row].written} where {answers[row].right} is right",
        cause=cause,
        fix=fix,
        right_despite_fault=_right_when_moved(answers, name, form),
        moved=count,
        n=model.n,
        move=name,
    )


def _displaced(model: AuditedSequenceModel, answers: list[DecodedAnswer]) -> Hits:
    """Return for each example whether more than its first or last token is wrong and decoding did not stop early."""
    decoded, right = model.decoded, model.right_answers
    in_place = (decoded[:, 1:] == right[:, 1:]).all(axis=1) | (decoded[:, :-1] == right[:, :-1]).all(axis=1)
    return np.asarray(~in_place & np.array([each.format_error != STOPS_EARLY for each in answers]))


def _is_moved(answer: DecodedAnswer, name: str, form: str) -> bool:
    return answer.words == MOVES[name](answer.words, getattr(answer, form))


def _n_moved(answers: list[DecodedAnswer], rows: np.ndarray, name: str, form: str) -> int:
    """Return how many decoded answers are the right answer shifted in this way; 0 if these are a few repeated texts."""
    texts = [answers[row].words for row in rows if _is_moved(answers[row], name, form)]
    return len(texts) if len(set(texts)) >= MIN_DIFFERENT else 0


def _right_when_moved(answers: list[DecodedAnswer], name: str, form: str) -> Hits:
    """Return for each example whether shifting its right answer leaves it unchanged, as 777 is."""
    moved = [MOVES[name](each.words, getattr(each, form)) for each in answers]
    return np.array([words in (each.full, each.plain) for words, each in zip(moved, answers, strict=True)])


PART = Check(
    "HC103",
    "Are decoded answers the right ones, shifted by one place or reversed?",
    sequences=run,
    needs_decoding=True,
    is_quick=True,
)
