"""Does what is added at a place depend on the length of the sequence?

Report 000 multiplied positions by 512 / length and said "sinusoidal": 100 % at every length on shuffled sequences, and
0 % of single adjacent swaps detected. The vectors that the first attention block reads are compared between a sequence
and the same sequence with more numbers behind: before attention mixes anything, those of the first numbers must stay.
Two controls: the same sequence again (positions may be drawn at random), and other numbers behind (something else may
mix the tokens).
"""

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from headcount.auditing.check import Check, Finding, failed, not_applicable, passed
from headcount.auditing.observed import Observed
from headcount.auditing.streams import MIXED, UNSEEN, first_stream
from headcount.errors import HeadcountError
from headcount.tasks.base import ClassTask, Examples

N_ROWS = 7
"""Sequences that are compared; odd, so that rows are not taken for positions."""
TOLERANCE = 1e-3
"""Share of their own size that vectors may move."""


def run(observed: Observed) -> Finding:
    """From the shortest to the longest sequence in training."""
    task = cast(ClassTask, observed.task)
    short, long = _lengths(observed)
    longer = task.sample_of_length(observed.rng("length dependent"), long, task.negatives[0], N_ROWS)
    shorter, others = longer[:, :short], np.concatenate([longer[:, :short], np.roll(longer[:, short:], 1, 0)], axis=1)
    first = max(1, short // 2)
    if not _begins_alike(observed.inputs(shorter), observed.inputs(longer), first):
        return not_applicable("a longer sequence is encoded with its first numbers at other places")
    asked = (shorter, shorter, longer, others)
    streams = [_first_vectors(first_stream(observed, each), first) for each in asked]
    if any(each is None for each in streams):
        return not_applicable(UNSEEN)
    one, again, grown, refilled = (cast(Tensor, each) for each in streams)
    if _moved(one, again) > TOLERANCE / 10:
        return not_applicable("the embeddings of one sequence change from pass to pass")
    moved, mixed = _moved(one, grown), _moved(grown, refilled)
    if moved > max(TOLERANCE, 3 * mixed):
        if _is_counted_from_the_end(observed, longer, short, first):
            return passed("positions are counted from the end, where embeddings stay", moved=moved, n=N_ROWS)
        return _told(observed, moved, short, long)
    if mixed > TOLERANCE:
        return not_applicable(MIXED)
    return passed(
        f"the embeddings of the first {first} numbers stay when a sequence grows from {short} to {long}",
        moved=moved,
        n=N_ROWS,
    )


def _told(observed: Observed, moved: float, short: int, long: int) -> Finding:
    """Unless ids are drawn at random, from many more than there are tokens, and known to be."""
    if n_ids := _random_ids(observed):
        return passed(f"positions are drawn from {n_ids:,} at random, as in training, and so differ between lengths")
    return failed(
        f"the embeddings of the first numbers move by {100 * moved:.0f} % of their size when a sequence grows from "
        f"{short} to {long} numbers, though the numbers and their places stay",
        cause="consistent with positions that are divided by the length of the sequence: a place then says how far "
        "along it is, which gives shuffles away and says little of neighbours",
        fix="count positions 0, 1, 2, ... whatever the length, or call the encoding length-normalised",
        moved=moved,
        shorter=short,
        longer=long,
        n=N_ROWS,
    )


def _is_counted_from_the_end(observed: Observed, longer: Examples, short: int, last: int) -> bool:
    """Whether the last numbers keep their embeddings when there are more before them."""
    streams = [first_stream(observed, each) for each in (longer[:, -short:], longer)]
    one, other = (None if each is None or each.shape[1] < last else each[:, -last:] for each in streams)
    return one is not None and other is not None and _moved(one, other) <= TOLERANCE


def _lengths(observed: Observed) -> tuple[int, int]:
    """Both in training where that has several."""
    short, long = observed.trained_lengths
    return (short, long) if short < long else (long, 2 * long)


def _begins_alike(one: Sequence[Tensor], other: Sequence[Tensor], first: int) -> bool:
    """Whether the model is given the same at the first places: an encoder may fill up in front."""
    return any(
        a.dim() > 1 and a.shape[1] >= first and torch.equal(a[:, :first], b[:, :first])
        for a, b in zip(one, other, strict=True)
    )


def _first_vectors(stream: Tensor | None, first: int) -> Tensor | None:
    return None if stream is None or stream.shape[1] < first else stream[:, :first]


def _moved(one: Tensor, other: Tensor) -> float:
    return float((other - one).norm() / one.norm().clamp(min=1e-30))


def _random_ids(observed: Observed) -> int | None:
    try:
        return observed.model.positions().encoding_in_use().random_positions
    except HeadcountError:
        return None


PART = Check(
    "HC504",
    "Does what is added at a place depend on the length of the sequence?",
    run,
    asks="class",
    explains=("HC202",),
)
