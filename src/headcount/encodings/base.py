"""The base class of position encodings, the position ids they take, and two special encodings.

`Randomised` gives random ids to another encoding. `FoundTable` is a position table that was found in a user's model.

An encoding may override `add_to_embeddings`, `rotate_qk` and `bias`. By default, these methods change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple

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
    """The position ids of a batch of tokens, and the number of tokens of each row."""

    ids: Int[Tensor, "#batch length"]
    """The id of each position; a single row serves all rows of the batch."""
    n_tokens: Int[Tensor, " #batch"]
    """The number of tokens in each row, without padding."""
    n_ids: int | None = None
    """A number larger than every id; None if no such number is known without reading the ids from the GPU."""
    padded: bool = True
    """Whether a row may have padding, so that it has fewer tokens than ids."""

    @classmethod
    def in_order(cls, length: int, device: torch.device, first: int = 0) -> Positions:
        """Return positions with the consecutive ids first, first + 1, ..., for `length` tokens without padding."""
        ids = torch.arange(first, first + length, device=device)[None]
        return cls(ids, torch.full((1,), first + length, device=device), n_ids=first + length)

    def shifted(self, by: int) -> Positions:
        """Return a copy of these positions with `by` added to every id."""
        return self._replace(ids=self.ids + by, n_ids=None if self.n_ids is None else self.n_ids + by)


class Encoding(nn.Module):
    """Base class of position encodings; `causal` states that queries of the model never see later keys."""

    hard_codes: ClassVar[str] = ""
    """The structure of the task that this encoding gives to the model, in words; empty for a generic encoding."""
    forces_causal: ClassVar[bool] = False
    """Whether the encoding hides later keys even in a bidirectional model."""
    hides_keys: ClassVar[bool] = False
    """Whether the encoding's bias may hide (by -inf) a key that is not later than the query."""
    uses_ids: ClassVar[bool] = True
    """Whether the encoding uses position ids at all."""
    is_bias_of_distance: ClassVar[bool] = False
    """Whether the encoding is only a bias that depends on the distance j - i between query i and key j."""
    needs_length: ClassVar[bool] = False
    """Whether the encoding depends on the length of the whole sequence, which a decoder does not know in advance."""
    has_table: ClassVar[bool] = False
    """Whether the encoding has a table with one row for each of `n_positions` ids, and none for later ids."""
    n_rows: int | None = None
    """The number of rows of the position table; None if the encoding has no table."""
    refuses_past_table: bool = False
    """Whether a position id past the end of the table is an error."""

    def __init__(self, d_model: int, n_heads: int, settings: EncodingSettings, *, causal: bool = False) -> None:
        super().__init__()
        self.d_model, self.n_heads, self.causal = d_model, n_heads, causal

    def step(self, n: int) -> float:
        """Return the step from one token's position p in the sinusoid PE(p) to the next, in a sequence of n tokens."""
        return 1.0

    def forward(self, x: Embeddings, positions: Positions) -> Embeddings:
        """Return `add_to_embeddings(x, positions)`, so that an encoding can be called like any layer."""
        return self.add_to_embeddings(x, positions)

    def assign_ids(self, positions: Positions) -> Positions:
        """Return the positions that `add_to_embeddings`, `rotate_qk` and `bias` get; by default, the given ones.

        A subclass may replace the ids, for example by random ones.
        """
        return positions

    def add_to_embeddings(self, x: Embeddings, positions: Positions) -> Embeddings:
        """Return the embeddings plus the encoding of their positions; by default, return them unchanged."""
        return x

    def rotate_qk(self, query: Queries, key: Keys, query_ids: QueryIds, key_ids: KeyIds) -> tuple[Queries, Keys]:
        """Return the queries and keys, changed according to their position ids (rotary encodings rotate them)."""
        return query, key

    def bias(self, query_id: Int[Tensor, ...], key_id: Int[Tensor, ...]) -> Float[Tensor, "... head"] | None:
        """Return the bias that is added to the attention score of each pair of query and key ids, or None for no bias.

        A bias of -inf hides the key. An encoding that hides keys must set `forces_causal` (it hides later keys) or
        `hides_keys` (it hides other keys).
        """
        return None


def build_encoding(
    settings: EncodingSettings, d_model: int, n_heads: int, *, causal: bool = False, random_positions: int | None = None
) -> Encoding:
    """Return a new position encoding for a model: the one that `settings.encoding` names.

    With `random_positions`, the encoding gets random ids below this number.
    """
    encoding: Encoding = ENCODINGS.get(settings.encoding)(d_model, n_heads, settings, causal=causal)
    return encoding if random_positions is None else Randomised(encoding, random_positions)


