"""Report 003's pooling: [min, least difference of neighbours, mean difference of neighbours, first, last].

The differences hand the order of neighbours to the model, so that even a model without any positions tells sorted from
unsorted: what is measured with this pooling is not the encoding.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from headcount.poolings.base import Pooled, Pooling, Sequences, Tokens, hide


class NeighbourDifference(Pooling):
    """Five vectors side by side."""

    symmetric: ClassVar[bool] = False
    gives: ClassVar[str] = "order of neighbours"

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.d_pooled = 5 * d_model

    def forward(self, x: Sequences, is_token: Tokens) -> Pooled:
        """The least difference of a single token is 0, as is its mean."""
        n = is_token.sum(dim=1, keepdim=True).clamp(min=1)
        last = x[torch.arange(len(x), device=x.device), n[:, 0] - 1]
        step, is_pair = x[:, 1:] - x[:, :-1], is_token[:, 1:] & is_token[:, :-1]
        has_pair = is_pair.any(dim=1, keepdim=True)
        least = x.new_zeros(last.shape)
        if step.shape[1]:
            least = hide(step, is_pair, torch.inf).amin(dim=1).where(has_pair, least)
        mean = hide(step, is_pair, 0.0).sum(dim=1) / (n - 1).clamp(min=1)
        return torch.cat([hide(x, is_token, torch.inf).amin(dim=1), least, mean, x[:, 0], last], dim=1)


PART = NeighbourDifference
