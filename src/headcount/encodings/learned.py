"""Learned positions: one learned vector per position, in a table of `n_positions` rows.

Positions past the table have no trained vector. The setting `past_table` chooses what happens there:

    error       raise an error
    clamp       repeat the last row, so that all later positions have the same vector
    untrained   use random rows as at initialisation (published report 003 assumed clamping, but rows from 16 on of its
                table of 300 rows had never been trained)
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from headcount.encodings import EncodingSettings
from headcount.encodings.base import Embeddings, Encoding, Positions
from headcount.errors import InputError


class Learned(Encoding):
    """A learned table of position vectors, which are added to the embeddings."""

    has_table: ClassVar[bool] = True

    def __init__(self, d_model: int, n_heads: int, settings: EncodingSettings, *, causal: bool = False) -> None:
        super().__init__(d_model, n_heads, settings, causal=causal)
        self.past_table, self.n_rows = settings.past_table, settings.n_positions
        self.refuses_past_table = self.past_table == "error"
        # Unit variance, like the token embeddings: with a smaller variance the tokens dominate.
        self.rows = nn.Embedding(settings.n_positions, d_model)

    def add_to_embeddings(self, x: Embeddings, positions: Positions) -> Embeddings:
        """Return the embeddings plus the learned row of each position id: x + rows[ids]."""
        ids, table = positions.ids, self.rows.weight
        last = int(ids.max()) if positions.n_ids is None else positions.n_ids - 1
        if last < len(table):
            return x + self.rows(ids).to(x.dtype)
        if self.past_table == "error":
            raise InputError(
                f"position {last} is past the end of the learned position table, which has {len(table)} rows",
                "train with a larger --n-positions, with --past-table clamp (it repeats the last row) or untrained "
                "(it adds random rows), or with --encoding sinusoidal, which has no table",
            )
        if self.past_table == "clamp":
            return x + self.rows(ids.clamp(max=len(table) - 1)).to(x.dtype)
        fresh = fresh_rows(last + 1 - len(table), self.d_model).to(table)
        return x + torch.cat([table, fresh])[ids].to(x.dtype)


# A custom operator, because a graph cannot contain a generator that is seeded at every call.
@torch.library.custom_op("headcount::fresh_rows", mutates_args=(), schema="(int n_rows, int d_model) -> Tensor")
def fresh_rows(n_rows: int, d_model: int) -> Tensor:
    """Return rows of a position table as before training, [n_rows, d_model]; every call returns the same rows."""
    # torch draws normal numbers 16 at a time: without this width, the last rows would depend on n_rows.
    width = -(-d_model // 16) * 16
    drawn = torch.randn(n_rows, width, generator=torch.Generator().manual_seed(0))
    return drawn[:, :d_model].contiguous()


@fresh_rows.register_fake
def _(n_rows: int, d_model: int) -> Tensor:
    return torch.empty(n_rows, d_model)


PART = Learned
