"""The smallest value of each dimension over positions."""

from __future__ import annotations

import torch

from headcount.poolings.base import Pooled, Pooling, Sequences, Tokens, hide


class Min(Pooling):
    """Symmetric."""

    def forward(self, x: Sequences, is_token: Tokens) -> Pooled:
        """Min over tokens."""
        return hide(x, is_token, torch.inf).amin(dim=1)


PART = Min
