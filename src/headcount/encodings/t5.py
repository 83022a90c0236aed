"""T5's bucketed bias (Raffel et al. 2020, arXiv 1910.10683).

    bias_h(i, j) = b_h[bucket(j - i)]

Each small distance has its own bucket. Larger distances share buckets whose width grows logarithmically up to a
distance of 128; all larger distances share the last bucket. In a bidirectional model, half of the 32 buckets are for
later keys.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headcount.encodings import EncodingSettings
from headcount.encodings.base import Encoding

N_BUCKETS, FARTHEST = 32, 128


class T5(Encoding):
    """T5's relative positions: a learned bias per bucket, added to the attention scores."""

    is_bias_of_distance: ClassVar[bool] = True

    def __init__(self, d_model: int, n_heads: int, settings: EncodingSettings, *, causal: bool = False) -> None:
        super().__init__(d_model, n_heads, settings, causal=causal)
        self.rows = nn.Embedding(N_BUCKETS, n_heads)

    def bias(self, query_id: Int[Tensor, ...], key_id: Int[Tensor, ...]) -> Float[Tensor, "... head"]:
        """Return the bias b_h[bucket(j - i)] of head h for query i and key j: one learned number per bucket."""
        ahead = key_id - query_id
        if self.causal:
            return self.rows(bucket(-ahead.clamp(max=0), N_BUCKETS))
        side = N_BUCKETS // 2
        return self.rows(bucket(ahead.abs(), side) + side * (ahead > 0))


def bucket(distance: Int[Tensor, ...], n: int) -> Int[Tensor, ...]:
    """Return the index of the bucket of each distance, among n buckets: half have width 1, half have growing widths."""
    n_exact = n // 2
    wide = torch.log(distance.clamp(min=1) / n_exact) / math.log(FARTHEST / n_exact) * (n - n_exact)
    return distance.where(distance < n_exact, (n_exact + wide.long()).clamp(max=n - 1))


PART = T5
