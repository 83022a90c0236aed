"""Is one place of the answer no better than guessing, while all other places are learned?

One model was trained with a loss that left out the first digit. The model's first digits vary, so no place is constant
and no token is missing, and 37 % of its answers are right by chance. Exact match does not show which place is wrong.
The check compares the teacher-forced accuracy at each place with that of the most common token there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headcount.auditing.audited_model import AuditedSequenceModel
from headcount.auditing.check import Check, Finding, failed, not_applicable, passed
from headcount.formatting import percent
from headcount.stats import Proportion
from headcount.tasks.base import with_article

MAX_CONSTANT_SHARE = 0.95
"""A place is skipped if one token is right there more often than this: a guess would nearly always be right."""
MIN_LEARNED = 0.9
"""Minimum accuracy at all other places: a model that is still learning is below it at several places."""


@dataclass(frozen=True)
class PlaceAccuracy:
    """Teacher-forced accuracy at one place of the answer."""

    name: str
    column: int
    right: Proportion
    token: str
    """The most common right token at this place."""
    n_constant: int
    """Number of right answers that have the most common token at this place."""

    @property
    def is_guessed(self) -> bool:
        """Whether accuracy is not significantly above that of always outputting the most common token."""
        return self.right.low <= self.n_constant / self.right.n


def run(model: AuditedSequenceModel) -> Finding:
    """Look for a single place where teacher-forced accuracy is no better than that of the most common token."""
    places = _place_accuracies(model)
    if len(places) < 2:
        return not_applicable("right answers vary at fewer than two places")
    guessed = [each for each in places if each.is_guessed]
    lowest = min(each.right.rate for each in places if each not in guessed[:1])
    if len(guessed) != 1 or lowest < MIN_LEARNED:
        accuracies = ", ".join(f"{percent(each.right.rate)} at {with_article(each.name)}" for each in places)
        return passed(f"teacher-forced accuracy by place: {accuracies}", places=len(places), lowest=lowest, n=model.n)
    (place,) = guessed
    still_right = model.answers.teacher_forced_hits[:, place.column]
    return failed(
        f"the {place.name} {model.task.words.place} is right in {place.right.correct:,} of {place.right.n:,} answers, "
        f"no more than the {place.n_constant:,} of always predicting {place.token}; every other "
        f"{model.task.words.place} is right in at least {percent(lowest)} of answers",
        cause="consistent with a loss that leaves this token of the answer out, such as labels that are cut or shifted "
        "by one",
        fix="include every token of the answer in the loss, and train again",
        right_despite_fault=still_right,
        place=place.name,
        predicted=float(still_right.mean()),
        measured=float(model.right.mean()),
        n=model.n,
    )


def _place_accuracies(model: AuditedSequenceModel) -> list[PlaceAccuracy]:
    """Return the accuracy at each place whose right token varies, over the answers that have a label there."""
    answers, accuracies = model.answers, []
    for column, name in enumerate(model.places):
        rows = answers.asked[:, column]
        counts = np.bincount(model.right_answers[rows, column])
        if len(counts) and counts.max() <= MAX_CONSTANT_SHARE * rows.sum():
            right = Proportion.count(answers.teacher_forced_hits[rows, column])
            accuracies.append(PlaceAccuracy(name, column, right, model.token(int(counts.argmax())), int(counts.max())))
    return accuracies


PART = Check(
    "HC108",
    "Is one place of the answer no better than guessing, while all other places are learned?",
    sequences=run,
    is_quick=True,
)
