"""A weighted mean whose weights are a softmax of one learned score per position.

Lin et al. 2017, "A structured self-attentive sentence embedding", arXiv 1703.03130, with one linear score.
"""

from __future__ import annotations

import torch
from torch import nn

from headcount.poolings.base import Pooled, Pooling, Sequences, Tokens, hide


class AttentionPooling(Pooling):
    """Symmetric."""

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.score = nn.Linear(d_model, 1)

    def forward(self, x: Sequences, is_token: Tokens) -> Pooled:
        """Sum of weight_i x_i."""
        weights = hide(self.score(x), is_token, torch.finfo(x.dtype).min).softmax(dim=1)
        return (weights * hide(x, is_token, 0.0)).sum(dim=1)


PART = AttentionPooling