class Randomised(Encoding):
    """A wrapper that gives another encoding random ids (Ruoss et al. 2023, arXiv 2305.16843).

    The tokens get a random subset of the ids 0 .. N-1, in increasing order. A model trained on short sequences has then
    seen every id up to N. In training, the subset changes at every step. Otherwise it depends on the length alone, so
    that a sequence always gets the same answer.
    """

    def __init__(self, inner: Encoding, n_ids: int) -> None:
        super().__init__(inner.d_model, inner.n_heads, EncodingSettings(), causal=inner.causal)
        self.inner, self.n_ids = inner, n_ids
        self.hard_codes, self.forces_causal = inner.hard_codes, inner.forces_causal  # type: ignore[misc]
        # Padding gets the id 0, so all tokens count as later than padding.
        self.hides_keys = inner.hides_keys or inner.forces_causal  # type: ignore[misc]

    def assign_ids(self, positions: Positions) -> Positions:
        """Return positions with random ids in ascending order, drawn from the ids 0 .. n_ids - 1."""
        length = positions.ids.shape[1]
        if length > self.n_ids:
            raise InputError(
                f"a sequence of {length} tokens needs {length} different position ids, but this model was trained "
                f"with random ids from only {self.n_ids}",
                "give a shorter sequence, or train with a larger --random-positions",
            )
        # The subset depends on a row's number of tokens, not on its padding: 8 tokens get the same ids in any batch.
        if not positions.padded:
            lengths, which = [length], positions.n_tokens
        elif torch.compiler.is_compiling() or positions.n_tokens.device.type != "cpu":
            # Drawing a subset for every possible length is faster than waiting for a GPU, and works in a graph.
            lengths, which = list(range(length + 1)), positions.n_tokens
        else:
            distinct, which = positions.n_tokens.unique(return_inverse=True)
            lengths = distinct.tolist()
        draw = drawn_subsets if self.training else fixed_subsets
        subsets = draw(self.n_ids, lengths, length).to(positions.ids.device)
        subsets = subsets if len(lengths) == 1 else subsets[which]
        n_rows = max(len(subsets), len(positions.ids))
        ids = subsets.expand(n_rows, -1).gather(1, positions.ids.expand(n_rows, -1))
        return positions._replace(ids=ids, n_ids=self.n_ids)

    def add_to_embeddings(self, x: Embeddings, positions: Positions) -> Embeddings:
        """Return the embeddings as the wrapped encoding changes them."""
        return self.inner.add_to_embeddings(x, positions)

    def rotate_qk(self, query: Queries, key: Keys, query_ids: QueryIds, key_ids: KeyIds) -> tuple[Queries, Keys]:
        """Return the queries and keys as the wrapped encoding changes them."""
        return self.inner.rotate_qk(query, key, query_ids, key_ids)

    def bias(self, query_id: Int[Tensor, ...], key_id: Int[Tensor, ...]) -> Float[Tensor, "... head"] | None:
        """Return the bias that the wrapped encoding adds to attention scores; None if it adds none."""
        return self.inner.bias(query_id, key_id)


class FoundTable(Encoding):
    """A table of position vectors that was found in a model not built by headcount, and is added to its embeddings."""

    has_table: ClassVar[bool] = True
    refuses_past_table = True

    def __init__(self, rows: Float[Tensor, "position d_model"], *, is_learned: bool) -> None:
        super().__init__(rows.shape[1], 1, EncodingSettings())
        self.n_rows = len(rows)
        self.rows = nn.Parameter(rows.detach().float().cpu().clone(), requires_grad=is_learned)

    def add_to_embeddings(self, x: Embeddings, positions: Positions) -> Embeddings:
        """Return the embeddings plus the table's row of each position id: x + rows[ids]."""
        return x + self.rows[positions.ids].to(x.dtype)


@dataclass(frozen=True)
class EncodingInUse:
    """The position encoding of a trained model, and the positions that occurred in its training."""

    name: str
    """The name of the encoding or, for a table found in another model, the path of the table."""
    encoding: Encoding
    n_trained: int
    """The number of positions used in training: 0 to n_trained - 1."""
    n_heads: int
    initial: Encoding | None = None
    """The encoding as it was before training; None if it is not known."""
    random_positions: int | None = None
    """The number of ids from which training drew random positions; None if positions were 0, 1, 2, ..."""
    hard_codes: str = ""


def drawn_subsets(n_ids: int, lengths: Sequence[int], width: int) -> Int[Tensor, "lengths width"]:
    """Return, for each length n, n random position ids below `n_ids` in increasing order, padded with 0 to `width`."""
    return torch.stack([F.pad(torch.randperm(n_ids)[:n].sort().values, (0, width - n)) for n in lengths])


# A custom operator, because a graph cannot contain a generator that is seeded at every call.
@torch.library.custom_op(
    "headcount::fixed_subsets", mutates_args=(), schema="(int n_ids, int[] lengths, int width) -> Tensor"
)
def fixed_subsets(n_ids: int, lengths: Sequence[int], width: int) -> Tensor:
    """Return, for each length n, n increasing position ids below `n_ids`, padded with 0; all calls return the same."""
    return torch.stack([F.pad(_fixed_ids(n_ids, n), (0, width - n)) for n in lengths])


@fixed_subsets.register_fake
def _(n_ids: int, lengths: Sequence[int], width: int) -> Tensor:
    return torch.empty(len(lengths), width, dtype=torch.int64)


@lru_cache(maxsize=1024)
def _fixed_ids(n_ids: int, n: int) -> Int[Tensor, " n"]:
    return torch.randperm(n_ids, generator=torch.Generator().manual_seed(n))[:n].sort().values
