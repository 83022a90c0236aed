"""Masks and biases of one attention block, computed for a chunk of queries at a time.

Memory grows linearly with the length, because masks and biases exist for a few queries at a time only. With a window, a
chunk of queries is scored against the keys around it only, so time grows linearly as well.

    causal, 8 tokens, chunks of 4       window of 1, 8 tokens, chunks of 4
    queries 0-3   keys 0-3              queries 0-3   keys 0-4
    queries 4-7   keys 0-7              queries 4-7   keys 3-7

No layer branches on the values of a tensor, because this would wait for a GPU and prevent the export of the model as a
graph. The caller therefore states before the first layer where a batch has padding (`Padding`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from headcount.encodings.base import Encoding, Keys, Positions, Queries
from headcount.models.windows import NearKeys

Mask = Bool[Tensor, "#batch #head #query #key"]
Bias = Float[Tensor, "#batch #head #query #key"]
Padding = Literal["none", "behind", "anywhere"]
"""Where a batch may have padding: nowhere (none), only after the first token of a row (behind), or anywhere.

With `anywhere`, a whole row may be padding."""
PAIRS = 2**20
"""Largest number of query-key pairs per head that are scored together."""
NARROW = 64
"""Smallest number of queries that are scored together if attention is limited to a window; fewer would be slower."""


@dataclass(frozen=True)
class AttentionMask:
    """Which keys each query sees: all keys, unless one of the fields hides some.

    Queries may be fewer than keys, as in decoding with a cache. The last query is then at the position of the last key.
    """

    mask: Mask | None = None
    """True for visible keys and False for hidden keys, such as padding; None if all keys are visible."""
    causal: bool = False
    """Whether later keys are hidden."""
    window: int | None = None
    """Largest distance between a query and a key that it sees; None for no limit."""
    encoding: Encoding | None = None
    queries: Positions | None = None
    """The positions of the queries, which the encoding uses."""
    keys: Positions | None = None
    """The positions of the keys, which the encoding uses."""
    padding: Padding = "anywhere"
    """Where the batch may have padding, which `mask` hides: none, behind or anywhere (see `Padding`)."""
    id_window: int | None = None
    """Largest difference between the position ids of a query and of a key that it sees; None for no limit."""
    near: NearKeys | None = None
    """The keys that each query sees, if they are listed; they replace all other fields that hide keys."""

    def rotate_qk(self, query: Queries, key: Keys) -> tuple[Queries, Keys]:
        """Return the queries and keys after the position encoding has rotated them; unchanged without an encoding."""
        if self.encoding is None or self.queries is None or self.keys is None:
            return query, key
        return self.encoding.rotate_qk(query, key, self.queries.ids, self.keys.ids)

    def chunks(self, n_queries: int, n_keys: int) -> Iterator[tuple[slice, slice]]:
        """Yield slices of queries that are scored together, each with the slice of keys that they may see."""
        past = n_keys - n_queries if self.causal or self.window is not None else 0
        rows = 1 if self.mask is None else len(self.mask)
        if self.id_window is not None and self.queries is not None:
            rows = max(rows, len(self.queries.ids))
        together = max(1, PAIRS // (rows * n_keys))
        if self.window is not None:
            together = max(NARROW, min(self.window, PAIRS // (3 * rows * self.window)))
        for start in range(0, n_queries, together):
            stop = min(start + together, n_queries)
            first = 0 if self.window is None else max(0, past + start - self.window)
            last = n_keys if self.window is None else min(n_keys, past + stop + self.window)
            yield slice(start, stop), slice(first, min(last, past + stop) if self.causal else last)

    def mask_for(self, queries: slice, keys: slice, n_queries: int, n_keys: int, device: torch.device) -> Mask | None:
        """Return the mask for a chunk of queries and keys, or None if each of these queries sees each of these keys."""
        mask = self.mask
        if mask is not None:  # it may be broadcast along either axis
            n_rows, n_columns = mask.shape[2:]
            mask = mask[:, :, queries if n_rows > 1 else slice(None), keys if n_columns > 1 else slice(None)]
        if not self.causal and self.window is None and self.id_window is None:
            return mask
        i = torch.arange(queries.start, queries.stop, device=device)[:, None] + n_keys - n_queries
        j = torch.arange(keys.start, keys.stop, device=device)[None, :]
        parts = [] if mask is None else [mask]
        if self.causal:
            parts.append((j <= i)[None, None])
        if self.window is not None:
            parts.append(((i - j).abs() <= self.window)[None, None])
        if self.id_window is not None and self.queries is not None and self.keys is not None:
            apart = (self.queries.ids[:, queries, None] - self.keys.ids[:, None, keys]).abs()
            parts.append((apart <= self.id_window)[:, None])
        return reduce(and_, parts)

    def is_causal_block(self, queries: slice, keys: slice) -> bool:
        """Return whether the mask of a chunk only hides later keys, so that a fused attention kernel needs no mask."""
        has_window = self.window is not None or self.id_window is not None
        return self.causal and not has_window and self.mask is None and queries == keys and queries.start == 0

    @property
    def bias_hides(self) -> bool:
        """Whether the position encoding's bias may hide a key (by -inf) that the mask leaves visible."""
        encoding = self.encoding
        return encoding is not None and (encoding.hides_keys or (encoding.forces_causal and not self.causal))

    def all_see(self, n_queries: int, n_keys: int) -> bool:
        """Return True only if every query certainly sees at least one key; the mask's values are not read."""
        has_window = self.window is not None or self.id_window is not None
        if self.bias_hides or ((self.causal or has_window) and n_queries > n_keys):
            return False
        return self.mask is None or (self.padding == "behind" and not has_window)

    def bias(self, queries: slice, keys: slice) -> Bias | None:
        """Return the position encoding's bias for the scores of a chunk of queries and keys, or None for no bias."""
        if self.encoding is None or self.queries is None or self.keys is None:
            return None
        added = self.encoding.bias(self.queries.ids[:, queries, None], self.keys.ids[:, None, keys])
        return None if added is None else added.movedim(-1, 1)

    def near_bias(self, near: NearKeys) -> Bias | None:
        """Return the position encoding's bias for the scores of each query and its near keys, or None for no bias."""
        if self.encoding is None or self.queries is None or self.keys is None:
            return None
        rows = torch.arange(len(self.keys.ids), device=near.keys.device)[:, None, None]
        added = self.encoding.bias(self.queries.ids[..., None], self.keys.ids[rows, near.keys])
        return None if added is None else added.movedim(-1, 1)

    def n_visible(self, n_queries: int, n_keys: int, device: torch.device) -> Int[Tensor, "#batch #query"]:
        """Return the number of keys that each query sees, or 1 if it sees none, so that the logarithm is finite."""
        if self.near is not None:
            return self.near.sees.sum(dim=-1).clamp(min=1)
        if self.causal and self.window is None and self.id_window is None and self.mask is not None:
            n_earlier = self.mask.expand(-1, -1, 1, n_keys)[:, 0, 0].cumsum(dim=-1)  # padding may be anywhere
            return n_earlier[:, n_keys - n_queries :].clamp(min=1)
        if self.id_window is not None:
            chunks = self.chunks(n_queries, n_keys)
            masks = (self.mask_for(rows, keys, n_queries, n_keys, device) for rows, keys in chunks)
            return torch.cat([mask.sum(dim=-1)[:, 0] for mask in masks if mask is not None], dim=1).clamp(min=1)
        total = torch.full((1, 1), n_keys, device=device)
        if self.mask is not None:
            total = self.mask.expand(-1, -1, -1, n_keys).sum(dim=-1)[:, 0]
        if not self.causal and self.window is None:
            return total.clamp(min=1)
        i = torch.arange(n_keys - n_queries, n_keys, device=device)[None]
        reach = n_keys if self.window is None else self.window
        ahead = i if self.causal else torch.minimum(i + reach, total - 1)
        return (torch.minimum(ahead, total - 1) - (i - reach).clamp(min=0) + 1).clamp(min=1)


def padding_of(tokens: NDArray[Any] | Int[Tensor, "batch length"], pad_id: int | None) -> Padding:
    """Return where a batch of tokens has padding: 'none', 'behind' or 'anywhere' (see `Padding`).

    While PyTorch compiles or exports the model, the values of tokens are unknown, so the answer is 'anywhere'.

    >>> padding_of(torch.tensor([[3, 5, 9], [3, 9, 9]]), pad_id=9)
    'behind'
    """
    if pad_id is None:
        return "none"
    if torch.compiler.is_compiling():
        return "anywhere"
    is_token = tokens != pad_id
    if is_token.all():
        return "none"
    return "behind" if is_token[:, 0].all() else "anywhere"
