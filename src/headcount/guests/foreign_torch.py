"""PyTorch's own attention with any number of heads: nn.MultiheadAttention cannot have fewer than fill its width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headcount.errors import InputError
from headcount.guests.cut_layers import features, leave_bias


class AnyHeads(nn.Module):
    """What is left of an nn.MultiheadAttention; it is called as that is, and says what that says."""

    in_proj_bias = None
    _qkv_same_embed_dim = False  # so nn.TransformerEncoderLayer does not pass it by
    in_proj_weight = None

    def __init__(self, old: nn.Module, keep: Sequence[int]) -> None:
        super().__init__()
        if not isinstance(old, nn.MultiheadAttention) or old.bias_k is not None or old.add_zero_attn:
            raise InputError("heads of attention with add_bias_kv or add_zero_attn cannot be cut out", "silence them")
        self.embed_dim, self.batch_first, self.dropout = old.embed_dim, old.batch_first, old.dropout
        self.head_dim, self.num_heads = old.head_dim, len(keep)
        chosen = features(keep, old.head_dim).to(old.out_proj.weight.device)
        for i, name in enumerate("qkv"):
            self.add_module(name, _part(old, i, chosen))
        self.out_proj = nn.Linear(1, 1, bias=old.out_proj.bias is not None)
        self.out_proj.weight = nn.Parameter(old.out_proj.weight.detach()[:, chosen], old.out_proj.weight.requires_grad)
        self.out_proj.bias = old.out_proj.bias
        self.out_proj.in_features, self.out_proj.out_features = len(chosen), old.embed_dim
        if not keep:
            leave_bias(self.out_proj)
        self.train(old.training)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Masks and results as in nn.MultiheadAttention.forward; `is_causal` is a hint beside a mask there, too."""
        is_single, rows_first = query.dim() == 2, [query, key, value]
        if is_single:
            rows_first = [each[None] for each in rows_first]
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        elif not self.batch_first:
            rows_first = [each.transpose(0, 1) for each in rows_first]
        q, k, v = (self._split(name, each) for name, each in zip("qkv", rows_first, strict=True))
        score = q @ k.transpose(-2, -1) * self.head_dim**-0.5 + self._mask(q, attn_mask, key_padding_mask)
        weights = F.dropout(score.softmax(-1), self.dropout, self.training)
        out: Tensor = self.out_proj((weights @ v).transpose(1, 2).flatten(2))
        out = out[0] if is_single else out if self.batch_first else out.transpose(0, 1)
        if not need_weights:
            return out, None
        weights = weights.mean(1) if average_attn_weights and self.num_heads else weights
        return out, weights[0] if is_single else weights

    def _split(self, name: str, input: Tensor) -> Tensor:
        made: Tensor = getattr(self, name)(input)
        return made.view(*made.shape[:-1], self.num_heads, self.head_dim).transpose(1, 2)

    def _mask(self, q: Tensor, attn_mask: Tensor | None, padding: Tensor | None) -> Tensor:
        """What is added to the scores, [row, head, query, key]."""
        total = q.new_zeros(1, 1, 1, 1)
        if attn_mask is not None:
            if attn_mask.dim() == 3 and len(attn_mask) != 1:
                raise InputError("a mask for each head does not fit a module without some", "give one for all heads")
            total = total + _added(q, attn_mask).reshape(1, 1, *attn_mask.shape[-2:])
        return total if padding is None else total + _added(q, padding)[:, None, None, :]


def leave_fast_path(model: nn.Module) -> None:
    """Keep nn.TransformerEncoder from handing nested tensors to layers that cannot read them any more."""
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder):
            module.enable_nested_tensor = module.use_nested_tensor = False


def _added(q: Tensor, mask: Tensor) -> Tensor:
    return q.new_zeros(mask.shape).masked_fill(mask, -torch.inf) if mask.dtype == torch.bool else mask.to(q)


def _part(old: nn.MultiheadAttention, i: int, chosen: Tensor) -> nn.Linear:
    """The queries, keys or values of the heads that stay, as a layer."""
    whole: Any = [old.q_proj_weight, old.k_proj_weight, old.v_proj_weight][i]
    if old._qkv_same_embed_dim:
        whole = old.in_proj_weight.chunk(3)[i]
    part = nn.Linear(1, 1, bias=old.in_proj_bias is not None)
    part.weight = nn.Parameter(whole.detach()[chosen], requires_grad=True)
    if old.in_proj_bias is not None:
        part.bias = nn.Parameter(old.in_proj_bias.detach().chunk(3)[i][chosen])
    part.out_features, part.in_features = part.weight.shape
    return part
