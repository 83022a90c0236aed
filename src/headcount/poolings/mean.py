"""The mean over positions. What one position says counts 1/n: it is diluted as sequences grow."""

from __future__ import annotations

from headcount.poolings.base import Pooled, Pooling, Sequences, Tokens, hide


class Mean(Pooling):
    """Symmetric."""

    def forward(self, x: Sequences, is_token: Tokens) -> Pooled:
        """Sum over tokens / number of tokens."""
        return hide(x, is_token, 0.0).sum(dim=1) / is_token.sum(dim=1, keepdim=True).clamp(min=1)


PART = Mean
