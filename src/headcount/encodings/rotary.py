"""Rotary positions (Su et al. 2021, "RoFormer", arXiv 2104.09864).

Each pair (2i, 2i+1) of a query's and of a key's dimensions is turned by an angle that grows with the position:

    (a, b) at p  ->  (a cos(p w_i) - b sin(p w_i), a sin(p w_i) + b cos(p w_i))        w_i = 10000^(-2i / d_head)

so that the score of a query at t and a key at s depends on their contents and on t - s alone.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headcount.encodings.base import Encoding, KeyIds, Keys, Queries, QueryIds
from headcount.encodings.sinusoidal import frequencies


class Rotary(Encoding):
    """Turns queries and keys."""

    def rotate_qk(self, query: Queries, key: Keys, query_ids: QueryIds, key_ids: KeyIds) -> tuple[Queries, Keys]:
        """Each by the angle of its position."""
        return rotate(query, query_ids), rotate(key, key_ids)


def rotate(
    x: Float[Tensor, "batch head length d_head"], ids: Int[Tensor, "#batch length"]
) -> Float[Tensor, "batch head length d_head"]:
    """Turn every pair of dimensions; an odd last dimension has no partner and stays."""
    d_head = x.shape[-1]
    paired = d_head - d_head % 2
    angle = ids[:, None, :, None].float() * frequencies(d_head, x.device)[: d_head // 2]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., 0:paired:2], x[..., 1:paired:2]
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(start_dim=-2)
    return torch.cat([turned, x[..., paired:]], dim=-1)


PART = Rotary
