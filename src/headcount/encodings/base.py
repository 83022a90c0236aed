"""What every encoding offers: three places to touch, each left alone unless a subclass says otherwise."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headcount.encodings import ENCODINGS
from headcount.encodings._settings import EncodingSettings

Ids = Int[Tensor, "#batch length"]
Embeddings = Float[Tensor, "batch length d_model"]
Queries = Float[Tensor, "batch head query d_head"]
Keys = Float[Tensor, "batch head key d_head"]


class Positions(NamedTuple):
    """Where tokens stand: an id for each, and how many tokens each row really has.

    Rows that stand alike share one row of ids.
    """

    ids: Int[Tensor, "#batch length"]
    n_tokens: Int[Tensor, " #batch"]

    @classmethod
    def in_order(cls, length: int, device: torch.device, first: int = 0) -> Positions:
        """Ids in order, for rows without padding."""
        ids = torch.arange(first, first + length, device=device)[None]
        return cls(ids, torch.full((1,), first + length, device=device))


class Encoding(nn.Module):
    """Built for a stack of this width; `causal` says that its queries never look ahead."""

    gives: ClassVar[str] = ""
    """The structure of the task that this encoding gives away, in words; empty if it is generic."""

    looks_back: ClassVar[bool] = False
    """Whether it hides what lies ahead, whatever the model would see."""

    def __init__(self, d_model: int, n_heads: int, settings: EncodingSettings, *, causal: bool = False) -> None:
        super().__init__()
        self.d_model, self.n_heads, self.causal = d_model, n_heads, causal

    def forward(self, x: Embeddings, positions: Positions) -> Embeddings:
        """The touch on the embeddings, as a layer of the model."""
        return self.embed(x, positions)

    def place(self, positions: Positions) -> Positions:
        """The positions that the touches below will be asked about; called once for each sequence."""
        return positions

    def embed(self, x: Embeddings, positions: Positions) -> Embeddings:
        """Touch the embeddings of tokens that stand at these positions."""
        return x

    def turn(
        self, query: Queries, key: Keys, query_ids: Int[Tensor, "#batch query"], key_ids: Int[Tensor, "#batch key"]
    ) -> tuple[Queries, Keys]:
        """Touch queries and keys."""
        return query, key

    def bias(self, query_id: Int[Tensor, ...], key_id: Int[Tensor, ...]) -> Float[Tensor, "... head"] | None:
        """Touch the scores: what is added for each pair of ids; -inf hides the key. None if nothing is."""
        return None


def build_encoding(
    settings: EncodingSettings, d_model: int, n_heads: int, *, causal: bool = False, random_positions: int | None = None
) -> Encoding:
    """The encoding that the settings name."""
    made: Encoding = ENCODINGS.get(settings.encoding)(d_model, n_heads, settings, causal=causal)
    if random_positions is None:
        return made
    from headcount.encodings._randomised import Randomised  # a wrapper is an encoding itself

    return Randomised(made, random_positions)
