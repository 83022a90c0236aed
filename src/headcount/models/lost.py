"""What is left of attention when all of its heads are cut out."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn


class LostAttention(nn.Module):
    """Stands where multi-head attention stood: of the output projection only the bias is left."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.output = nn.ParameterDict({"bias": torch.zeros(d_model)})  # by the name that it has in the projection

    def forward(
        self,
        x: Float[Tensor, "#batch query d_model"],
        memory: Float[Tensor, "batch key d_model"] | None = None,
        **looks: object,
    ) -> Float[Tensor, "batch query d_model"]:
        """The same for every position, and for as many rows as attention would have made; nothing is looked at."""
        rows = x if memory is None else memory
        return self.output["bias"].expand(len(rows), x.shape[1], -1)
