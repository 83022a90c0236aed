"""Rotary positions (Su et al. 2021, "RoFormer", arXiv 2104.09864).

Each pair of dimensions (2i, 2i+1) of queries and keys is rotated by an angle that is proportional to the position:

    (a, b) at p  ->  (a cos(p w_i) - b sin(p w_i), a sin(p w_i) + b cos(p w_i))        w_i = 10000^(-2i / d_head)

The score of a query at t and a key at s then depends on their contents and on t - s only.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headcount.encodings.base import Encoding, KeyIds, Keys, Queries, QueryIds
from headcount.encodings.sinusoidal import frequencies


class Rotary(Encoding):
    """The rotary encoding, which rotates queries and keys."""

    def rotate_qk(self, query: Queries, key: Keys, query_ids: QueryIds, key_ids: KeyIds) -> tuple[Queries, Keys]:
        """Return the queries and keys, rotated by angles proportional to their position ids."""
        return rotate(query, query_ids), rotate(key, key_ids)


def rotate(
    x: Float[Tensor, "batch head length d_head"], ids: Int[Tensor, "#batch length"]
) -> Float[Tensor, "batch head length d_head"]:
    """Return `x` with every pair of dimensions rotated by angles proportional to the position ids.

    An odd last dimension has no partner and is left unchanged.
    """
    d_head = x.shape[-1]
    paired = d_head - d_head % 2
    angle = ids[:, None, :, None].float() * frequencies(d_head, x.device)[: d_head // 2]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., 0:paired:2], x[..., 1:paired:2]
    rotated = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(start_dim=-2)
    return torch.cat([rotated, x[..., paired:]], dim=-1)


PART = Rotary
