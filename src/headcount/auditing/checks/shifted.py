"""Are decoded answers the right ones, one place off or backwards?

Generation off by one was found in several submissions: the start token is returned as a digit, the first digit is
dropped, logits are read one position before the last. A model can be perfect and score 0 %, or the share of answers
that look the same when they are moved. It is seen by moving the right answers and comparing, over answers that are
wrong in more than the first or the last token: what is wrong there alone has other causes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np

from headcount.auditing.check import Check, Finding, failed, not_applicable, passed
from headcount.auditing.observed import Hits, Observed
from headcount.auditing.written_answers import Written, written_answers
from headcount.data.probing import AnswerTokens
from headcount.stats import Proportion
from headcount.tasks.base import SequenceTask

LEAST_PLACES = 3
"""Answers of fewer tokens look moved by chance."""
ENOUGH, OFTEN, MOST, VARIED = 20, 0.05, 0.5, 5
"""Answers that are wrong in more than one token, in number and as a share; of these, the moved ones; different ones."""
Tokens = tuple[str, ...]
Move = Callable[[Tokens, Tokens], Tokens]
"""From what was written and a right answer to that answer, moved; tokens that it does not have are taken as written."""
MOVES: dict[str, Move] = {
    "one place late": lambda text, right: text[:1] + right[:-1],
    "behind one token too many": lambda text, right: text[:1] + right,
    "one place early": lambda text, right: right[1:] + text[-1:],
    "without the first token": lambda text, right: right[1:],
    "backwards": lambda text, right: right[::-1],
}
FORWARDS = (
    "consistent with a generate() that is off by one: the start token is returned, the first token is dropped, or "
    "logits are read at another position than the last",
    "read the logits of the last position, and return what follows the start token",
)
BACKWARDS = (
    "consistent with a model that writes the least significant digit first, whose answers are not turned round",
    'turn answers round in generate(), and say settings = {"least_first": True} if the task is to be asked so',
)


def run(observed: Observed) -> Finding:
    """Every way of moving right answers, against what was decoded."""
    if len(observed.places) < LEAST_PLACES:
        return not_applicable(f"answers of fewer than {LEAST_PLACES} tokens may look moved by chance")
    answers, displaced = written_answers(observed), _displaced(observed)
    n, rows = int(displaced.sum()), np.flatnonzero(displaced)
    name, form, count = max(
        ((name, form, _moved(answers, rows, name, form)) for name in MOVES for form in ("full", "plain")),
        key=lambda each: each[2],
    )
    if n < max(ENOUGH, OFTEN * observed.n) or Proportion.of(count, n).low < MOST:
        return passed("decoded answers are in their place", n=observed.n, wrong_in_several_places=n, moved=count)
    row = next(int(row) for row in rows if _is_moved(answers[row], name, form))
    join = AnswerTokens.of(cast(SequenceTask, observed.task)).join
    cause, fix = BACKWARDS if name == "backwards" else FORWARDS
    return failed(
        f"decoded answers are the right ones {name}, such as {join(answers[row].text)} where "
        f"{join(answers[row].plain)} is right: "
        f"{count:,} of {n:,} that are wrong in more than the first or the last token (n = {observed.n:,})",
        cause=cause,
        fix=fix,
        right_despite_fault=_right_when_moved(observed, answers, name, form),
        moved=count,
        n=observed.n,
        move=name,
    )


def _displaced(observed: Observed) -> Hits:
    """[example]: wrong in more than the first or the last token, and not because it stops early."""
    free, right = observed.free, observed.right_answers
    in_place = (free[:, 1:] == right[:, 1:]).all(axis=1) | (free[:, :-1] == right[:, :-1]).all(axis=1)
    stops = np.array([each.kind == "stop early" for each in written_answers(observed)])
    return np.asarray(~in_place & ~stops)


def _is_moved(answer: Written, name: str, form: str) -> bool:
    return answer.text == MOVES[name](answer.text, getattr(answer, form))


def _moved(answers: list[Written], rows: np.ndarray, name: str, form: str) -> int:
    """How many of these are right ones that were moved so; none if they are a few texts again and again."""
    moved = [answers[row].text for row in rows if _is_moved(answers[row], name, form)]
    return len(moved) if len(set(moved)) >= VARIED else 0


def _right_when_moved(observed: Observed, answers: list[Written], name: str, form: str) -> Hits:
    """[example]: right answers that are the same when they are moved."""
    moved = [MOVES[name](each.text, getattr(each, form)) for each in answers]
    rights = [(each.full, each.plain) for each in answers]
    return np.array([each in right for each, right in zip(moved, rights, strict=True)])


PART = Check(
    "HC103",
    "Are decoded answers the right ones, one place off or backwards?",
    run,
    asks="sequence",
    needs_decoding=True,
    is_quick=True,
    explains=("HC101", "HC102", "HC104", "HC105", "HC106", "HC303", "HC304", "HC702", "HC703", "HC802"),
)
