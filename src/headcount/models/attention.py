"""Attention from scratch (Vaswani et al. 2017, "Attention is all you need", section 3.2).

Every position i has a query q_i, a key k_i and a value v_i:

    score(i, j)   = q_i . k_j / sqrt(d_head) + bias(i, j)        how well key j matches query i
    weight(i, j)  = exp score(i, j) / sum_j' exp score(i, j')    over the keys j that query i may see
    z_i           = sum_j weight(i, j) v_j

Each head does this in its own d_head dimensions. The heads' outputs z are concatenated and pass through one output
projection into the residual stream. A head is therefore ablated at the input of `MultiHeadAttention.output`.

`attend` implements these formulas. `attend_fused` computes the same z with PyTorch's fused kernel, which does not store
the attention weights; it is used unless the weights are needed. A query that sees no key gets z = 0, never NaN.
"""

import math
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from headcount.encodings.base import Keys, Queries
from headcount.heads import HeadSite
from headcount.models.masking import AttentionMask, Bias, Mask
from headcount.models.windows import attend_near

Weights = Float[Tensor, "batch head query key"]


def attend(
    query: Queries,
    key: Keys,
    value: Keys,
    mask: Mask | None = None,
    bias: Bias | None = None,
    *,
    bias_hides: bool = True,
) -> tuple[Queries, Weights]:
    """Return the heads' outputs z and the attention weights, computed by the textbook formulas.

    A bias of -inf hides a key. `bias_hides=False` states that no key is hidden in this way, which saves time.
    """
    mask = _hide(mask, bias) if bias_hides else mask
    score_BHQK = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if bias is not None:
        score_BHQK = score_BHQK + bias
    if mask is not None:
        # The lowest finite number, not -inf: a query without any visible key would otherwise give 0/0.
        score_BHQK = score_BHQK.masked_fill(~mask, torch.finfo(score_BHQK.dtype).min)
    weights_BHQK = score_BHQK.softmax(dim=-1)
    if mask is not None:
        weights_BHQK = weights_BHQK.masked_fill(~mask, 0.0)
    return weights_BHQK @ value, weights_BHQK


def attend_fused(
    query: Queries,
    key: Keys,
    value: Keys,
    mask: Mask | None = None,
    bias: Bias | None = None,
    *,
    bias_hides: bool = True,
    all_see: bool = False,
    is_causal: bool = False,
) -> Queries:
    """Return the heads' outputs z, computed by PyTorch's fused kernel, which takes mask and bias as one additive term.

    `bias_hides` is explained in `attend`. `all_see=True` states that every query sees at least one key.
    `is_causal=True` states that the mask hides exactly the later keys; the kernel then needs no mask.
    """
    if is_causal and bias is None:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)
    mask = _hide(mask, bias) if bias_hides else mask
    if mask is None:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
    lowest = torch.finfo(query.dtype).min
    open_score = query.new_zeros(()) if bias is None else bias
    z_BHQE = F.scaled_dot_product_attention(query, key, value, attn_mask=open_score.where(mask, lowest))
    return z_BHQE if all_see else z_BHQE.masked_fill(~mask.any(dim=-1, keepdim=True), 0.0)


def _hide(mask: Mask | None, bias: Bias | None) -> Mask | None:
    """Return a mask that hides the keys hidden by `mask` and the keys whose bias is -inf; None if it hides none."""
    if bias is None:
        return mask
    open_BHQK = ~bias.isneginf()
    return open_BHQK if mask is None else mask & open_BHQK


