"""ALiBi as published: a causal bias that falls linearly with the distance.

Press et al. 2021, "Train short, test long", arXiv 2108.12409:

    bias_h(i, j) = -m_h (i - j)   for j <= i,  -inf for j > i        m_h = 2^(-8 (h + 1) / n_heads)

The paper defines ALiBi for causal models. It therefore hides later keys even in a bidirectional model.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headcount.encodings.base import Encoding


class Alibi(Encoding):
    """The ALiBi encoding, which adds a bias to attention scores that falls linearly with the distance to the key."""

    forces_causal: ClassVar[bool] = True
    is_bias_of_distance: ClassVar[bool] = True

    def bias(self, query_id: Int[Tensor, ...], key_id: Int[Tensor, ...]) -> Float[Tensor, "... head"]:
        """Return the bias -m_h (i - j) of head h for query i and key j, and -inf for keys after the query."""
        back = (query_id - key_id)[..., None]
        return (-slopes(self.n_heads, back.device) * back).masked_fill(back < 0, -torch.inf)


def slopes(n_heads: int, device: torch.device) -> Float[Tensor, " head"]:
    """Return the slope m_h of each head: a geometric sequence that ends in 2^-8."""
    return 2.0 ** (-8.0 * torch.arange(1, n_heads + 1, device=device) / n_heads)


PART = Alibi
