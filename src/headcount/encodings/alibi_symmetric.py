"""ALiBi for an encoder that looks both ways (after Press et al. 2021, arXiv 2108.12409).

    bias_h(i, j) = -m_h |i - j|        m_h = 2^(-8 (h + 1) / n_heads)

It cannot tell left from right: a sequence and its mirror image get mirrored outputs. With a symmetric pooling a model
that has nothing else answers both alike.
"""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from headcount.encodings.alibi import slopes
from headcount.encodings.base import Encoding


class SymmetricAlibi(Encoding):
    """Added to the scores."""

    def bias(self, query_id: Int[Tensor, ...], key_id: Int[Tensor, ...]) -> Float[Tensor, "... head"]:
        """-m_h |i - j|."""
        distance = (query_id - key_id).abs()[..., None]
        return -slopes(self.n_heads, distance.device) * distance


PART = SymmetricAlibi
