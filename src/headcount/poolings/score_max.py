"""One score per position, then the soft maximum of the scores (the maximum itself at test).

Each position says how sure it is, alone, that something is wrong there; the surest is believed. Nothing depends on how
many positions there are.
"""

from __future__ import annotations

from torch import nn

from headcount.poolings.base import Pooled, Pooling, Sequences, Tokens
from headcount.poolings.lse_max import soft_max


class ScoreMax(Pooling):
    """Symmetric."""

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.score = nn.Linear(d_model, 1)
        self.d_pooled = 1

    def forward(self, x: Sequences, is_token: Tokens) -> Pooled:
        """The largest score."""
        return soft_max(self.score(x), is_token, training=self.training)


PART = ScoreMax
