"""Does the position vector of a place depend on the length of the sequence?

Published report 000 multiplied positions by 512 / length and called them sinusoidal: its model recognised 100 % of
shuffled sequences at every length, and 0 % of sequences with one adjacent swap. The check compares the vectors that the
first attention block reads for a sequence and for the same sequence with more numbers behind it. Before attention mixes
tokens, the vectors of the first numbers must stay the same. There are two controls: the same sequence again (positions
may be random), and other numbers behind it (something else may mix the tokens).
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from headcount.auditing.audited_model import AuditedClassifier
from headcount.auditing.check import Check, Finding, failed, not_applicable, passed
from headcount.auditing.embeddings import MIXED, NOT_FOUND, first_stream
from headcount.errors import HeadcountError
from headcount.tasks.base import Examples

N_SEQUENCES = 7
"""Number of sequences: an unusual number, so that the axis of rows cannot be mistaken for that of positions."""
MAX_CHANGE = 1e-3
"""Largest change of vectors, as a fraction of their norm, that rounding can cause."""
MAX_REPEAT_CHANGE = MAX_CHANGE / 10
"""If vectors change by more than this between two passes on one sequence, positions are drawn at random."""
MIXING_FACTOR = 3
"""The length is blamed for a change of vectors only if other numbers at the end change them this many times less."""


def run(model: AuditedClassifier) -> Finding:
    """Fail if the first numbers of a sequence get other embeddings when the sequence becomes longer."""
    task, (short, long) = model.task, model.trained_lengths
    long = long if short < long else 2 * long
    longer = task.sample_of_length(model.rng("length dependent"), long, task.negatives[0], N_SEQUENCES)
    shorter, refilled = longer[:, :short], np.concatenate([longer[:, :short], np.roll(longer[:, short:], 1, 0)], axis=1)
    n_first = max(1, short // 2)
    if not _begin_alike(model.inputs(shorter), model.inputs(longer), n_first):
        return not_applicable("the first numbers of a longer sequence are encoded at other positions")
    streams = [first_stream(model, each) for each in (shorter, shorter, longer, refilled)]
    vectors = [each[:, :n_first] for each in streams if each is not None and each.shape[1] >= n_first]
    if len(vectors) < len(streams):
        return not_applicable(NOT_FOUND)
    if _change(vectors[0], vectors[1]) > MAX_REPEAT_CHANGE:
        return not_applicable("the embeddings of the same sequence differ between two passes")
    by_length, by_mixing = _change(vectors[0], vectors[2]), _change(vectors[2], vectors[3])
    if by_length > max(MAX_CHANGE, MIXING_FACTOR * by_mixing):
        if _counts_from_the_end(model, longer, short, n_first):
            finding = "positions are counted from the end of the sequence, where embeddings stay the same"
            return passed(finding, moved=by_length, n=N_SEQUENCES)
        return _failure(model, by_length, short, long)
    if by_mixing > MAX_CHANGE:
        return not_applicable(MIXED)
    return passed(
        f"the embeddings of the first {n_first} numbers stay the same when a sequence grows from {short} to {long}",
        moved=by_length,
        n=N_SEQUENCES,
    )


def _failure(model: AuditedClassifier, change: float, short: int, long: int) -> Finding:
    """Return the failure for embeddings that change with the length, unless positions are random by design."""
    if n_ids := _random_ids(model):
        return passed(f"positions are drawn at random from {n_ids:,} ids, as in training, so they depend on the length")
    return failed(
        f"the embeddings of the first numbers change by {100 * change:.0f} % of their size when a sequence grows from "
        f"{short} to {long} numbers, although the numbers and their places stay the same",
        cause="consistent with positions that are divided by the length of the sequence: a position then is a fraction "
        "of the length, with which a model can detect shuffled sequences without comparing neighbours",
        fix="count positions 0, 1, 2, ... at every length, or report that positions are divided by the length",
        moved=change,
        shorter=short,
        longer=long,
        n=N_SEQUENCES,
    )


def _counts_from_the_end(model: AuditedClassifier, longer: Examples, short: int, n_last: int) -> bool:
    """Return whether the last numbers keep their embeddings when more numbers are put before them."""
    streams = [first_stream(model, each) for each in (longer[:, -short:], longer)]
    vectors = [each[:, -n_last:] for each in streams if each is not None and each.shape[1] >= n_last]
    return len(vectors) == len(streams) and _change(*vectors) <= MAX_CHANGE


def _begin_alike(one: Sequence[Tensor], other: Sequence[Tensor], n_first: int) -> bool:
    """Return whether both inputs begin with the same `n_first` values. If an encoder pads at the start, they do not."""
    return any(
        a.dim() > 1 and a.shape[1] >= n_first and torch.equal(a[:, :n_first], b[:, :n_first])
        for a, b in zip(one, other, strict=True)
    )


def _change(one: Tensor, other: Tensor) -> float:
    return float((other - one).norm() / one.norm().clamp(min=1e-30))


def _random_ids(model: AuditedClassifier) -> int | None:
    try:
        return model.opened.encoding_in_use().random_positions
    except HeadcountError:
        return None


PART = Check("HC504", "Does the position vector of a place depend on the length of the sequence?", classes=run)
