"""How numbers enter a model: by a table, or by waves of their value."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

N_WAVES = 16


class FourierNumbers(nn.Module):
    """A linear map of v, sin(k pi v / n) and cos(k pi v / n) for k = 1 .. 16, of the value v among n.

    Near numbers get near vectors, which a table would have to learn number by number (after Tancik et al. 2020,
    "Fourier features let networks learn high frequency functions in low dimensional domains", arXiv 2006.10739).
    """

    waves: Tensor

    def __init__(self, n_tokens: int, d_model: int) -> None:
        super().__init__()
        share = torch.arange(n_tokens)[:, None] / n_tokens
        angle = math.pi * share * torch.arange(1, N_WAVES + 1)
        self.register_buffer("waves", torch.cat([2 * share - 1, angle.sin(), angle.cos()], dim=1), persistent=False)
        self.mix = nn.Linear(1 + 2 * N_WAVES, d_model)

    def forward(self, tokens: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length d_model"]:
        """The vector of each number."""
        return self.mix(self.waves[tokens].to(self.mix.weight.dtype))