class KeyValueCache:
    """The keys and values that one attention block keeps between decoding steps.

    They are parts of buffers that double when they are full, so that a new position does not copy all earlier ones.
    """

    key: Tensor | None = None
    value: Tensor | None = None
    _buffers: tuple[Tensor, Tensor] | None = None

    def append(self, key: Keys, value: Keys) -> tuple[Tensor, Tensor]:
        """Append the keys and values of new positions, and return the keys and values of all positions."""
        if self.key is None or self.value is None:
            self.key, self.value = key, value
            return key, value
        n_past, n = self.key.shape[2], self.key.shape[2] + key.shape[2]
        if self._buffers is None or self._buffers[0].shape[2] < n:
            self._buffers = _with_room(self.key, 2 * n), _with_room(self.value, 2 * n)
        for buffer, new in zip(self._buffers, (key, value), strict=True):
            buffer[:, :, n_past:n] = new
        self.key, self.value = (buffer[:, :, :n] for buffer in self._buffers)
        return self.key, self.value


def _with_room(past: Tensor, n: int) -> Tensor:
    """Return a buffer of `n` positions that begins with the keys or values `past`; the rest is not set."""
    buffer = past.new_empty(*past.shape[:2], n, past.shape[3])
    buffer[:, :, : past.shape[2]] = past
    return buffer


@runtime_checkable
class AttentionReader(Protocol):
    """An object that receives the attention weights of every attention block, one chunk of queries after another."""

    def read(self, site: HeadSite, weights: Weights, keys: slice, n_keys: int) -> None:
        """Receive the attention weights of the next queries of one attention block.

        `keys` says which of the block's `n_keys` keys the weights are for; all other keys have weight 0.
        """


class AttentionCache(dict[HeadSite, Tensor]):
    """Collects the attention weights of a forward pass: maps each attention block to [batch, head, query, key]."""

    def read(self, site: HeadSite, weights: Weights, keys: slice, n_keys: int) -> None:
        """Append the attention weights of the next queries of an attention block to those received before."""
        over_all_keys = F.pad(weights, (keys.start, n_keys - keys.stop))
        self[site] = torch.cat([self[site], over_all_keys], dim=2) if site in self else over_all_keys


LOG_N_SCALE = 0.4
"""Initial value of s_h, the learned factor of scalable softmax: scores are multiplied by s_h log n for n keys.

For n = 12 keys, s_h log n is about 1 at the start of the training.
"""


