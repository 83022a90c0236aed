"""Attention from scratch (Vaswani et al. 2017, "Attention is all you need", section 3.2).

Each position asks a question (its query), every position offers a label (its key) and a content (its value):

    score(i, j)   = q_i . k_j / sqrt(d_head) + bias(i, j)        how well j's label answers i's question
    weight(i, j)  = exp score(i, j) / sum_j' exp score(i, j')    over the j that i may attend to
    z_i           = sum_j weight(i, j) v_j

A head does this in its own d_head dimensions. The heads' z, side by side, go through one output projection into the
residual stream; `MultiHeadAttention.output` is therefore the place where a head can be ablated.

`attend` is that text as code. `attend_fused` gives the same z by PyTorch's fused kernel, without ever holding the
weights; it runs whenever nobody asks for them. A position that may attend to nothing gets z = 0, never NaN.
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
    """The textbook: what each head's queries gather, and the weights they gathered it with.

    Without `bias_hides`, the bias is known to hide nothing that the mask leaves open.
    """
    mask = _hide(mask, bias) if bias_hides else mask
    score_BHQK = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if bias is not None:
        score_BHQK = score_BHQK + bias
    if mask is not None:
        # The lowest finite number, not -inf: a row with nothing to attend to would otherwise be 0/0.
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
    """The same z in one kernel, which takes mask and bias as a single additive term.

    With `all_see`, every query is known to see some key. With `is_causal`, the mask is known to hide just what lies
    ahead, and the kernel needs none.
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
    """A bias of -inf hides a position just as a mask does."""
    if bias is None:
        return mask
    open_BHQK = ~bias.isneginf()
    return open_BHQK if mask is None else mask & open_BHQK


class KeyValueCache:
    """Keys and values that one attention block keeps between decoding steps."""

    key: Tensor | None = None
    value: Tensor | None = None

    def append(self, key: Keys, value: Keys) -> tuple[Tensor, Tensor]:
        """Add new positions; returns all there are."""
        if self.key is not None and self.value is not None:
            key, value = torch.cat([self.key, key], dim=2), torch.cat([self.value, value], dim=2)
        self.key, self.value = key, value
        return key, value


@runtime_checkable
class AttentionReader(Protocol):
    """Is shown every site's weights, the queries of one site in order but perhaps only some at a time."""

    def read(self, site: HeadSite, weights: Weights, keys: slice, n_keys: int) -> None:
        """Weights of the next queries over these of the site's keys; over the rest they are 0."""


class AttentionCache(dict[HeadSite, Tensor]):
    """Keeps all of them: [batch, head, query, key] by site."""

    def read(self, site: HeadSite, weights: Weights, keys: slice, n_keys: int) -> None:
        """Add the next queries."""
        whole = F.pad(weights, (keys.start, n_keys - keys.stop))
        self[site] = torch.cat([self[site], whole], dim=2) if site in self else whole


LOG_N_SCALE = 0.4
"""What the scores are multiplied with at first, per log n: about 1 at 12 keys."""


class MultiHeadAttention(nn.Module):
    """Self-attention, or cross-attention when `memory` is given.

    With `scalable_softmax`, scores are multiplied by s_h log n, where n is how many keys a query sees and s_h is
    learned for each head (Nakanishi 2025, "Scalable-softmax is superior for attention", arXiv 2501.19399). Softmax over
    more keys is flatter; this keeps it as sharp as it was. (Adding log n instead would change nothing: softmax ignores
    it.)

    Of the `n_heads` heads only those `kept` are there, as wide as they would be among all.
    """

    def __init__(
        self, d_model: int, n_heads: int, *, kept: tuple[int, ...] | None = None, scalable_softmax: bool = False
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
        """What attention adds to the residual stream.

        `read` is shown the weights of some queries, the keys they are about, and how many keys there are. One row of
        `x` may attend to a memory of many rows, and becomes many.
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
        found = []
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
            found.append(z_BHQE)
        z_BHQE = found[0] if len(found) == 1 else torch.cat(found, dim=2)
        return self.output(z_BHQE.transpose(1, 2).flatten(start_dim=2))

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


def _scaled(bias: Bias, scale: Tensor | None, rows: slice) -> Bias:
    """The bias times how sharp these queries are; what it hides stays hidden."""
    if scale is None:
        return bias
    hidden = bias.isneginf()  # apart, for 0 times infinity is NaN, here or in the gradient
    if scale.shape[2] > 1:
        scale = scale[:, :, rows]
    return (bias.masked_fill(hidden, 0.0) * scale).masked_fill(hidden, -torch.inf)
