"""The largest value of each dimension over positions: one position can be heard at any length."""

from __future__ import annotations

import torch

from headcount.poolings.base import Pooled, Pooling, Sequences, Tokens, hide


class Max(Pooling):
    """Symmetric."""

    def forward(self, x: Sequences, is_token: Tokens) -> Pooled:
        """Max over tokens."""
        return hide(x, is_token, -torch.inf).amax(dim=1)


PART = Max
