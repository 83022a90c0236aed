"""Attention from scratch (Vaswani et al. 2017, "Attention is all you need", section 3.2).

Each position asks a question (its query), every position offers a label (its key) and a content (its value):

    score(i, j)   = q_i . k_j / sqrt(d_head) + bias(i, j)        how well j's label answers i's question
    weight(i, j)  = exp score(i, j) / sum_j' exp score(i, j')    over the j that i may look at
    z_i           = sum_j weight(i, j) v_j

A head does this in its own d_head dimensions. The heads' z, side by side, go through one output projection into the
residual stream (multi_head.py); `MultiHeadAttention.output` is therefore the place where a head can be silenced.

`attend` is that text as code. `attend_fused` gives the same z by PyTorch's fused kernel, without ever holding the
weights; it runs whenever nobody asks for them. A position that may look at nothing gets z = 0, never NaN.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

Heads = Float[Tensor, "batch head length d_head"]
Mask = Bool[Tensor, "#batch #head #query #key"]
Bias = Float[Tensor, "#batch #head #query #key"]
Weights = Float[Tensor, "batch head query key"]


def attend(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch head key d_head"],
    value: Float[Tensor, "batch head key d_head"],
    mask: Mask | None = None,
    bias: Bias | None = None,
) -> tuple[Float[Tensor, "batch head query d_head"], Weights]:
    """The textbook: what each head's queries gather, and the weights they gathered it with."""
    mask = _hide(mask, bias)
    score_BHQK = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if bias is not None:
        score_BHQK = score_BHQK + bias
    if mask is not None:
        # The lowest finite number, not -inf: a row with nothing to look at would otherwise be 0/0.
        score_BHQK = score_BHQK.masked_fill(~mask, torch.finfo(score_BHQK.dtype).min)
    weights_BHQK = score_BHQK.softmax(dim=-1)
    if mask is not None:
        weights_BHQK = weights_BHQK.masked_fill(~mask, 0.0)
    return weights_BHQK @ value, weights_BHQK


def attend_fused(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch head key d_head"],
    value: Float[Tensor, "batch head key d_head"],
    mask: Mask | None = None,
    bias: Bias | None = None,
    *,
    triangle: bool = False,
) -> Float[Tensor, "batch head query d_head"]:
    """The same z in one kernel, which takes mask and bias as a single additive term.

    With `triangle`, the mask is known to hide just what lies ahead, and the kernel needs none.
    """
    if triangle and bias is None:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)
    mask = _hide(mask, bias)
    if mask is None:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
    lowest = torch.finfo(query.dtype).min
    open_score = query.new_zeros(()) if bias is None else bias
    z_BHQE = F.scaled_dot_product_attention(query, key, value, attn_mask=open_score.where(mask, lowest))
    sees_something = mask.any(dim=-1, keepdim=True)
    return z_BHQE if sees_something.all() else z_BHQE.masked_fill(~sees_something, 0.0)


def _hide(mask: Mask | None, bias: Bias | None) -> Mask | None:
    """A bias of -inf hides a position just as a mask does."""
    if bias is None or not bias.isneginf().any():
        return mask
    open_BHQK = ~bias.isneginf()
    return open_BHQK if mask is None else mask & open_BHQK


class KeyValueCache:
    """Keys and values that one attention block keeps between decoding steps."""

    def __init__(self) -> None:
        self.key: Tensor | None = None
        self.value: Tensor | None = None

    def append(self, key: Heads, value: Heads) -> tuple[Tensor, Tensor]:
        """Add new positions; returns all there are."""
        if self.key is not None and self.value is not None:
            key, value = torch.cat([self.key, key], dim=2), torch.cat([self.value, value], dim=2)
        self.key, self.value = key, value
        return key, value