class MultiHeadAttention(nn.Module):
    """Multi-head attention: self-attention, or cross-attention if `forward` gets a `memory`.

    With `scalable_softmax`, scores are multiplied by s_h log n, where n is the number of keys that a query sees and s_h
    is learned per head (Nakanishi 2025, "Scalable-softmax is superior for attention", arXiv 2501.19399). A softmax over
    more keys is flatter; the factor compensates for that. (Adding log n instead would have no effect on a softmax.)

    `kept` lists the indices of the heads that exist, if some of the `n_heads` heads were cut out; the width of a head
    stays d_model / n_heads.
    """

    def __init__(
        self, d_model: int, n_heads: int, *, kept: tuple[int, ...] | None = None, scalable_softmax: bool = False
    ) -> None:
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"n_heads ({n_heads}) must divide d_model ({d_model}) without remainder")
        self.n_heads, self.d_head = n_heads, d_model // n_heads
        self.kept = tuple(range(n_heads)) if kept is None else kept
        d_kept = len(self.kept) * self.d_head
        self.query = nn.Linear(d_model, d_kept)
        self.key = nn.Linear(d_model, d_kept)
        self.value = nn.Linear(d_model, d_kept)
        self.output = nn.Linear(d_kept, d_model)
        self.log_n_scale = nn.Parameter(torch.full((len(self.kept),), LOG_N_SCALE)) if scalable_softmax else None

    def forward(
        self,
        x: Float[Tensor, "#batch query d_model"],
        memory: Float[Tensor, "batch key d_model"] | None = None,
        *,
        masking: AttentionMask | None = None,
        read: Callable[[Weights, slice, int], None] | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "batch query d_model"]:
        """Return the output of the attention block, which is added to the residual stream.

        `read` is called for each chunk of queries with their attention weights, the slice of their keys, and the number
        of all keys. A single row of `x` may attend to a memory of many rows; the output then has as many rows as the
        memory.
        """
        masking = masking or AttentionMask()
        k_BHKE, v_BHKE = self._keys_and_values(x, memory, cache)
        q_BHQE = self._split(self.query(x)).expand(len(k_BHKE), -1, -1, -1)
        q_BHQE, k_BHKE = masking.rotate_qk(q_BHQE, k_BHKE)
        n_queries, n_keys, scale_BHQ1 = q_BHQE.shape[2], k_BHKE.shape[2], None
        if self.log_n_scale is not None:
            n_BHQ1 = masking.n_visible(n_queries, n_keys, self.log_n_scale.device)[:, None, :, None]
            scale_BHQ1 = self.log_n_scale[None, :, None, None] * n_BHQ1.to(self.log_n_scale).log()
            q_BHQE = q_BHQE * scale_BHQ1
        if masking.near is not None and read is None:
            bias = masking.near_bias(masking.near)
            if bias is not None:
                bias = _scaled(self._narrowed(bias), scale_BHQ1, slice(None)).to(q_BHQE.dtype)
            z_BHQE = attend_near(q_BHQE, k_BHKE, v_BHKE, masking.near, bias)
            return self.output(z_BHQE.transpose(1, 2).flatten(start_dim=2))
        chunks = []
        for rows, keys in masking.chunks(n_queries, n_keys):
            mask, bias = masking.mask_for(rows, keys, n_queries, n_keys, q_BHQE.device), masking.bias(rows, keys)
            if bias is not None:
                bias = _scaled(self._narrowed(bias), scale_BHQ1, rows).to(q_BHQE.dtype)
            inputs = q_BHQE[:, :, rows], k_BHKE[:, :, keys], v_BHKE[:, :, keys], mask, bias
            if read is None:
                z_BHQE = attend_fused(
                    *inputs,
                    bias_hides=masking.bias_hides,
                    all_see=masking.all_see(n_queries, n_keys),
                    is_causal=masking.is_causal_block(rows, keys),
                )
            else:
                z_BHQE, weights_BHQK = attend(*inputs, bias_hides=masking.bias_hides)
                read(weights_BHQK, keys, n_keys)
            chunks.append(z_BHQE)
        z_BHQE = chunks[0] if len(chunks) == 1 else torch.cat(chunks, dim=2)
        return self.output(z_BHQE.transpose(1, 2).flatten(start_dim=2))

    def _keys_and_values(self, x: Tensor, memory: Tensor | None, cache: KeyValueCache | None) -> tuple[Tensor, Tensor]:
        if memory is not None and cache is not None and cache.key is not None and cache.value is not None:
            return cache.key, cache.value  # the memory does not change during decoding
        source = x if memory is None else memory
        key, value = self._split(self.key(source)), self._split(self.value(source))
        return (key, value) if cache is None else cache.append(key, value)

    def _split(self, x_BLD: Tensor) -> Tensor:
        return x_BLD.unflatten(-1, (-1, self.d_head)).transpose(1, 2)

    def _narrowed(self, bias: Float[Tensor, "#batch #whole #query #key"]) -> Bias:
        """Return the bias of the heads that are not cut out, given the bias of all heads."""
        return bias if len(self.kept) == self.n_heads or bias.shape[1] == 1 else bias[:, list(self.kept)]


def _scaled(bias: Bias, scale: Tensor | None, rows: slice) -> Bias:
    """Return the bias of attention scores multiplied by the scale (s_h log n) of the queries in `rows`.

    Keys that the bias hides (-inf) stay hidden.
    """
    if scale is None:
        return bias
    hidden = bias.isneginf()  # handled separately, because 0 times infinity is NaN, here or in the gradient
    if scale.shape[2] > 1:
        scale = scale[:, :, rows]
    return (bias.masked_fill(hidden, 0.0) * scale).masked_fill(hidden, -torch.inf)
