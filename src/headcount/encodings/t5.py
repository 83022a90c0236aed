"""T5's bucketed bias (Raffel et al. 2020, arXiv 1910.10683).

    bias_h(i, j) = b_h[bucket(j - i)]

Small distances have a bucket each; larger ones share buckets whose width grows logarithmically up to a distance of
128, and everything farther shares the last. Looking both ways, half of the 32 buckets lie ahead.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headcount.encodings import EncodingSettings
from headcount.encodings.base import Encoding

N_BUCKETS, FARTHEST = 32, 128


class T5(Encoding):
    """Added to the scores."""

    def __init__(self, d_model: int, n_heads: int, settings: EncodingSettings, *, causal: bool = False) -> None:
        super().__init__(d_model, n_heads, settings, causal=causal)
        self.rows = nn.Embedding(N_BUCKETS, n_heads)

    def bias(self, query_id: Int[Tensor, ...], key_id: Int[Tensor, ...]) -> Float[Tensor, "... head"]:
        """b_h[bucket(j - i)]."""
        ahead = key_id - query_id
        if self.causal:
            return self.rows(bucket(-ahead.clamp(max=0), N_BUCKETS))
        side = N_BUCKETS // 2
        return self.rows(bucket(ahead.abs(), side) + side * (ahead > 0))


def bucket(distance: Int[Tensor, ...], n: int) -> Int[Tensor, ...]:
    """Which of `n` buckets a distance falls into: the first half one by one, then ever wider ones."""
    alone = n // 2
    wide = torch.log(distance.clamp(min=1) / alone) / math.log(FARTHEST / alone) * (n - alone)
    return distance.where(distance < alone, (alone + wide.long()).clamp(max=n - 1))


PART = T5
