"""ALiBi for a bidirectional encoder (after Press et al. 2021, arXiv 2108.12409).

    bias_h(i, j) = -m_h |i - j|        m_h = 2^(-8 (h + 1) / n_heads)

The bias cannot distinguish left from right: a reversed sequence gets reversed outputs. With a symmetric pooling, the
model's answers to a sequence and to its reverse are equal.
"""

from __future__ import annotations

from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor

from headcount.encodings.alibi import slopes
from headcount.encodings.base import Encoding


class SymmetricAlibi(Encoding):
    """The symmetric ALiBi encoding: a bias that falls linearly with the distance, equal to the left and right."""

    is_bias_of_distance: ClassVar[bool] = True

    def bias(self, query_id: Int[Tensor, ...], key_id: Int[Tensor, ...]) -> Float[Tensor, "... head"]:
        """Return the penalty -m_h |i - j| of head h, which is the same to the left and to the right."""
        distance = (query_id - key_id).abs()[..., None]
        return -slopes(self.n_heads, distance.device) * distance


PART = SymmetricAlibi
