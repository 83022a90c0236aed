"""The last token's vector, padding not counted; in a causal model the only one that has seen everything."""

from __future__ import annotations

from typing import ClassVar

import torch

from headcount.poolings.base import Pooled, Pooling, Sequences, Tokens


class Last(Pooling):
    """Knows which token is last."""

    symmetric: ClassVar[bool] = False

    def forward(self, x: Sequences, is_token: Tokens) -> Pooled:
        """x_(n-1)."""
        last = is_token.sum(dim=1).clamp(min=1) - 1
        return x[torch.arange(len(x), device=x.device), last]


PART = Last
