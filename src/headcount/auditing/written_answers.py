"""What a model writes, beside the right answers: texts, places that never vary, and tokens that never come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from headcount.auditing.observed import Hits, Observed
from headcount.data.adapter_task import AdapterSequences
from headcount.stats import Proportion
from headcount.tasks.base import SequenceTask
from headcount.training.answers import RARELY

ENOUGH = 20
"""Times that a token has to be right."""
OTHERS = 0.5
"""Share of other tokens that are right at the same places, at least: a model that learned little misses them all."""


@dataclass(frozen=True)
class Written:
    """One decoded answer in the order of writing, beside the right one."""

    text: str
    full: str
    """The right answer with all of its leading zeros."""
    plain: str
    """The same as people write it."""
    is_right: bool
    is_answer: bool

    @property
    def kind(self) -> str:
        """In which of the ways it is of a wrong length; empty if in none."""
        rights = (self.full, self.plain)
        if self.is_right:
            return ""
        if any(right.startswith(self.text) for right in rights):
            return "stop early"
        if any(self.text.startswith(right) for right in rights):
            return "go on after their end"
        return "" if self.is_answer else "are no answers"


def answer_texts(observed: Observed) -> list[str]:
    """Decoded answers as they were written."""
    show = cast(SequenceTask, observed.task).show_tokens
    return list(observed.sequences.texts) or [show(tokens) for tokens in observed.free]


def written_answers(observed: Observed) -> list[Written]:
    """All of them, turned round where the task writes the least significant token first."""
    task = cast(SequenceTask, observed.task)
    is_turned = task.show_tokens(np.array([0, 1])) == task.tokens[1] + task.tokens[0]
    step = -1 if is_turned else 1
    rows = zip(answer_texts(observed), observed.right_answers, observed.examples, observed.right, strict=True)
    return [
        Written(
            text[::step],
            task.show_tokens(right)[::step],
            task.answer(example)[::step],
            bool(is_right),
            task.read_answer(text) is not None,
        )
        for text, right, example, is_right in rows
    ]


def begins_as_given(observed: Observed) -> Hits:
    """[example]: whether the right answer begins with what the decoder is handed, if anything."""
    if isinstance(observed.answers, AdapterSequences):
        return observed.answers.begins_right(observed.examples)
    given = cast(SequenceTask, observed.task).decoding_start.given
    return np.asarray((observed.right_answers[:, : len(given)] == given).all(axis=1))


# --- tokens by place ---


def token_hits(observed: Observed) -> tuple[Hits, Hits]:
    """[example, place]: right, and whether that is known; decoded, or from one pass where that gave no answer."""
    found = observed.sequences
    if found.free is None:
        return found.teacher_forced_hits, found.asked
    is_answer = (found.free >= 0).all(axis=1, keepdims=True)
    return np.where(is_answer, found.free_hits, found.teacher_forced_hits), is_answer | found.asked


def constant_places(observed: Observed) -> dict[int, int]:
    """By place that is not predicted as it seems, its one token."""
    if not observed.decodes:
        return {}
    free = observed.free[(observed.free >= 0).all(axis=1)]
    found = {}
    for place in range(free.shape[1] if len(free) else 0):
        token = int(np.bincount(free[:, place]).argmax())
        others = Proportion.count(free[:, place] != token)
        if not others.correct or others.high < RARELY:
            found[place] = token
    return found


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
