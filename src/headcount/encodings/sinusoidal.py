"""Sinusoidal positions (Vaswani et al. 2017, "Attention is all you need", section 3.5).

    PE(p, 2i)   = sin(p w_i)
    PE(p, 2i+1) = cos(p w_i)        w_i = 10000^(-2i / d_model)

The vectors are computed from the ids at every call, so no table limits the length. `headcount positions` computes two
properties: PE(p + k) = R_k PE(p), where R_k rotates the i-th pair by the angle k w_i; and PE(t) . PE(s) =
sum_i cos(w_i (t - s)), which depends on t - s only.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from headcount.encodings.base import Embeddings, Encoding, Positions


class Sinusoidal(Encoding):
    """Sinusoidal position vectors, which are added to the embeddings."""

    def add_to_embeddings(self, x: Embeddings, positions: Positions) -> Embeddings:
        """Return the embeddings plus the sinusoidal encoding of each position id: x + PE(ids)."""
        return x + sinusoids(positions.ids, self.d_model).to(x.dtype)


def sinusoids(places: Tensor, d_model: int) -> Float[Tensor, "*places d_model"]:
    """Return the sinusoidal vector PE(p) for each position p in `places`; p may be a fraction."""
    angle = places[..., None].float() * frequencies(d_model, places.device)
    # An odd d_model has one sine more than it has cosines.
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(start_dim=-2)[..., :d_model]


def frequencies(d_model: int, device: torch.device) -> Float[Tensor, " pair"]:
    """Return the frequencies w_i = 10000^(-2i / d_model), one for each pair of dimensions."""
    even = torch.arange(0, d_model, 2, device=device, dtype=torch.float32)
    return torch.exp(even * (-math.log(10000.0) / d_model))


PART = Sinusoidal
