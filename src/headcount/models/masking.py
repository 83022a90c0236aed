"""What the queries of one attention block may see, and what their positions add to the scores.

Nothing here is as large as queries times keys: masks and biases are made for a few queries at a time, so memory grows
with the length and not with its square. Under a window, a few queries see only the keys around them, and time grows
with the length alone as well.

    causal, 8 tokens, pieces of 4       window of 1, 8 tokens, pieces of 4
    queries 0-3   keys 0-3              queries 0-3   keys 0-4
    queries 4-7   keys 0-7              queries 4-7   keys 3-7

No layer reads the values of a tensor to decide what to do: reading waits for a GPU, and no graph could be made of the
model. Where padding may stand is known before the first layer (`Padding`), by whoever made the batch.
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

Mask = Bool[Tensor, "#batch #head #query #key"]
Bias = Float[Tensor, "#batch #head #query #key"]
Padding = Literal["none", "behind", "anywhere"]
"""Where a batch may have padding: nowhere, only behind a row's first token, or anywhere, even in a whole row."""
PAIRS = 2**20
"""Most pairs of a query and a key that are scored together, each in every head."""
NARROW = 64
"""Fewest queries together under a window: fewer would waste time, more would see keys in vain."""


@dataclass(frozen=True)
class AttentionMask:
    """Every query sees every key unless a field hides some. The last query stands beside the last key."""

    mask: Mask | None = None
    """Keys that are open; the rest, such as padding, is hidden."""
    causal: bool = False
    """No query attends to what is ahead."""
    window: int | None = None
    """No query attends farther than this many tokens."""
    encoding: Encoding | None = None
    queries: Positions | None = None
    keys: Positions | None = None
    """Positions of the queries and of the keys, for the encoding."""
    padding: Padding = "anywhere"
    """Where `mask` may hide a key."""

    def rotate_qk(self, query: Queries, key: Keys) -> tuple[Queries, Keys]:
        """The encoding's touch on queries and keys."""
        if self.encoding is None or self.queries is None or self.keys is None:
            return query, key
        return self.encoding.rotate_qk(query, key, self.queries.ids, self.keys.ids)

    def chunks(self, n_queries: int, n_keys: int) -> Iterator[tuple[slice, slice]]:
        """Queries that are scored together, and the keys that one of them may see."""
        past = n_keys - n_queries if self.causal or self.window is not None else 0
        rows = 1 if self.mask is None else len(self.mask)
        together = max(1, PAIRS // (rows * n_keys))
        if self.window is not None:
            together = max(NARROW, min(self.window, PAIRS // (3 * rows * self.window)))
        for start in range(0, n_queries, together):
            stop = min(start + together, n_queries)
            first = 0 if self.window is None else max(0, past + start - self.window)
            last = n_keys if self.window is None else min(n_keys, past + stop + self.window)
            yield slice(start, stop), slice(first, min(last, past + stop) if self.causal else last)

    def mask_for(self, queries: slice, keys: slice, n_queries: int, n_keys: int, device: torch.device) -> Mask | None:
        """Which of these queries may attend to which of these keys; None if each at all."""
        mask = self.mask
        if mask is not None:  # it may be broadcast along either axis
            n_rows, n_columns = mask.shape[2:]
            mask = mask[:, :, queries if n_rows > 1 else slice(None), keys if n_columns > 1 else slice(None)]
        if not self.causal and self.window is None:
            return mask
        i = torch.arange(queries.start, queries.stop, device=device)[:, None] + n_keys - n_queries
        j = torch.arange(keys.start, keys.stop, device=device)[None, :]
        parts = [] if mask is None else [mask]
        if self.causal:
            parts.append((j <= i)[None, None])
        if self.window is not None:
            parts.append(((i - j).abs() <= self.window)[None, None])
        return reduce(and_, parts)

    def is_causal_block(self, queries: slice, keys: slice) -> bool:
        """Whether each of these queries sees just the keys up to its own: a kernel can do that without a mask."""
        return self.causal and self.window is None and self.mask is None and queries == keys and queries.start == 0

    @property
    def bias_hides(self) -> bool:
        """Whether the encoding may hide a key that is open here."""
        encoding = self.encoding
        return encoding is not None and (encoding.hides_keys or (encoding.forces_causal and not self.causal))

    def all_see(self, n_queries: int, n_keys: int) -> bool:
        """Whether each query is known to see a key: the row's first or, where no key is padding, the one beside it."""
        has_reach = self.causal or self.window is not None
        if self.bias_hides or (has_reach and n_queries > n_keys):
            return False
        return self.mask is None or (self.padding == "behind" and self.window is None)

    def bias(self, queries: slice, keys: slice) -> Bias | None:
        """What the encoding adds to the scores of these pairs."""
        if self.encoding is None or self.queries is None or self.keys is None:
            return None
        added = self.encoding.bias(self.queries.ids[:, queries, None], self.keys.ids[:, None, keys])
        return None if added is None else added.movedim(-1, 1)

    def n_visible(self, n_queries: int, n_keys: int, device: torch.device) -> Int[Tensor, "#batch #query"]:
        """How many keys each query may see; 1 if none, for the log of 0 has no gradient."""
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
    """Where these tokens have padding, read off them; while a graph is made there is nothing to read: anywhere.

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
