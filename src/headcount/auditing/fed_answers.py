"""Answers that are fed to a decoder, changed or beside other questions, and by how much that moves its logits."""

from __future__ import annotations

from collections import Counter
from typing import cast

import numpy as np
import torch
from torch import Tensor

from headcount.auditing.observed import Observed
from headcount.tasks.base import SequenceTask, Tokens

TOLERANCE = 1e-4
"""Most that a logit may move by rounding, as a share of the largest."""


def share_moved(logits: Tensor, others: Tensor) -> Tensor:
    """[example, label]: the largest difference over tokens, as a share of the largest logit."""
    is_number = logits.isfinite() & others.isfinite()
    largest = logits.masked_fill(~is_number, 0).abs().max().clamp(min=torch.finfo(logits.dtype).tiny)
    return (logits - others).masked_fill(~is_number, 0).abs().amax(dim=-1) / largest


def other_tokens(observed: Observed, tokens: Tokens) -> Tokens:
    """For each token another one that answers have; never the first of all, a 0 that need not be written in front."""
    known = np.unique(observed.right_answers)
    known = known[1:] if len(known) > 2 else np.array([1, 2])
    return np.asarray(known[np.searchsorted(known, tokens, side="right") % len(known)])


def rows_of_one_length(observed: Observed, n: int) -> np.ndarray:
    """Rows of up to `n` examples whose questions and right answers are of the same length, the most frequent one."""
    task = cast(SequenceTask, observed.task)
    lengths = [(len(task.show(example)), len(task.answer(example))) for example in observed.examples]
    ((most, _),) = Counter(lengths).most_common(1)
    return np.array([row for row, each in enumerate(lengths) if each == most][:n])
