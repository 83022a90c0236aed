"""What every encoding offers."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor, nn


class Encoding(nn.Module):
    """Built with the model's width and the longest sequence it is meant for."""

    def __init__(self, d_model: int, n_positions: int) -> None:
        super().__init__()
        self.d_model = d_model
        self.n_positions = n_positions

    def embed(
        self, x: Float[Tensor, "batch length d_model"], ids: Int[Tensor, " length"]
    ) -> Float[Tensor, "batch length d_model"]:
        """Touch the embeddings of tokens that stand at these positions."""
        return x
