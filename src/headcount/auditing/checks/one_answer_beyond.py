"""Does the model give one answer to everything beyond the training lengths?

In published report 001, sinusoidal positions reached 99.65 % at the training lengths and "exactly 50 %" beyond them,
which looks like chance: the model called every long sequence unsorted. The reports 002 to 004 compared encodings by
such accuracies. The check uses new sequences of two, four and eight times the longest training length, half of them
sorted.
"""

from __future__ import annotations

import numpy as np

from headcount.auditing.audited_model import AuditedClassifier
from headcount.auditing.check import LONGER, Check, Finding, not_applicable, passed, warned
from headcount.errors import HeadcountError
from headcount.tasks.base import ClassTask, Examples
from headcount.training.answers import constant_answer

LENGTH_FACTORS = (2, 4, 8)
"""The lengths to try, as multiples of the longest training length."""
N_SEQUENCES = 200
"""Number of sequences of each length: one answer to 125 of them already shows that the other answers are rare."""
PROBE_STEP, MIN_PROBE_COUNT = 3, 3
"""Every third sequence is classified first. If two answers occur three times each, the others are skipped."""
MAX_TOKENS = 2**16
"""Largest number of tokens in all sequences of one length; attention costs grow with the square of the length."""


def run(model: AuditedClassifier) -> Finding:
    """Warn if the model gives one answer to everything at lengths beyond training."""
    shortest, longest = model.trained_lengths
    constants, varied, refused = dict[int, str](), list[str](), list[str]()
    for length in (longest * factor for factor in LENGTH_FACTORS if longest * factor * N_SEQUENCES <= MAX_TOKENS):
        examples = fresh_examples(model.rng(f"one answer at {length}"), model.task, length)
        try:
            answer = _one_answer(model, examples)
        except HeadcountError:
            refused.append(str(length))
            continue
        if answer is None:
            varied.append(str(length))
        else:
            constants[length] = answer
    refusal = f"; the model refuses {', '.join(refused)}" if refused else ""
    if not constants and not varied:
        return not_applicable(f"the model takes no sequences longer than in training{refusal}")
    if not constants:
        finding = f"the model gives several answers at length {', '.join(varied)}, {N_SEQUENCES} sequences each"
        return passed(finding + refusal, n=N_SEQUENCES)
    answers = ", ".join(f"{answer} at {length}" for length, answer in constants.items())
    return warned(
        f"at lengths beyond those of training ({shortest} to {longest}), the model gives the same answer to every "
        f"sequence of one length ({answers}; {N_SEQUENCES} sequences each, half of each class): its accuracy there is "
        f"only the share of that class, 50.0 % of a balanced set{refusal}",
        cause="consistent with positions or lengths that did not occur in training and favour one class",
        fix="report the share of each answer beside accuracy at every length, and do not compare encodings by the "
        "accuracy of a constant answer",
        begins_at=min(constants),
        lengths=", ".join(map(str, constants)),
        n=N_SEQUENCES,
    )


def _one_answer(model: AuditedClassifier, examples: Examples) -> str | None:
    """Return the answer that nearly all examples get; None if the answers vary."""
    counts = np.bincount(model.classify(examples[::PROBE_STEP]).predicted)
    if (counts >= MIN_PROBE_COUNT).sum() > 1:
        return None
    answers = model.classify(examples)
    return constant_answer(answers.predicted, answers.labels, model.task.classes)


def fresh_examples(rng: np.random.Generator, task: ClassTask, length: int) -> Examples:
    """Return new sequences of one length: half of the last class, the others in equal numbers of each other kind."""
    n_each = N_SEQUENCES // 2 // len(task.negatives)
    negatives = [task.sample_of_length(rng, length, kind, n_each) for kind in task.negatives]
    rest = task.sample_of_length(rng, length, None, N_SEQUENCES - n_each * len(negatives))
    return np.concatenate([*negatives, rest])


PART = Check(
    "HC302", "Does the model give one answer to everything beyond the training lengths?", classes=run, affects=LONGER
)
