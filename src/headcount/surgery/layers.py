"""Layers without the features of heads that were cut out, and replacements for layers of blocks without heads.

A layer is changed to one of these classes in place, so that all references to the layer see the change.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headcount.errors import InputError


class RepeatedKV(nn.Linear):
    """A linear layer that repeats some of its outputs, for keys and values that query heads share unevenly."""

    picks: Tensor

    def forward(self, input: Tensor) -> Tensor:
        """Return the linear layer's outputs at the indices in `picks`, where an index may occur several times."""
        return super().forward(input).index_select(-1, self.picks)


class SharedSlice(nn.Linear):
    """A linear layer that uses only some rows or columns of a weight matrix that it shares with other layers."""

    picks: Tensor
    axis: int

    def forward(self, input: Tensor) -> Tensor:
        """Return the layer's output, computed with the selected rows (axis 0) or columns (axis 1) of its weights."""
        bias = self.bias if self.bias is None or self.axis else self.bias.index_select(0, self.picks)
        return F.linear(input, self.weight.index_select(self.axis, self.picks), bias)


class BiasAlone(nn.Module):
    """Replaces an output projection after all heads were cut out: it returns its bias for any input."""

    bias: Tensor | None
    n_outputs: int

    def forward(self, z: Tensor) -> Tensor:
        """Return the bias (zeros if there is none) for every position of `z`."""
        shape = (*z.shape[:-1], self.n_outputs)
        return z.new_zeros(shape) if self.bias is None else self.bias.to(z.dtype).expand(shape)


class Zeros(nn.Module):
    """Replaces a query, key or value layer after all heads were cut out: it returns zeros of the size of one head."""

    def __init__(self, n_outputs: int) -> None:
        super().__init__()
        self.n_outputs = n_outputs

    def forward(self, input: Tensor) -> Tensor:
        """Return zeros in the shape of one head for every position, so that the model's own code still runs."""
        return input.new_zeros(*input.shape[:-1], self.n_outputs)


class ZeroFilledLinear(nn.Module):
    """A layer that returns zeros in place of the outputs that were cut out."""

    kept: Tensor

    def __init__(self, inner: nn.Module, kept: Tensor, n_outputs: int) -> None:
        super().__init__()
        self.inner, self.n_outputs = inner, n_outputs
        self.register_buffer("kept", kept)

    def forward(self, input: Tensor) -> Tensor:
        """Return the remaining outputs at their old indices, and zeros at the other indices."""
        output = self.inner(input)
        return output.new_zeros(*output.shape[:-1], self.n_outputs).index_copy(-1, self.kept, output)


class InputSubset(nn.Module):
    """An output projection after a cut: it selects the input features for which it still has weights."""

    kept: Tensor

    def __init__(self, inner: nn.Module, kept: Tensor) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("kept", kept)

    def forward(self, z: Tensor) -> Tensor:
        """Return the output projection of those features of `z` (head outputs) that belong to remaining heads."""
        return self.inner(z.index_select(-1, self.kept))


# --- T5's position biases ---------------------------------------------------------------------------------------------
# The first layer computes the biases of all heads and passes them from layer to layer. A layer without some heads still
# takes and returns the biases of all heads, and uses those of its own heads.


class _PicksBias:
    """A mixin for T5's attention classes after a cut: it selects the position biases of the heads at `places`."""

    places: Tensor
    n_all: int

    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor | None = None,
        key_value_states: Tensor | None = None,
        position_bias: Tensor | None = None,
        **more: Any,
    ) -> tuple[Any, ...]:
        """Run the attention with the position biases of its own heads; take and return the biases of all heads."""
        own = None if position_bias is None else position_bias.index_select(1, self.places)
        output, own, *rest = super().forward(hidden_states, mask, key_value_states, own, **more)  # type: ignore[misc]
        whole = self.__dict__.pop("_whole", None) if position_bias is None else position_bias
        if whole is None:  # cross-attention has no biases, and returns zeros
            whole = own[:, :1].expand(-1, self.n_all, -1, -1)
        return output, whole, *rest

    def compute_bias(self, *args: Any, **kwargs: Any) -> Tensor:
        """Compute the position biases of all heads and return those of this block's heads.

        T5 calls this in the first layer of a stack.
        """
        whole: Tensor = super().compute_bias(*args, **kwargs)  # type: ignore[misc]
        self.__dict__["_whole"] = whole
        return whole.index_select(1, self.places)

    def __reduce__(self) -> tuple[Any, ...]:  # pickle cannot find a class that is created at run time
        return _blank, (type(self).__mro__[2],), self.__dict__


def pick_bias(attention: nn.Module, places: Sequence[int], n_all: int, device: torch.device | None) -> None:
    """Make T5's attention module, which has lost heads, use the position biases at `places` of all `n_all` heads."""
    if not isinstance(attention, _PicksBias):
        attention_class: Any = type(attention)
        attention.__class__ = _picking(attention_class)
    attention.n_all = n_all  # type: ignore[assignment]
    attention.register_buffer("places", torch.tensor(places, dtype=torch.long, device=device), persistent=False)


