"""FIRE (Li et al. 2023, "Functional interpolation for relative positions", arXiv 2310.04418).

    bias(i, j) = f( psi(i - j) / psi(max(L, i)) )        psi(x) = log(c x + 1)

f is a small network with one output per head; c > 0 and the threshold L > 0 are learned. Dividing by the query's own
position maps any length into [0, 1]; max(L, i) keeps short sequences apart. The paper considers earlier keys only. For
a later key we use -psi(j - i) / psi(max(L, j)), which lies in [-1, 0].
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from headcount.encodings import EncodingSettings
from headcount.encodings.base import Encoding

HIDDEN = 32


class Fire(Encoding):
    """The FIRE encoding: a learned function of the distance, relative to the position, is added to attention scores."""

    def __init__(self, d_model: int, n_heads: int, settings: EncodingSettings, *, causal: bool = False) -> None:
        super().__init__(d_model, n_heads, settings, causal=causal)
        self.network = nn.Sequential(nn.Linear(1, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, n_heads))
        self.raw_c = nn.Parameter(torch.tensor(0.0))
        self.raw_threshold = nn.Parameter(torch.tensor(16.0))

    def bias(self, query_id: Int[Tensor, ...], key_id: Int[Tensor, ...]) -> Float[Tensor, "... head"]:
        """Return the bias f(psi(i - j) / psi(max(L, i))) for query i and key j, where f, psi and L are learned."""
        back = query_id - key_id
        reach = torch.maximum(torch.maximum(query_id, key_id).to(self.raw_threshold), F.softplus(self.raw_threshold))
        normalised = self._psi(back.abs().to(reach)) / self._psi(reach) * back.sign()
        return self.network(normalised[..., None])

    def _psi(self, x: Tensor) -> Tensor:
        return torch.log1p(F.softplus(self.raw_c) * x)


PART = Fire
