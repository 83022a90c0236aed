"""Are decoded answers cut short, do they go on after their end, or are they no answers at all?

A loop with one step too few, an end token that was never trained or is not looked for, special tokens that are left in
the text: exact match is then 0 %, or that of the answers which happen to be short, whatever the model has learned. It
is seen in the texts: they begin as the right answer does and stop, or have it whole and go on. If one pass, fed the
right answer, is right there, then the model is not to blame.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np

from headcount.auditing.check import Check, Finding, failed, passed, warned
from headcount.auditing.observed import Hits, Observed
from headcount.auditing.written_answers import answer_texts, begins_as_given, has_separators, written_answers
from headcount.stats import Proportion
from headcount.tasks.base import SequenceTask

FEW = 0.01
"""Share of answers that one pass has right, above which a wrong length is a fault of decoding."""
MANY = 0.05
"""Share above which the model's own wrong lengths are told."""
BY_CHANCE = 0.2
"""Share of wrong answers that may look like that by chance, such as 777 where 77 is right."""
FIGURES = ("HC106", "HC303", "HC304", "HC702", "HC703", "HC802")
"""Checks that fail wherever decoded answers cannot be read."""
CAUSES = {
    "stop early": (
        "consistent with a decoding loop of too few steps, a last token that is cut off, or an end token that is "
        "looked for where it is not",
        "let generate() go on for as many tokens as an answer has, or until the end token",
    ),
    "go on after their end": (
        "consistent with a decoding loop that does not stop at the end token, or a model that was trained without one",
        "cut each answer off at its end token, or after as many tokens as an answer has",
    ),
    "are no answers": (
        "consistent with special tokens that are left in the text, ids that are turned into the wrong characters, or "
        "an output that is indexed wrongly",
        "let generate() return the answer as people write it, and nothing else",
    ),
}
"""By what answers of a wrong length do, the likely cause and what to change."""


def run(observed: Observed) -> Finding:
    """By the texts, and held against one pass."""
    kinds = np.array([each.kind for each in written_answers(observed)])
    is_wrong = kinds != ""
    wrong, blameless = Proportion.count(is_wrong), Proportion.count(is_wrong & _right_in_one_pass(observed))
    of_all_wrong = Proportion.of(wrong.correct, max(1, int((~observed.right).sum())))
    if of_all_wrong.low < BY_CHANCE or (blameless.low <= FEW and wrong.low <= MANY):
        return passed("decoded answers are of the right length", n=observed.n, wrong=wrong.correct)
    finding = _told(observed, kinds)
    cause, fix = CAUSES[max(CAUSES, key=lambda kind: int((kinds == kind).sum()))]
    if blameless.low > FEW:
        one_pass = f"; one pass has every token of {blameless.correct:,} of these {wrong.correct:,} right"
        failure = failed(
            finding + one_pass, cause=cause, fix=fix, right_despite_fault=~is_wrong, n=observed.n, wrong=wrong.correct
        )
        return _separated(observed, failure) if has_separators(observed) else failure
    return warned(finding, cause=f"{cause}; or with a model that has not learned enough", fix=fix, wrong=wrong.correct)


def _separated(observed: Observed, failure: Finding) -> Finding:
    """Say what is right without the separators; other faults of decoding do not follow from these."""
    is_right = observed.right_without_separators
    return replace(
        failure,
        finding=f"{failure.finding}; without what stands between the digits, {int(is_right.sum()):,} are right",
        fix=f'{failure.fix}: join its digits with ""',
        explains=FIGURES,
    )


def _right_in_one_pass(observed: Observed) -> Hits:
    """[example]: every token of the answer, whatever is predicted at its end."""
    found = observed.sequences
    tokens = found.asked.any(axis=1) & found.teacher_forced_hits.all(axis=1)
    return np.asarray((tokens | found.forced_right) & begins_as_given(observed))


def _told(observed: Observed, kinds: np.ndarray) -> str:
    """Each way with its count and an example."""
    task, texts = cast(SequenceTask, observed.task), answer_texts(observed)
    told = []
    for kind in CAUSES:
        rows = np.flatnonzero(kinds == kind)
        if len(rows):
            row = int(rows[0])
            such_as = f"{texts[row][:40]!r} where {task.answer(observed.examples[row])} is right"
            told.append(f"{len(rows):,} of {observed.n:,} decoded answers {kind}, such as {such_as}")
    return "; ".join(told)


PART = Check(
    "HC105",
    "Are decoded answers cut short, do they go on after their end, or are they no answers at all?",
    run,
    asks="sequence",
    needs_decoding=True,
    is_quick=True,
    explains=tuple(sorted(("HC101", "HC102", "HC104", "HC301", *FIGURES))),
)
