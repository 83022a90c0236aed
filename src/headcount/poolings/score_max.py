"""One score per position, then the largest and the smallest.

Each position says how sure it is, alone, that something is wrong there; the surest is believed. Nothing depends on how
many positions there are. Both ends are handed on, since a score that begins with the wrong sign could not turn round.
"""

from __future__ import annotations

import torch
from torch import nn

from headcount.poolings.base import Pooled, Pooling, Sequences, Tokens, hide


class ScoreMax(Pooling):
    """Symmetric."""

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.score = nn.Linear(d_model, 1)
        self.d_pooled = 2

    def forward(self, x: Sequences, is_token: Tokens) -> Pooled:
        """Max and min of the scores."""
        score = self.score(x)
        ends = hide(score, is_token, -torch.inf).amax(dim=1), hide(score, is_token, torch.inf).amin(dim=1)
        return torch.cat(ends, dim=1)


PART = ScoreMax
