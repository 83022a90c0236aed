"""Learned positions: one free vector per position, looked up in a table.

The table has `n_positions` rows. A position past its end has never been trained, so it is an error here and not a
silent clamp (report 003 believed in a clamp that never fired).
"""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor, nn

from headcount.encodings.base import Encoding
from headcount.errors import InputError


class Learned(Encoding):
    """Added to the embeddings."""

    def __init__(self, d_model: int, n_positions: int) -> None:
        super().__init__(d_model, n_positions)
        # Unit variance, as the token embeddings: a weaker table is drowned out by the tokens.
        self.rows = nn.Embedding(n_positions, d_model)

    def embed(
        self, x: Float[Tensor, "batch length d_model"], ids: Int[Tensor, " length"]
    ) -> Float[Tensor, "batch length d_model"]:
        """X + row(ids)."""
        last = int(ids.max())
        if last >= self.n_positions:
            raise InputError(
                f"position {last} is past the end of a learned table of {self.n_positions} rows",
                "train with a larger --n-positions, or use --encoding sinusoidal",
            )
        return x + self.rows(ids)


PART = Learned
