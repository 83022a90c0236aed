"""What every encoding offers: three places to touch, each left alone unless a subclass says otherwise."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from headcount.encodings import ENCODINGS, EncodingSettings
from headcount.errors import InputError

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

    hard_codes: ClassVar[str] = ""
    """The structure of the task that this encoding gives away, in words; empty if it is generic."""

    forces_causal: ClassVar[bool] = False
    """Whether it hides what lies ahead, whatever the model would see."""

    uses_ids: ClassVar[bool] = True
    """Whether it makes any use of position ids."""

    needs_length: ClassVar[bool] = False
    """Whether it depends on the length of the whole sequence, which a decoder does not know yet."""

    has_table: ClassVar[bool] = False
    """Whether it has a row of its own for each of `n_positions` ids, and none for later ones."""

    n_rows: int | None = None
    """Rows of that table; None without one."""

    refuses_past_table: bool = False
    """Whether an id past the table is an error."""

    def __init__(self, d_model: int, n_heads: int, settings: EncodingSettings, *, causal: bool = False) -> None:
        super().__init__()
        self.d_model, self.n_heads, self.causal = d_model, n_heads, causal

    def step(self, n: int) -> float:
        """How far apart neighbours stand in a sequence of `n`, in steps of the sinusoids that it may be made of."""
        return 1.0

    def forward(self, x: Embeddings, positions: Positions) -> Embeddings:
        """The touch on the embeddings, as a layer of the model."""
        return self.add_to_embeddings(x, positions)

    def assign_ids(self, positions: Positions) -> Positions:
        """The positions that the touches below will be asked about; called once for each sequence."""
        return positions

    def add_to_embeddings(self, x: Embeddings, positions: Positions) -> Embeddings:
        """Touch the embeddings of tokens that stand at these positions."""
        return x

    def rotate_qk(
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
    return Randomised(made, random_positions)


# --- randomised -------------------------------------------------------------------------------------------------------
# Randomised positions, around any encoding (Ruoss et al. 2023, arXiv 2305.16843).
#
# Of the ids 0 .. N-1 a random subset is drawn, in order, and given to the tokens. Trained on short sequences, the model
# has then met every id up to N. In training the subset changes at every step; otherwise it depends on the length alone,
# so that the same sequence always gets the same answer.


class Randomised(Encoding):
    """Another encoding, asked about random ids."""

    def __init__(self, inner: Encoding, n_ids: int) -> None:
        super().__init__(inner.d_model, inner.n_heads, EncodingSettings(), causal=inner.causal)
        self.inner, self.n_ids = inner, n_ids
        self.hard_codes, self.forces_causal = inner.hard_codes, inner.forces_causal  # type: ignore[misc]

    def assign_ids(self, positions: Positions) -> Positions:
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

    def add_to_embeddings(self, x: Embeddings, positions: Positions) -> Embeddings:
        """As the inner encoding does."""
        return self.inner.add_to_embeddings(x, positions)

    def rotate_qk(
        self, query: Queries, key: Keys, query_ids: Int[Tensor, "#batch query"], key_ids: Int[Tensor, "#batch key"]
    ) -> tuple[Queries, Keys]:
        """As the inner encoding does."""
        return self.inner.rotate_qk(query, key, query_ids, key_ids)

    def bias(self, query_id: Int[Tensor, ...], key_id: Int[Tensor, ...]) -> Float[Tensor, "... head"] | None:
        """As the inner encoding does."""
        return self.inner.bias(query_id, key_id)
