"""Windows on position ids: each query sees the keys whose ids are close to its own, wherever they are in the sequence.

If a task gives one id to all digits of one significance, a window of 1 holds few keys in sums of any length:

    tokens   4 7 3 + 4 1 8 =      374+814, least significant digit first
    ids      1 2 3 0 1 2 3 0
    near     ids 1, 2, 3          of a query with the id 2: the tokens 4 7 3 and 4 1 8

`near_keys` lists these keys for each query, so that attention to them takes time and memory that grow linearly with
the length. Short sequences are faster with a mask (models/masking.py); both give the same outputs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Ids = Int[Tensor, "#batch length"]
NEAR_AT_ONCE = 2**21
"""Largest number of entries of the keys that are gathered together, over rows, queries, keys and dimensions."""


class NearKeys(NamedTuple):
    """The keys in the window of each query, in lists of equal lengths."""

    keys: Int[Tensor, "#batch query near"]
    """The positions of the keys; 0 where a list has no more keys."""
    sees: Bool[Tensor, "#batch query near"]
    """Whether the query sees the key: False behind the end of a list, for later keys and for padding."""

    def of_queries(self, queries: slice) -> NearKeys:
        """Return the keys near these queries."""
        return NearKeys(self.keys[:, queries], self.sees[:, queries])


def near_keys(ids: Ids, window: int, is_token: Bool[Tensor, "#batch length"] | None = None) -> NearKeys:
    """List, for each query, the earlier keys whose ids differ from its own by at most `window`, and itself.

    `is_token` is False at padding, which is in no list; None if there is no padding.
    """
    n_rows, n = ids.shape
    if is_token is not None and len(is_token) > n_rows == 1 and bool((is_token == is_token[:1]).all()):
        is_token = is_token[:1]
    if is_token is not None and len(is_token) > n_rows:
        ids, n_rows = ids.expand(len(is_token), -1), len(is_token)
    n_ids = int(ids.max()) + 1 + 2 * window
    # Each row has ids of its own, with a margin of the window's size at both ends.
    cell = ids + window + n_ids * torch.arange(n_rows, device=ids.device)[:, None]
    places = torch.arange(n, device=ids.device).expand(n_rows, n)
    kept = slice(None) if is_token is None else is_token.expand(n_rows, n).flatten()
    key_cell, key_place = cell.flatten()[kept], places.flatten()[kept]
    order = key_cell.argsort(stable=True)
    key_cell, key_place = key_cell[order], key_place[order]
    counts = key_cell.bincount(minlength=n_rows * n_ids)
    rank = torch.arange(len(key_cell), device=ids.device) - (counts.cumsum(0) - counts)[key_cell]
    table = torch.full((n_rows * n_ids, int(counts.max())), n, device=ids.device)
    table[key_cell, rank] = key_place
    index = table[cell[..., None] + torch.arange(-window, window + 1, device=ids.device)].flatten(start_dim=2)
    sees = index <= places[..., None]
    return NearKeys(index.where(sees, 0), sees)


def attend_near(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch head key d_head"],
    value: Float[Tensor, "batch head key d_head"],
    near: NearKeys,
    bias: Float[Tensor, "#batch #head query near"] | None = None,
) -> Float[Tensor, "batch head query d_head"]:
    """Return the heads' outputs z if each query attends to its near keys only.

    A bias of -inf hides a key. The formulas are those of `models.attention.attend`.
    """
    n_near, d_all = near.keys.shape[2], query.shape[1] * query.shape[3]
    together = max(1, NEAR_AT_ONCE // max(1, len(query) * n_near * d_all))
    chunks = []
    for start in range(0, query.shape[2], together):
        part = slice(start, start + together)
        index, sees_BQN = near.of_queries(part)
        score_BHQN = (query[:, :, part, None] * _gathered(key, index)).sum(dim=-1) / math.sqrt(query.shape[-1])
        sees_BHQN = sees_BQN[:, None]
        if bias is not None:
            score_BHQN, sees_BHQN = score_BHQN + bias[:, :, part], sees_BHQN & ~bias[:, :, part].isneginf()
        weights_BHQN = score_BHQN.masked_fill(~sees_BHQN, torch.finfo(score_BHQN.dtype).min).softmax(dim=-1)
        weights_BHQN = weights_BHQN.masked_fill(~sees_BHQN, 0.0)
        chunks.append((weights_BHQN[..., None] * _gathered(value, index)).sum(dim=3))
    return chunks[0] if len(chunks) == 1 else torch.cat(chunks, dim=2)


def _gathered(
    x: Float[Tensor, "batch head key d_head"], index: Int[Tensor, "#batch query near"]
) -> Float[Tensor, "batch head query near d_head"]:
    """Return the entries of `x` at the keys of `index`."""
    if len(index) == 1:
        return x[:, :, index[0]]
    rows = torch.arange(len(x), device=x.device)[:, None, None]
    return x.transpose(1, 2)[rows, index].movedim(3, 1)
