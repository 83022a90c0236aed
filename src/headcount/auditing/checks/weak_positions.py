"""Is the signal of positions far weaker than that of the tokens?

One student's custom initialisation of a position table was overwritten by a later `apply`, which left positions 15
times weaker than the tokens; token embeddings that are multiplied by sqrt(d_model), though drawn with unit variance, do
the same. Sequences of one number each are read by the model: what differs between places is the signal of positions,
what differs between numbers that of the tokens, both without their means, for what is the same everywhere is no signal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headcount.auditing.check import Check, Finding, not_applicable, passed, warned
from headcount.auditing.observed import Observed
from headcount.auditing.streams import MIXED, UNSEEN, constant_sequences, first_streams, is_mixed, number_columns
from headcount.tasks.addition import Addition
from headcount.tasks.base import Examples

WEAK, NOTHING = 1 / 8, 1e-5
"""Size of the signal of positions as a share of that of the tokens."""
N_NUMBERS, FEWEST = 13, 3
"""Numbers that are tried, and numbers and places at least."""


def run(observed: Observed) -> Finding:
    """At the places that all have the same token."""
    examples = one_number_each(observed, N_NUMBERS)
    streams = [] if examples is None else first_streams(observed, examples)
    if examples is None or not streams:
        return not_applicable(UNSEEN)
    if is_mixed(observed, examples):
        return not_applicable(MIXED)
    inputs = observed.inputs(examples)
    signals = [Signals.of(stream[:, number_columns(stream, inputs)]) for stream in streams]
    if any(min(each.n_tokens, each.n_places) < FEWEST for each in signals):
        return not_applicable("too few places have the same tokens to compare positions with tokens")
    strongest = max(signals, key=lambda each: each.ratio)  # positions may be added to queries and keys alone
    positions, tokens, ratio, n = strongest.positions, strongest.tokens, strongest.ratio, strongest.n_places
    if ratio < NOTHING:
        return not_applicable("positions are not added to the embeddings")
    told = f"over {n} places the embeddings differ by {positions:.3g}, over {strongest.n_tokens} tokens by {tokens:.3g}"
    if ratio >= WEAK:
        return passed(f"positions are no weaker than they should be: {told}", ratio=ratio, places=n)
    return warned(
        f"positions are {1 / ratio:.0f} times weaker than tokens: {told}",
        cause="consistent with a table whose initialisation was overwritten, or with token embeddings scaled up alone",
        fix="draw positions as large as the token embeddings, after every other initialisation, and scale both or none",
        ratio=ratio,
        positions=positions,
        tokens=tokens,
        places=n,
    )


@dataclass(frozen=True)
class Signals:
    """How far vectors [number, place, width] are apart between places, and between numbers."""

    positions: float
    tokens: float
    n_tokens: int
    n_places: int

    @classmethod
    def of(cls, numbers: Tensor) -> Signals:
        """Measure both, each over the mean of the other."""
        return cls(_spread(numbers.mean(dim=0)), _spread(numbers.mean(dim=1)), *numbers.shape[:2])

    @property
    def ratio(self) -> float:
        """The signal of positions as a share of that of the tokens."""
        return self.positions / max(self.tokens, 1e-30)


def one_number_each(observed: Observed, n: int) -> Examples | None:
    """Examples that have one token at all places, as long as in training: 5 5 5 5, or 555+555."""
    task = observed.task
    if isinstance(task, Addition):
        repeated = [int(str(digit) * task.n_columns) for digit in range(1, 10)]
        found = [each for each in repeated if task.low <= each <= task.high]
        return np.array([[each, each] for each in found]) if found else None
    if task.output_type != "class":
        return None
    longest = observed.trained_lengths[1]
    return constant_sequences(observed, longest, n)


def _spread(vectors: Tensor) -> float:
    """Root mean square distance from their mean."""
    return float(torch.sqrt(((vectors - vectors.mean(dim=0)) ** 2).sum(dim=1).mean()))


PART = Check("HC503", "Is the signal of positions far weaker than that of the tokens?", run)
