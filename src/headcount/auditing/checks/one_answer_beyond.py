"""Is there one answer to everything beyond the trained lengths?

Report 001: sinusoidal positions gave 99.65 % in range and "exactly 50 %" beyond it, which reads as chance level; the
answer was "unsorted" to every long sequence. Reports 002 to 004 compared encodings by such figures. Fresh sequences of
two, four and eight times the longest trained length, half of them sorted, show it.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from headcount.auditing.check import LONGER, Check, Finding, not_applicable, passed, warned
from headcount.auditing.observed import Observed
from headcount.errors import HeadcountError
from headcount.tasks.base import ClassTask, Examples
from headcount.training.answers import constant_answer

TIMES = (2, 4, 8)
"""How many times as long as the longest in training."""
N = 200
PROBE, SEVERAL = 3, 3
"""Every third example is asked first: if two answers come so often among those, the rest need not be asked."""
MOST_TOKENS = 2**16
"""Longer sequences than this allows for are left out: attention takes the square of their length."""


def run(observed: Observed) -> Finding:
    """Length by length; one that the model refuses does not count."""
    task = cast(ClassTask, observed.task)
    trained = observed.trained_lengths
    constant, varied, refused = dict[int, str](), list[int](), list[int]()
    for length in (trained[1] * times for times in TIMES if trained[1] * times * N <= MOST_TOKENS):
        examples = fresh_examples(observed.rng(f"one answer at {length}"), task, length)
        try:
            answer = _one_answer(observed, examples)
        except HeadcountError:
            refused.append(length)
            continue
        if answer is None:
            varied.append(length)
        else:
            constant[length] = answer
    told = f"; it refuses {_listed(refused)}" if refused else ""
    if not constant and not varied:
        return not_applicable(f"no longer sequences than in training can be asked{told}")
    if not constant:
        return passed(f"both answers are given at {_listed(varied)}, {N} sequences each{told}", n=N)
    return _warning(constant, trained, told)


def _one_answer(observed: Observed, examples: Examples) -> str | None:
    """The one that all of them have, if it is one."""
    answers = np.bincount(observed.classify(examples[::PROBE]).predicted)
    if (answers >= SEVERAL).sum() > 1:
        return None
    found = observed.classify(examples)
    return constant_answer(found.predicted, found.labels, cast(ClassTask, observed.task).classes)


def fresh_examples(rng: np.random.Generator, task: ClassTask, length: int) -> Examples:
    """`N` of one length: half of the last class, and as many of each kind of the first."""
    each = N // 2 // len(task.negatives)
    negatives = [task.sample_of_length(rng, length, kind, each) for kind in task.negatives]
    rest = task.sample_of_length(rng, length, None, N - each * len(negatives))
    return np.concatenate([*negatives, rest])


def _warning(constant: dict[int, str], trained: tuple[int, int], told: str) -> Finding:
    shares = ", ".join(f"{answer} at {length}" for length, answer in constant.items())
    return warned(
        f"beyond the trained lengths, {trained[0]} to {trained[1]}, there is one answer to everything "
        f"({shares}; {N} sequences each, half of them of either class): accuracy there would read as the class "
        f"share, 50.0 % of a balanced set{told}",
        cause="consistent with positions or lengths that training never showed, which push every sequence to one side",
        fix="report the share of each answer beside accuracy at every length, and compare no encodings by the "
        "accuracy of a constant answer",
        begins_at=min(constant),
        lengths=_listed(list(constant)),
        n=N,
    )


def _listed(lengths: list[int]) -> str:
    return ", ".join(map(str, lengths))


PART = Check(
    "HC302", "Is there one answer to everything beyond the trained lengths?", run, asks="class", affects=LONGER
)
