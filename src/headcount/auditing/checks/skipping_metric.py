"""Does the author's scoring compare every place and every token of an answer?

Published report 001 ignored the digit 0 in its scoring, and report 002 never compared the first digit: wrong answers
got full marks, and 34.9 % became 99.85 %. The check changes right answers in one place at a time, and fails if the
author's score does not fall.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from headcount.auditing.audited_model import AuditedClassifier, AuditedModel, AuditedSequenceModel
from headcount.auditing.check import CONCLUSIONS, Check, Finding, failed, not_applicable, passed
from headcount.data.from_adapter import cached_metric, pairs_of
from headcount.external.adapter import Adapter
from headcount.tasks.base import Examples

N_CHANGED = 60
"""Number of right answers to change: each place and each digit then occurs many times."""
N_REPLACEMENTS = 3
"""Number of other tokens that replace each token of an answer, one at a time."""
MIN_FREE = 5
"""A kind of mistake is reported only if at least this many answers with it get full marks from the author's score."""
Score = Callable[[str, str, str], float]
"""The author's metric(): takes a question, its right answer and a predicted answer, and returns a score."""


def check_sequences(model: AuditedSequenceModel) -> Finding:
    """Put a wrong token at each place of right answers; fail if the author's score does not fall."""
    return _check(model, partial(_skipped_tokens, model))


def check_classes(model: AuditedClassifier) -> Finding:
    """Replace right classes by wrong ones; fail if the author's score does not fall."""
    return _check(model, partial(_skipped_classes, model))


def _check(model: AuditedModel, find_skipped: Callable[[Score], tuple[list[str], int]]) -> Finding:
    """Return the finding about the author's metric(); `find_skipped` returns wrong answers with full marks."""
    adapter = model.adapter
    if adapter is None or type(adapter).metric is Adapter.metric:
        return not_applicable("the headcount.Adapter class has no metric(), so there is no scoring of its own to check")
    skipped, n = find_skipped(cached_metric(adapter))
    name = f"metric() of {type(adapter).__name__}"
    if not n:
        return not_applicable(f"{name} gives 0 to right answers in the task's format")
    if not skipped:
        return passed(f"{name} gives less than full marks to all {n:,} wrong answers", n=n)
    return failed(
        f"{name} gives full marks to wrong answers: {'; '.join(skipped)} (n = {n:,} changed answers)",
        cause="consistent with a mask that takes a token for padding, with labels that leave out a token, or with a "
        "comparison that stops where the shorter answer ends",
        fix="compare the whole answer, every token of it: float(predicted == answer)",
        n=n,
        skipped="; ".join(skipped),
    )


def _skipped_classes(model: AuditedClassifier, score: Score) -> tuple[list[str], int]:
    """Return the wrong classes that do not lower the author's score, as texts, and how many answers were tried."""
    is_free: dict[str, list[bool]] = {}
    for question, answer in pairs_of(model.task, _some_examples(model)):
        full = score(question, answer, answer)
        for other in model.task.classes:
            if other != answer and full > 0:
                is_free.setdefault(f"answering {other} instead of {answer}", []).append(
                    score(question, answer, other) >= full
                )
    skipped = [f"{what} does not lower the score" for what, each in is_free.items() if _all_free(each)]
    return skipped, _n_changes(is_free)


def _skipped_tokens(model: AuditedSequenceModel, score: Score) -> tuple[list[str], int]:
    """Return the places and tokens that the author's score ignores, as texts, and how many answers were tried."""
    task, rng, noun = model.task, model.rng("metric"), model.task.words.place
    used = {model.token(token) for token in np.unique(model.right_answers).tolist()}
    tokens = [each for each in task.tokens if each in used or each.isdigit()]
    places: dict[str, list[bool]] = {place: [] for place in model.places}
    by_token: dict[tuple[str, str], list[bool]] = {}
    short: list[bool] = []
    for question, answer, text in _scored_answers(model, score):
        words = model.answer_tokens.split(text)
        full, before = score(question, answer, text), task.read_answer(text)
        short.append(score(question, answer, model.answer_tokens.join(words[:-1])) >= full)
        for i, old in enumerate(words):
            for new in rng.permutation([each for each in tokens if each != old])[:N_REPLACEMENTS].tolist():
                after = task.read_answer(changed := model.answer_tokens.join([*words[:i], new, *words[i + 1 :]]))
                if before is None or after is None:
                    continue
                costs_nothing = score(question, answer, changed) >= full
                places[model.places[int((before != after).argmax())]].append(costs_nothing)
                by_token.setdefault(("right", old), []).append(costs_nothing)
                by_token.setdefault(("written", new), []).append(costs_nothing)
    skipped = [f"a wrong {place} {noun} does not lower the score" for place, each in places.items() if _all_free(each)]
    if not skipped:
        skipped = [
            f"places where {token} is {which} are never compared"
            for (which, token), each in sorted(by_token.items())
            if _all_free(each)
        ]
    if _all_free(short):
        skipped.append(f"leaving out the last {noun} does not lower the score")
    return skipped, _n_changes(places)


def _some_examples(model: AuditedModel) -> Examples:
    """Return some random examples. The first ones would not do, because a test set may be sorted by class."""
    return model.examples[model.rng("metric").permutation(model.n)[:N_CHANGED]]


def _all_free(costs_nothing: Sequence[bool]) -> bool:
    return len(costs_nothing) >= MIN_FREE and all(costs_nothing)


def _n_changes(is_free: dict[str, list[bool]]) -> int:
    return sum(map(len, is_free.values()))


def _scored_answers(model: AuditedSequenceModel, score: Score) -> list[tuple[str, str, str]]:
    """Return triples of question, right answer, and right answer in the format that the author's metric() expects.

    The format is the one with the higher mean score: with all leading zeros, or without. Examples whose right answer
    scores 0 are left out.
    """
    task, examples = model.task, _some_examples(model)
    pairs, tokens = pairs_of(task, examples), task.encode(examples).answer
    forms = [[task.show_tokens(each) for each in tokens], [answer for _, answer in pairs]]
    marks = [np.array([score(*pair, text) for pair, text in zip(pairs, form, strict=True)]) for form in forms]
    best = int(marks[1].mean() > marks[0].mean())
    kept = np.flatnonzero(marks[best] > 0).tolist()
    return [(*pairs[i], forms[best][i]) for i in kept]


PART = Check(
    "HC803",
    "Does the author's scoring compare every place and every token of an answer?",
    sequences=check_sequences,
    classes=check_classes,
    affects=CONCLUSIONS,
)
