"""Does the author's own scoring look at every place of an answer, and at every token?

Report 001 scored with zero digits masked, report 002 never asked for the first digit: a wrong answer had full marks,
and 34.9 % became 99.85 %. Right answers are changed here in one place at a time; the score has to fall.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from headcount.auditing.check import CONCLUSIONS, Check, Finding, failed, not_applicable, passed
from headcount.auditing.observed import Observed
from headcount.data.from_adapter import pairs_of
from headcount.external.adapter import Adapter
from headcount.external.user_code import user_code_errors
from headcount.tasks.base import ClassTask, Examples, SequenceTask

N_TRIED = 60
"""Right answers that are changed."""
OTHERS = 3
"""Digits that each is changed to."""
ENOUGH = 5
"""Changes that cost nothing, before it is said that such a change never does."""
Score = Callable[[str, str, str], float]


def run(observed: Observed) -> Finding:
    """Change right answers, and see what it costs."""
    adapter = observed.adapter
    if adapter is None or type(adapter).metric is Adapter.metric:
        return not_applicable("there is no scoring of the author's: an adapter's metric()")
    with user_code_errors(adapter, "metric"):
        if observed.task.output_type == "class":
            return _finding(adapter, *_classes(observed, adapter.metric))
        return _finding(adapter, *_places(observed, adapter.metric))


def _finding(adapter: Adapter, skipped: Sequence[str], n: int) -> Finding:
    name = f"metric() of {type(adapter).__name__}"
    if not n:
        return not_applicable(f"{name} gives no marks to right answers, as they are written here")
    if not skipped:
        return passed(f"{n:,} wrong answers have less than full marks by {name}", n=n)
    return failed(
        f"{name} gives full marks to wrong answers: {'; '.join(skipped)}, in {n:,} answers that were made wrong",
        cause="consistent with a mask that takes a token for padding, with labels that leave out a place, or with a "
        "comparison that stops where the shorter answer ends",
        fix="compare the whole answer, every token of it: float(predicted == answer)",
        n=n,
        skipped="; ".join(skipped),
    )


def _classes(observed: Observed, score: Score) -> tuple[list[str], int]:
    """Wrong classes that cost nothing."""
    task = cast(ClassTask, observed.task)
    free: dict[str, list[bool]] = {}
    for question, answer in pairs_of(task, _some(observed)):
        full = score(question, answer, answer)
        for other in task.classes:
            if other != answer and full > 0:
                free.setdefault(f"{other} for {answer}", []).append(score(question, answer, other) >= full)
    return [f"{what} costs nothing" for what, each in free.items() if _is_free(each)], sum(map(len, free.values()))


def _places(observed: Observed, score: Score) -> tuple[list[str], int]:
    """Places and digits that are not compared, and answers that stop early."""
    task, rng = cast(SequenceTask, observed.task), observed.rng("metric")
    places: dict[str, list[bool]] = {place: [] for place in observed.places}
    digits: dict[tuple[str, str], list[bool]] = {}
    short: list[bool] = []
    for question, answer, text in _written(observed, score):
        full, before = score(question, answer, text), task.read_answer(text)
        short.append(score(question, answer, text[:-1]) >= full)
        for i, old in enumerate(text):
            for new in rng.permutation([each for each in "0123456789" if each != old])[:OTHERS]:
                after = task.read_answer(changed := text[:i] + str(new) + text[i + 1 :])
                if before is None or after is None:
                    continue
                costs_nothing = score(question, answer, changed) >= full
                places[observed.places[int((before != after).argmax())]].append(costs_nothing)
                digits.setdefault(("right", old), []).append(costs_nothing)
                digits.setdefault(("written", str(new)), []).append(costs_nothing)
    skipped = [f"a wrong {place} digit costs nothing" for place, each in places.items() if _is_free(each)]
    if not skipped:
        told = {
            "right": "where {} is right it is never compared",
            "written": "where {} is written it is never compared",
        }
        skipped = [told[which].format(digit) for (which, digit), each in sorted(digits.items()) if _is_free(each)]
    if _is_free(short):
        skipped.append("an answer without its last digit costs nothing")
    return skipped, sum(map(len, places.values()))


def _some(observed: Observed) -> Examples:
    """Examples from everywhere, for classes may stand in order."""
    return observed.examples[observed.rng("metric").permutation(observed.n)[:N_TRIED]]


def _is_free(costs_nothing: Sequence[bool]) -> bool:
    return len(costs_nothing) >= ENOUGH and all(costs_nothing)


def _written(observed: Observed, score: Score) -> list[tuple[str, str, str]]:
    """Questions, right answers, and these in the form that is given the best marks: with leading zeros, or without."""
    task, examples = cast(SequenceTask, observed.task), _some(observed)
    pairs, tokens = pairs_of(task, examples), task.encode(examples).answer
    forms = [[task.show_tokens(each) for each in tokens], [answer for _, answer in pairs]]
    marks = [np.array([score(*pair, text) for pair, text in zip(pairs, form, strict=True)]) for form in forms]
    best = int(marks[1].mean() > marks[0].mean())
    kept = np.flatnonzero(marks[best] > 0).tolist()
    return [(*pairs[i], forms[best][i]) for i in kept]


PART = Check(
    "HC803",
    "Does the author's scoring look at every place of an answer?",
    run,
    explains=("HC802",),
    affects=CONCLUSIONS,
)
