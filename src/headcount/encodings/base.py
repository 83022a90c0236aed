"""What every encoding offers: three places to touch, each left alone unless a subclass says otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from headcount.encodings import ENCODINGS, EncodingSettings
from headcount.errors import InputError

Embeddings = Float[Tensor, "batch length d_model"]
Queries = Float[Tensor, "batch head query d_head"]
Keys = Float[Tensor, "batch head key d_head"]
QueryIds = Int[Tensor, "#batch query"]
KeyIds = Int[Tensor, "#batch key"]


class Positions(NamedTuple):
    """Where tokens stand: an id for each, and how many tokens each row really has.

    Rows that stand alike share one row of ids.
    """

    ids: Int[Tensor, "#batch length"]
    n_tokens: Int[Tensor, " #batch"]
    n_ids: int | None = None
    """All ids are below it; None: they must be read to know."""
    padded: bool = True
    """Whether a row may have fewer tokens than ids."""

    @classmethod
    def in_order(cls, length: int, device: torch.device, first: int = 0) -> Positions:
        """Ids in order, for rows without padding."""
        ids = torch.arange(first, first + length, device=device)[None]
        return cls(ids, torch.full((1,), first + length, device=device), n_ids=first + length)

    def shifted(self, by: int) -> Positions:
        """The same with every id so much larger."""
        return self._replace(ids=self.ids + by, n_ids=None if self.n_ids is None else self.n_ids + by)


class Encoding(nn.Module):
    """Built for a stack of this width; `causal` says that its queries never look ahead."""

    hard_codes: ClassVar[str] = ""
    """The structure of the task that this encoding gives away, in words; empty if it is generic."""
    forces_causal: ClassVar[bool] = False
    """Whether it hides what lies ahead, whatever the model would see."""
    hides_keys: ClassVar[bool] = False
    """Whether its bias may be -inf for a key that is not ahead."""
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

    def rotate_qk(self, query: Queries, key: Keys, query_ids: QueryIds, key_ids: KeyIds) -> tuple[Queries, Keys]:
        """Touch queries and keys."""
        return query, key

    def bias(self, query_id: Int[Tensor, ...], key_id: Int[Tensor, ...]) -> Float[Tensor, "... head"] | None:
        """Touch the scores: what is added for each pair of ids. None if nothing is.

        -inf hides the key, which `forces_causal` (what is ahead) or `hides_keys` (anything else) must announce.
        """
        return None


def build_encoding(
    settings: EncodingSettings, d_model: int, n_heads: int, *, causal: bool = False, random_positions: int | None = None
) -> Encoding:
    """The encoding that the settings name."""
    made: Encoding = ENCODINGS.get(settings.encoding)(d_model, n_heads, settings, causal=causal)
    return made if random_positions is None else Randomised(made, random_positions)


class Randomised(Encoding):
    """Another encoding, asked about random ids (Ruoss et al. 2023, arXiv 2305.16843).

    Of the ids 0 .. N-1 a random subset is drawn, in order, and given to the tokens. Trained on short sequences, the
    model has then met every id up to N. In training the subset changes at every step; otherwise it depends on the
    length alone, so that the same sequence always gets the same answer.
    """

    def __init__(self, inner: Encoding, n_ids: int) -> None:
        super().__init__(inner.d_model, inner.n_heads, EncodingSettings(), causal=inner.causal)
        self.inner, self.n_ids = inner, n_ids
        self.hard_codes, self.forces_causal = inner.hard_codes, inner.forces_causal  # type: ignore[misc]
        # Padding gets the id 0, so what is ahead of it are the tokens.
        self.hides_keys = inner.hides_keys or inner.forces_causal  # type: ignore[misc]

    def assign_ids(self, positions: Positions) -> Positions:
        """The same order, other ids."""
        length = positions.ids.shape[1]
        if length > self.n_ids:
            raise InputError(
                f"{length} tokens are more than the {self.n_ids} random positions there are",
                "train with a larger --random-positions",
            )
        # A row's own tokens decide, not the padding behind them: 8 tokens are spread over all ids, beside 16 or alone.
        if not positions.padded:
            lengths, which = [length], positions.n_tokens
        elif torch.compiler.is_compiling() or positions.n_tokens.device.type != "cpu":
            # Drawing for every length there may be is quicker than waiting for a GPU, and all that a graph can do.
            lengths, which = list(range(length + 1)), positions.n_tokens
        else:
            found, which = positions.n_tokens.unique(return_inverse=True)
            lengths = found.tolist()
        draw = drawn_subsets if self.training else fixed_subsets
        subsets = draw(self.n_ids, lengths, length).to(positions.ids.device)
        subsets = subsets if len(lengths) == 1 else subsets[which]
        n_rows = max(len(subsets), len(positions.ids))
        ids = subsets.expand(n_rows, -1).gather(1, positions.ids.expand(n_rows, -1))
        return positions._replace(ids=ids, n_ids=self.n_ids)

    def add_to_embeddings(self, x: Embeddings, positions: Positions) -> Embeddings:
        """As the inner encoding does."""
        return self.inner.add_to_embeddings(x, positions)

    def rotate_qk(self, query: Queries, key: Keys, query_ids: QueryIds, key_ids: KeyIds) -> tuple[Queries, Keys]:
        """As the inner encoding does."""
        return self.inner.rotate_qk(query, key, query_ids, key_ids)

    def bias(self, query_id: Int[Tensor, ...], key_id: Int[Tensor, ...]) -> Float[Tensor, "... head"] | None:
        """As the inner encoding does."""
        return self.inner.bias(query_id, key_id)


class FoundTable(Encoding):
    """Rows that were found in somebody's model, added to the embeddings there; learned, or not."""

    has_table: ClassVar[bool] = True
    refuses_past_table = True

    def __init__(self, rows: Float[Tensor, "position d_model"], *, is_learned: bool) -> None:
        super().__init__(rows.shape[1], 1, EncodingSettings())
        self.n_rows = len(rows)
        self.rows = nn.Parameter(rows.detach().float().cpu().clone(), requires_grad=is_learned)

    def add_to_embeddings(self, x: Embeddings, positions: Positions) -> Embeddings:
        """X + row(ids)."""
        return x + self.rows[positions.ids].to(x.dtype)


