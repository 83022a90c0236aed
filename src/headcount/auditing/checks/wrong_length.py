"""Do decoded answers stop early, go on after the right answer, or have another format?

A decoding loop with one step too few, an end token that was never trained or is not looked for, or special tokens that
stay in the text make nearly all answers wrong, whatever the model has learned. The decoded texts show the fault: they
begin like the right answer and stop, or go on after it. If teacher forcing is right on these examples, the fault is in
decoding. Separators and a wrong number of leading zeros are a difference of format, not of value: exact match counts
such answers as wrong, and the check says how many are right without them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from headcount.auditing.audited_model import AuditedSequenceModel, Hits
from headcount.auditing.causes import DECODED_FIGURES
from headcount.auditing.check import Check, Finding, failed, passed, warned
from headcount.auditing.decoded_answers import (
    NO_ANSWER,
    OTHER_ZEROS,
    RUNS_ON,
    STOPS_EARLY,
    DecodedAnswer,
    decoded_answers,
)
from headcount.stats import Proportion

MAX_DECODING_ERRORS = 0.01
"""If more than this share of answers has a wrong length although teacher forcing is right, the fault is in decoding."""
MAX_MODEL_ERRORS = 0.05
"""If more than this share of answers has a wrong length, the check warns, even if decoding is not at fault."""
MAX_CHANCE_SHARE = 0.2
"""Share of wrong answers that may have a wrong length by chance, such as 777 where 77 is right."""
CAUSES = {
    STOPS_EARLY: (
        "consistent with a decoding loop of too few steps, a last token that is cut off, or an end token that is "
        "looked for in the wrong place",
        "let generate() go on for as many tokens as an answer has, or until the end token",
    ),
    RUNS_ON: (
        "consistent with a decoding loop that does not stop at the end token, or a model that was trained without one",
        "cut each answer off at its end token, or after as many tokens as an answer has",
    ),
    NO_ANSWER: (
        "consistent with special tokens that stay in the text, ids that are mapped to the wrong characters, or an "
        "output that is indexed wrongly",
        "let generate() return the answer as people write it, and nothing else",
    ),
    OTHER_ZEROS: (
        "a difference of format, not of value: generate() writes neither all leading zeros of the task nor none",
        "let generate() write every leading zero of the task's answers, or none",
    ),
}
"""For each kind of wrong length or format, its likely cause and the fix, in words."""


def run(model: AuditedSequenceModel) -> Finding:
    """Check decoded answers for a wrong length or format; teacher forcing shows whether decoding is at fault."""
    answers = decoded_answers(model)
    kinds = np.array([each.format_error for each in answers])
    is_wrong = kinds != ""
    wrong, by_decoding = Proportion.count(is_wrong), Proportion.count(is_wrong & _right_in_one_pass(model))
    of_all_wrong = Proportion.of(wrong.correct, max(1, int((~model.right).sum())))
    if of_all_wrong.low < MAX_CHANCE_SHARE or (
        by_decoding.low <= MAX_DECODING_ERRORS and wrong.low <= MAX_MODEL_ERRORS
    ):
        return passed("decoded answers have the right length", n=model.n, wrong=wrong.correct)
    finding = _counts(answers, kinds)
    cause, fix = CAUSES[max(CAUSES, key=lambda kind: int((kinds == kind).sum()))]
    if by_decoding.low <= MAX_DECODING_ERRORS:
        cause = f"{cause}; or with a model that has not learned enough"
        return warned(finding, cause=cause, fix=fix, wrong=wrong.correct)
    failure = failed(
        f"{finding}; under teacher forcing, {by_decoding.correct:,} of these {wrong.correct:,} answers are right",
        cause=cause,
        fix=fix,
        right_despite_fault=~is_wrong,
        n=model.n,
        wrong=wrong.correct,
    )
    is_read_otherwise = model.readable_answers is not model.answers
    return _with_readable_accuracy(model, failure, bool((kinds == OTHER_ZEROS).any())) if is_read_otherwise else failure


def _with_readable_accuracy(model: AuditedSequenceModel, failure: Finding, has_other_zeros: bool) -> Finding:
    """Add to a failure how many answers are right in the corrected format, and which checks it explains."""
    n_right = int(model.right_when_readable.sum())
    without = "these zeros" if has_other_zeros else "the separators between the digits"
    return replace(
        failure,
        finding=f"{failure.finding}; without {without}, {n_right:,} answers are right",
        fix=failure.fix if has_other_zeros else f'{failure.fix}: join its digits with ""',
        explains_only=(*DECODED_FIGURES, "HC304"),
    )


def _right_in_one_pass(model: AuditedSequenceModel) -> Hits:
    """Return for each example whether all answer tokens are right under teacher forcing; later tokens do not count."""
    answers = model.answers
    has_tokens = answers.asked.any(axis=1) & answers.teacher_forced_hits.all(axis=1)
    return np.asarray((has_tokens | answers.forced_right) & model.begins_as_given)


def _counts(answers: list[DecodedAnswer], kinds: np.ndarray) -> str:
    """Return in words how often each kind of wrong length or format occurs, each with an example."""
    sentences = []
    for kind in CAUSES:
        rows = np.flatnonzero(kinds == kind)
        if len(rows):
            first = answers[int(rows[0])]
            sentences.append(
                f"{len(rows):,} of {len(answers):,} decoded answers {kind}, such as {first.written[:40]!r} where "
                f"{first.right} is right"
            )
    return "; ".join(sentences)


PART = Check(
    "HC105",
    "Do decoded answers stop early, go on after the right answer, or have another format?",
    sequences=run,
    needs_decoding=True,
    is_quick=True,
)