@cache
def _picking(attention_class: Any) -> Any:
    return type(f"Cut{attention_class.__name__}", (_PicksBias, attention_class), {})


def _blank(attention_class: Any) -> nn.Module:
    attention: nn.Module = _picking(attention_class).__new__(_picking(attention_class))
    return attention


# --- PyTorch's own attention ------------------------------------------------------------------------------------------
# nn.MultiheadAttention needs heads that fill its width, so a cut replaces it by a class without this restriction.


class PrunedMHA(nn.Module):
    """An nn.MultiheadAttention without some heads, with the same call signature and return values."""

    in_proj_bias = None
    _qkv_same_embed_dim = False  # keeps nn.TransformerEncoderLayer from bypassing this module
    in_proj_weight = None

    def __init__(self, old: nn.Module, keep: Sequence[int]) -> None:
        super().__init__()
        if not isinstance(old, nn.MultiheadAttention) or old.bias_k is not None or old.add_zero_attn:
            raise InputError(
                "heads cannot be cut out of an nn.MultiheadAttention with add_bias_kv or add_zero_attn",
                "ablate the heads instead",
            )
        self.embed_dim, self.batch_first, self.dropout = old.embed_dim, old.batch_first, old.dropout
        self.head_dim, self.num_heads = old.head_dim, len(keep)
        places = torch.arange(old.embed_dim, device=old.out_proj.weight.device)
        kept = places.unflatten(0, (-1, old.head_dim))[list(keep)].flatten()
        weights: Any = (old.q_proj_weight, old.k_proj_weight, old.v_proj_weight)
        weights = old.in_proj_weight.chunk(3) if old._qkv_same_embed_dim else weights
        biases: Any = [None] * 3 if old.in_proj_bias is None else old.in_proj_bias.detach().chunk(3)
        for name, weight, bias in zip("qkv", weights, biases, strict=True):
            own_bias = None if bias is None else nn.Parameter(bias[kept])
            self.add_module(name, _linear(nn.Parameter(weight.detach()[kept]), own_bias))
        weight = old.out_proj.weight
        self.out_proj = _linear(nn.Parameter(weight.detach()[:, kept], weight.requires_grad), old.out_proj.bias)

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
        """Return output and attention weights as `nn.MultiheadAttention.forward` does; `is_causal` is only a hint."""
        is_single, rows_first = query.dim() == 2, [query, key, value]
        if is_single:
            rows_first = [tensor[None] for tensor in rows_first]
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        elif not self.batch_first:
            rows_first = [tensor.transpose(0, 1) for tensor in rows_first]
        q, k, v = (self._split(name, tensor) for name, tensor in zip("qkv", rows_first, strict=True))
        score = q @ k.transpose(-2, -1) * self.head_dim**-0.5 + self._mask(q, attn_mask, key_padding_mask)
        weights = F.dropout(score.softmax(-1), self.dropout, self.training)
        out: Tensor = self.out_proj((weights @ v).transpose(1, 2).flatten(2))
        out = out[0] if is_single else out if self.batch_first else out.transpose(0, 1)
        if not need_weights:
            return out, None
        weights = weights.mean(1) if average_attn_weights and self.num_heads else weights
        return out, weights[0] if is_single else weights

    def _split(self, name: str, input: Tensor) -> Tensor:
        output: Tensor = getattr(self, name)(input)
        return output.view(*output.shape[:-1], self.num_heads, self.head_dim).transpose(1, 2)

    def _mask(self, q: Tensor, attn_mask: Tensor | None, padding: Tensor | None) -> Tensor:
        """Return one mask [row, head, query, key] of numbers to add to the attention scores, from both given masks."""
        total = q.new_zeros(1, 1, 1, 1)
        if attn_mask is not None:
            if attn_mask.dim() == 3 and len(attn_mask) != 1:
                raise InputError(
                    "the attention mask has a separate mask for each head, but some heads were cut out of the model",
                    "give one mask of shape [query, key] for all heads",
                )
            total = total + _additive(q, attn_mask).reshape(1, 1, *attn_mask.shape[-2:])
        return total if padding is None else total + _additive(q, padding)[:, None, None, :]


def _additive(q: Tensor, mask: Tensor) -> Tensor:
    return q.new_zeros(mask.shape).masked_fill(mask, -torch.inf) if mask.dtype == torch.bool else mask.to(q)


def _linear(weight: nn.Parameter, bias: nn.Parameter | None) -> nn.Linear:
    layer = nn.Linear(1, 1, bias=bias is not None)
    layer.weight, layer.bias = weight, bias  # type: ignore[assignment]
    layer.out_features, layer.in_features = weight.shape
    return layer