@dataclass(frozen=True)
class EncodingInUse:
    """An encoding as a model has trained it."""

    name: str
    """Of a table that was found, where it is in the model."""
    encoding: Encoding
    n_trained: int
    """Positions met in training: 0 to one less than this."""
    n_heads: int
    initial: Encoding | None = None
    """As it was before training, where that is known."""
    random_positions: int | None = None
    """Training drew its positions from this many; None if it counted from 0."""
    hard_codes: str = ""


class HasPositions(Protocol):
    """A model whose encoding is known."""

    @property
    def name(self) -> str:
        """As it was named."""

    @property
    def weights_sha256(self) -> str:
        """Every result names it."""

    def encoding_in_use(self) -> EncodingInUse:
        """Its positions; in an encoder-decoder, those of the encoder."""


def drawn_subsets(n_ids: int, lengths: Sequence[int], width: int) -> Int[Tensor, "lengths width"]:
    """For each length n, n random ids in order; then 0, for padding."""
    return torch.stack([F.pad(torch.randperm(n_ids)[:n].sort().values, (0, width - n)) for n in lengths])


# An operator of its own, since no graph can hold a generator that is seeded anew at every call.
@torch.library.custom_op(
    "headcount::fixed_subsets", mutates_args=(), schema="(int n_ids, int[] lengths, int width) -> Tensor"
)
def fixed_subsets(n_ids: int, lengths: Sequence[int], width: int) -> Tensor:
    """The same, always with the same ids."""
    return torch.stack([F.pad(_fixed_ids(n_ids, n), (0, width - n)) for n in lengths])


@fixed_subsets.register_fake
def _(n_ids: int, lengths: Sequence[int], width: int) -> Tensor:
    return torch.empty(len(lengths), width, dtype=torch.int64)


@lru_cache(maxsize=1024)
def _fixed_ids(n_ids: int, n: int) -> Int[Tensor, " n"]:
    return torch.randperm(n_ids, generator=torch.Generator().manual_seed(n))[:n].sort().values
