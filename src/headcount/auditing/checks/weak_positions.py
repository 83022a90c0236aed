"""Are position vectors far weaker than token embeddings?

In one student's model, a later `apply` overwrote the initialisation of the position table, which left positions 15
times weaker than tokens. Token embeddings with unit variance that are multiplied by sqrt(d_model) have the same effect.
The check reads the embeddings of sequences that repeat one number. Their differences between places are the signal of
positions, and those between numbers are the signal of tokens. Means are subtracted, because a constant is no signal.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headcount.auditing.audited_model import AuditedClassifier, AuditedModel, AuditedSequenceModel
from headcount.auditing.check import Check, Finding, not_applicable, passed, warned
from headcount.auditing.embeddings import (
    MIXED,
    NOT_FOUND,
    constant_sequences,
    first_streams,
    is_mixed,
    number_columns,
)
from headcount.tasks.base import Examples

MIN_RATIO = 1 / 8
"""Minimum strength of positions relative to tokens: trained models are above it, and the known fault has 1/15."""
MIN_SIGNAL = 1e-5
"""If positions are weaker than this, relative to tokens, they are not added to the embeddings at all."""
N_NUMBERS, MIN_COMPARED = 13, 3
"""Number of sequences to try, each repeating one number; and fewest tokens and places that can be compared."""


def check_sequences(model: AuditedSequenceModel) -> Finding:
    """Compare the strength of positions and of tokens in examples that repeat one token, such as 555+555."""
    examples = model.task.repeated_tokens()
    return not_applicable(NOT_FOUND) if examples is None else _check(model, examples)


def check_classes(model: AuditedClassifier) -> Finding:
    """Compare the strength of positions and of tokens in sequences that repeat one number, such as 5 5 5 5."""
    return _check(model, constant_sequences(model, model.trained_lengths[1], N_NUMBERS))


def _check(model: AuditedModel, examples: Examples) -> Finding:
    """Compare how much embeddings differ between positions with how much they differ between tokens."""
    streams = first_streams(model, examples)
    if not streams:
        return not_applicable(NOT_FOUND)
    if is_mixed(model, examples):
        return not_applicable(MIXED)
    inputs = model.inputs(examples)
    vectors = [stream[:, number_columns(stream, inputs)] for stream in streams]  # [token, place, width] each
    if any(min(each.shape[:2]) < MIN_COMPARED for each in vectors):
        return not_applicable(
            "too few tokens occur at the same positions to compare how much embeddings depend on tokens and positions"
        )
    spreads = [(_spread(each.mean(dim=0)), _spread(each.mean(dim=1)), *each.shape[:2]) for each in vectors]
    # Positions may be added to queries and keys only, so the input in which positions are strongest is used.
    positions, tokens, n_tokens, n = max(spreads, key=lambda spread: spread[0] / max(spread[1], 1e-30))
    ratio = positions / max(tokens, 1e-30)
    if ratio < MIN_SIGNAL:
        return not_applicable("positions are not added to the embeddings")
    sizes = f"embeddings differ by {positions:.3g} between {n} positions, and by {tokens:.3g} between {n_tokens} tokens"
    if ratio >= MIN_RATIO:
        return passed(f"positions are strong enough: {sizes}", ratio=ratio, places=n)
    return warned(
        f"embeddings depend {1 / ratio:.0f} times less on the position than on the token: {sizes}",
        cause="consistent with a table whose initialisation was overwritten, or with token embeddings scaled up alone",
        fix="initialise positions as large as the token embeddings, after every other initialisation, and scale both "
        "or none",
        ratio=ratio,
        positions=positions,
        tokens=tokens,
        places=n,
    )


def _spread(vectors: Tensor) -> float:
    """Return the root mean square distance of vectors [row, width] from their mean."""
    return float(torch.sqrt(((vectors - vectors.mean(dim=0)) ** 2).sum(dim=1).mean()))


PART = Check(
    "HC503",
    "Are position vectors far weaker than token embeddings?",
    sequences=check_sequences,
    classes=check_classes,
)
