"""A soft maximum in training, the maximum itself at test.

training   log sum_i exp x_i        every position gets a gradient, the largest most
test       max_i x_i                does not grow with the length, as the sum would
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from headcount.poolings.base import Pooled, Pooling, Sequences, Tokens, hide


class LseMax(Pooling):
    """Symmetric."""

    def forward(self, x: Sequences, is_token: Tokens) -> Pooled:
        """Log-sum-exp or max over tokens."""
        return soft_max(x, is_token, training=self.training)


def soft_max(x: Float[Tensor, "batch length d"], is_token: Tokens, *, training: bool) -> Float[Tensor, "batch d"]:
    """Log-sum-exp over tokens in training, else the max."""
    # The lowest finite number, not -inf, whose log-sum-exp over nothing but padding has no gradient.
    hidden = hide(x, is_token, torch.finfo(x.dtype).min)
    return hidden.logsumexp(dim=1) if training else hidden.amax(dim=1)


PART = LseMax
