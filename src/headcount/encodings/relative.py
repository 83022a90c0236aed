"""A learned bias for each clipped distance (Shaw et al. 2018, arXiv 1803.02155, as one number per head).

    bias_h(i, j) = b_h[clip(j - i, -k, k)]        k = `clip_distance`

All keys farther away than k share one bias, so their summed attention weight grows with the length.
"""

from __future__ import annotations

from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor, nn

from headcount.encodings import EncodingSettings
from headcount.encodings.base import Encoding


class Relative(Encoding):
    """Clipped relative positions: a learned bias per distance, added to the attention scores."""

    is_bias_of_distance: ClassVar[bool] = True

    def __init__(self, d_model: int, n_heads: int, settings: EncodingSettings, *, causal: bool = False) -> None:
        super().__init__(d_model, n_heads, settings, causal=causal)
        self.clip = settings.clip_distance
        self.rows = nn.Embedding(2 * self.clip + 1, n_heads)

    def bias(self, query_id: Int[Tensor, ...], key_id: Int[Tensor, ...]) -> Float[Tensor, "... head"]:
        """Return the bias b_h[clip(j - i, -k, k)] of head h for query i and key j: one learned number per distance."""
        return self.rows((key_id - query_id).clamp(-self.clip, self.clip) + self.clip)


PART = Relative
