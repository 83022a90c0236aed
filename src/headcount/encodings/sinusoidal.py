"""Sinusoidal positions (Vaswani et al. 2017, "Attention is all you need", section 3.5).

    PE(p, 2i)   = sin(p / 10000^(2i / d_model))
    PE(p, 2i+1) = cos(p / 10000^(2i / d_model))

Computed from the ids at every call: there is no table to run out of.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headcount.encodings.base import Encoding


class Sinusoidal(Encoding):
    """Added to the embeddings."""

    def embed(
        self, x: Float[Tensor, "batch length d_model"], ids: Int[Tensor, " length"]
    ) -> Float[Tensor, "batch length d_model"]:
        """X + PE(ids)."""
        return x + self.table(ids).to(x.dtype)

    def table(self, ids: Int[Tensor, " length"]) -> Float[Tensor, "length d_model"]:
        """PE(p) for each id p."""
        even = torch.arange(0, self.d_model, 2, device=ids.device, dtype=torch.float32)
        angle = ids[:, None].float() * torch.exp(even * (-torch.log(torch.tensor(10000.0)) / self.d_model))
        # An odd d_model has one sine more than it has cosines.
        return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(start_dim=1)[:, : self.d_model]


PART = Sinusoidal
