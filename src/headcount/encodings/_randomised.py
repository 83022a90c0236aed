"""Randomised positions, around any encoding (Ruoss et al. 2023, arXiv 2305.16843).

Of the ids 0 .. N-1 a random subset is drawn, in order, and given to the tokens. Trained on short sequences, the model
has then met every id up to N. In training the subset changes at every step; otherwise it depends on the length alone,
so that the same sequence always gets the same answer.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from headcount.encodings._settings import EncodingSettings
from headcount.encodings.base import Embeddings, Encoding, Keys, Positions, Queries
from headcount.errors import InputError


class Randomised(Encoding):
    """Another encoding, asked about random ids."""

    def __init__(self, inner: Encoding, n_ids: int) -> None:
        super().__init__(inner.d_model, inner.n_heads, EncodingSettings(), causal=inner.causal)
        self.inner, self.n_ids = inner, n_ids
        self.gives, self.looks_back = inner.gives, inner.looks_back  # type: ignore[misc]

    def place(self, positions: Positions) -> Positions:
        """The same order, other ids."""
        length = positions.ids.shape[1]
        if length > self.n_ids:
            raise InputError(
                f"{length} tokens are more than the {self.n_ids} random positions there are",
                "train with a larger --random-positions",
            )
        # A row's own tokens decide, not the padding behind them: 8 tokens are spread over all ids, beside 16 or alone.
        lengths, which = positions.n_tokens.unique(return_inverse=True)
        subsets = torch.stack([self._draw(n, length) for n in lengths.tolist()]).to(positions.ids.device)
        subsets = subsets if len(subsets) == 1 else subsets[which]
        n_rows = max(len(subsets), len(positions.ids))
        ids = subsets.expand(n_rows, -1).gather(1, positions.ids.expand(n_rows, -1))
        return Positions(ids, positions.n_tokens)

    def _draw(self, n: int, width: int) -> Int[Tensor, " width"]:
        """`n` of the ids in order, outside training always the same ones; then 0, for padding."""
        generator = None if self.training else torch.Generator().manual_seed(n)
        ids = torch.randperm(self.n_ids, generator=generator)[:n].sort().values
        return F.pad(ids, (0, width - n))

    def embed(self, x: Embeddings, positions: Positions) -> Embeddings:
        """As the inner encoding does."""
        return self.inner.embed(x, positions)

    def turn(
        self, query: Queries, key: Keys, query_ids: Int[Tensor, "#batch query"], key_ids: Int[Tensor, "#batch key"]
    ) -> tuple[Queries, Keys]:
        """As the inner encoding does."""
        return self.inner.turn(query, key, query_ids, key_ids)

    def bias(self, query_id: Int[Tensor, ...], key_id: Int[Tensor, ...]) -> Float[Tensor, "... head"] | None:
        """As the inner encoding does."""
        return self.inner.bias(query_id, key_id)
