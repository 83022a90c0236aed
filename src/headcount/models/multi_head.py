"""Multi-head attention: projections around `attend`, some queries at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headcount.encodings.base import Keys, Queries
from headcount.models.attention import Bias, KeyValueCache, Weights, attend, attend_fused
from headcount.models.sight import EVERYTHING, Sight

Reader = Callable[[Weights, slice, int], None]
"""Is shown the weights of some queries, the keys they are about, and how many keys there are."""
SHARPNESS = 0.4
"""What the scores are multiplied with at first, per log n: about 1 at 12 keys."""


class MultiHeadAttention(nn.Module):
    """Self-attention, or cross-attention when `memory` is given.

    With `sharpens`, scores are multiplied by s_h log n, where n is how many keys a query sees and s_h is learned for
    each head (Nakanishi 2025, "Scalable-softmax is superior for attention", arXiv 2501.19399). Softmax over more keys
    is flatter; this keeps it as sharp as it was. (Adding log n instead would change nothing: softmax ignores it.)

    Of the `n_heads` heads only those `kept` are there, as wide as they would be among all.
    """

    def __init__(
        self, d_model: int, n_heads: int, *, kept: tuple[int, ...] | None = None, sharpens: bool = False
    ) -> None:
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"n_heads ({n_heads}) must divide d_model ({d_model})")
        self.n_heads, self.d_head = n_heads, d_model // n_heads
        self.kept = tuple(range(n_heads)) if kept is None else kept
        d_kept = len(self.kept) * self.d_head
        self.query = nn.Linear(d_model, d_kept)
        self.key = nn.Linear(d_model, d_kept)
        self.value = nn.Linear(d_model, d_kept)
        self.output = nn.Linear(d_kept, d_model)
        self.sharpness = nn.Parameter(torch.full((len(self.kept),), SHARPNESS)) if sharpens else None

    def forward(
        self,
        x: Float[Tensor, "#batch query d_model"],
        memory: Float[Tensor, "batch key d_model"] | None = None,
        *,
        sight: Sight | None = None,
        read: Reader | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "batch query d_model"]:
        """What attention adds to the residual stream; `read` is shown the weights, some queries at a time.

        One row of `x` may look at a memory of many rows, and becomes many.
        """
        sight = sight or EVERYTHING
        k_BHKE, v_BHKE = self._keys_and_values(x, memory, cache)
        q_BHQE = self._split(self.query(x)).expand(len(k_BHKE), -1, -1, -1)
        q_BHQE, k_BHKE = sight.turn(q_BHQE, k_BHKE)
        sharp_BHQ1 = self._sharp(sight, q_BHQE.shape[2], k_BHKE.shape[2])
        if sharp_BHQ1 is not None:
            q_BHQE = q_BHQE * sharp_BHQ1
        z_BHQE = self._look(q_BHQE, k_BHKE, v_BHKE, sight, sharp_BHQ1, read)
        return self.output(z_BHQE.transpose(1, 2).flatten(start_dim=2))

    def _look(
        self, query: Queries, key: Keys, value: Keys, sight: Sight, sharp: Tensor | None, read: Reader | None
    ) -> Queries:
        n_queries, n_keys = query.shape[2], key.shape[2]
        found = []
        for rows, keys in sight.pieces(n_queries, n_keys):
            mask, bias = sight.open(rows, keys, n_queries, n_keys, query.device), sight.bias(rows, keys)
            if bias is not None:
                bias = _sharpened(self._narrowed(bias), sharp, rows).to(query.dtype)
            asked = query[:, :, rows], key[:, :, keys], value[:, :, keys], mask, bias
            if read is None:
                found.append(attend_fused(*asked, triangle=sight.is_triangle(rows, keys)))
            else:
                z_BHQE, weights_BHQK = attend(*asked)
                read(weights_BHQK, keys, n_keys)
                found.append(z_BHQE)
        return found[0] if len(found) == 1 else torch.cat(found, dim=2)

    def _sharp(self, sight: Sight, n_queries: int, n_keys: int) -> Float[Tensor, "#batch head #query 1"] | None:
        if self.sharpness is None:
            return None
        n_BQ = sight.n_seen(n_queries, n_keys, self.sharpness.device)
        return self.sharpness[None, :, None, None] * n_BQ[:, None, :, None].to(self.sharpness).log()

    def _keys_and_values(self, x: Tensor, memory: Tensor | None, cache: KeyValueCache | None) -> tuple[Tensor, Tensor]:
        if memory is not None and cache is not None and cache.key is not None and cache.value is not None:
            return cache.key, cache.value  # the memory does not change while an answer is decoded
        source = x if memory is None else memory
        key, value = self._split(self.key(source)), self._split(self.value(source))
        return (key, value) if cache is None else cache.append(key, value)

    def _split(self, x_BLD: Tensor) -> Tensor:
        return x_BLD.unflatten(-1, (-1, self.d_head)).transpose(1, 2)

    def _narrowed(self, bias: Float[Tensor, "#batch #whole #query #key"]) -> Bias:
        """An encoding serves all layers, so its bias is of all heads, or the same for all."""
        return bias if len(self.kept) == self.n_heads or bias.shape[1] == 1 else bias[:, list(self.kept)]


def _sharpened(bias: Bias, sharp: Tensor | None, rows: slice) -> Bias:
    """The bias times how sharp these queries are; what it hides stays hidden."""
    if sharp is None:
        return bias
    hidden = bias.isneginf()  # apart, for 0 times infinity is NaN, here or in the gradient
    if sharp.shape[2] > 1:
        sharp = sharp[:, :, rows]
    return (bias.masked_fill(hidden, 0.0) * sharp).masked_fill(hidden, -torch.inf)
