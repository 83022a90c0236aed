"""Layers without the features of heads that are gone, and what stands where no head is left.

All of this changes a layer where it stands, so that whoever holds it, by whatever name, holds the changed one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headcount.errors import InputError

Made = dict[tuple[Tensor, int, tuple[int, ...]], nn.Parameter]
"""Narrowed parameters by the whole ones, the axis and what was kept of it: layers that share them still do."""


class RepeatedKV(nn.Linear):
    """A layer some of whose outputs are handed on more than once: keys and values that queries share unevenly."""

    picks: Tensor

    def forward(self, input: Tensor) -> Tensor:
        """As many outputs as there are picks."""
        return super().forward(input).index_select(-1, self.picks)


class SharedSlice(nn.Linear):
    """A layer that uses a part of the weights which it shares with others: its own rows, or its own columns."""

    picks: Tensor
    axis: int

    def forward(self, input: Tensor) -> Tensor:
        """By the picked weights alone."""
        bias = self.bias if self.bias is None or self.axis else self.bias.index_select(0, self.picks)
        return F.linear(input, self.weight.index_select(self.axis, self.picks), bias)


class BiasAlone(nn.Module):
    """Stands where an output projection stood: of that only the bias is left, whatever it is given."""

    bias: Tensor | None
    n_outputs: int

    def forward(self, z: Tensor) -> Tensor:
        """The same for every position."""
        shape = (*z.shape[:-1], self.n_outputs)
        return z.new_zeros(shape) if self.bias is None else self.bias.to(z.dtype).expand(shape)


class Zeros(nn.Module):
    """Stands where queries, keys or values were computed: those of one head, which is connected to nothing."""

    def __init__(self, n_outputs: int) -> None:
        super().__init__()
        self.n_outputs = n_outputs

    def forward(self, input: Tensor) -> Tensor:
        """So the model's own code runs on: its caches grow, its residuals and norms are computed."""
        return input.new_zeros(*input.shape[:-1], self.n_outputs)


class ZeroFilledLinear(nn.Module):
    """Stands where a layer stood: some of its outputs are computed no more, and handed on as zeros."""

    kept: Tensor

    def __init__(self, inner: nn.Module, kept: Tensor, n_outputs: int) -> None:
        super().__init__()
        self.inner, self.n_outputs = inner, n_outputs
        self.register_buffer("kept", kept)

    def forward(self, input: Tensor) -> Tensor:
        """As wide as ever."""
        made = self.inner(input)
        return made.new_zeros(*made.shape[:-1], self.n_outputs).index_copy(-1, self.kept, made)


class InputSubset(nn.Module):
    """Stands where a projection stood: it is given the inputs that it still has weights for."""

    kept: Tensor

    def __init__(self, inner: nn.Module, kept: Tensor) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("kept", kept)

    def forward(self, z: Tensor) -> Tensor:
        """Of the whole z."""
        return self.inner(z.index_select(-1, self.kept))


def features(places: Sequence[int], size: int) -> Tensor:
    """The features of heads at these places, each head having `size` of them.

    >>> features([0, 2], 2).tolist()
    [0, 1, 4, 5]
    """
    return (torch.tensor(places, dtype=torch.long)[:, None] * size + torch.arange(size)).flatten()


def n_inputs(layer: nn.Module) -> int:
    """How many features the weights of a layer take."""
    return _weight(layer).shape[1 - _axis(layer)]


def n_outputs(layer: nn.Module) -> int:
    """How many features a layer outputs."""
    n: int = layer.nf if _is_conv(layer) else layer.out_features  # type: ignore[assignment]
    return n


def keep_outputs(layer: nn.Module, kept: Tensor, made: Made) -> None:
    """Drop the other outputs."""
    layer.weight = _taken(_weight(layer), _axis(layer), kept, made)
    if isinstance(layer.bias, nn.Parameter):
        layer.bias = _taken(layer.bias, 0, kept, made)
    setattr(layer, "nf" if _is_conv(layer) else "out_features", len(kept))


def keep_inputs(layer: nn.Module, kept: Tensor, made: Made) -> None:
    """Drop the other inputs."""
    layer.weight = _taken(_weight(layer), 1 - _axis(layer), kept, made)
    setattr(layer, "nx" if _is_conv(layer) else "in_features", len(kept))


def make_plain(layer: nn.Module) -> None:
    """Undo `pick_outputs` and `use_part`."""
    if isinstance(layer, RepeatedKV | SharedSlice):
        del layer.picks
        layer.__class__ = nn.Linear  # type: ignore[assignment]
        layer.out_features, layer.in_features = layer.weight.shape


def pick_outputs(layer: nn.Linear, picks: Tensor) -> None:
    """Let a layer hand on these outputs, in this order."""
    layer.__class__ = RepeatedKV
    layer.register_buffer("picks", picks.to(layer.weight.device), persistent=False)
    layer.out_features = len(picks)


def use_part(layer: nn.Linear, picks: Tensor, axis: int) -> None:
    """Let a layer use these rows (axis 0) or columns (axis 1) of its weights, which stay whole for others."""
    layer.__class__ = SharedSlice
    layer.axis = axis  # type: ignore[assignment]
    layer.register_buffer("picks", picks.to(layer.weight.device), persistent=False)
    setattr(layer, "in_features" if axis else "out_features", len(picks))


def leave_bias(projection: nn.Module) -> None:
    """Drop all weights of an output projection."""
    projection.n_outputs = _weight(projection).shape[_axis(projection)]  # type: ignore[assignment]
    if isinstance(projection, SharedSlice):
        del projection.picks
    del projection.weight
    projection.__class__ = BiasAlone


def add_bias(projection: nn.Module) -> None:
    """Give a linear layer without a bias one of zeros."""
    require_plain("an output projection", projection)
    projection.bias = nn.Parameter(_weight(projection).new_zeros(_weight(projection).shape[_axis(projection)]))


def require_plain(what: str, layer: nn.Module) -> None:
    """Adapters and quantised layers keep their weights elsewhere."""
    if not (type(layer) in (nn.Linear, RepeatedKV, SharedSlice) or _is_conv(layer)):
        raise InputError(
            f"{what} is a {type(layer).__module__}.{type(layer).__name__}, which heads cannot be cut out of",
            "merge adapters into the model first, and load it unquantised",
        )


def _taken(old: nn.Parameter, axis: int, kept: Tensor, made: Made) -> nn.Parameter:
    key = old, axis, tuple(kept.tolist())
    if key not in made:
        made[key] = nn.Parameter(old.detach().index_select(axis, kept.to(old.device)), old.requires_grad)
    return made[key]


def _weight(layer: nn.Module) -> nn.Parameter:
    if not isinstance(layer.weight, nn.Parameter):
        raise InputError(
            f"the weights of a {type(layer).__name__} are computed from other parameters: no head can be cut out of it",
            "give it plain weights first, as torch.nn.utils.remove_weight_norm does",
        )
    return layer.weight


def _axis(layer: nn.Module) -> int:
    """Which axis of the weights is that of the outputs."""
    return 1 if _is_conv(layer) else 0


def _is_conv(layer: nn.Module) -> bool:
    """Hugging Face's Conv1D, a linear layer with its weights transposed."""
    return type(layer).__name__ == "Conv1D" and hasattr(layer, "nf")


# --- T5's position biases ---------------------------------------------------------------------------------------------
# They are computed once for all heads of all layers and handed from layer to layer.
#
# Whatever a layer has lost, it takes and hands on the biases of all the heads that there once were, and uses its own.


class _PicksBias:
    """What is put before an attention class; `places` are its heads' among all."""

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
        """As without the mixin, but biases come and go whole."""
        own = None if position_bias is None else position_bias.index_select(1, self.places)
        output, own, *rest = super().forward(hidden_states, mask, key_value_states, own, **more)  # type: ignore[misc]
        whole = self.__dict__.pop("_whole", None) if position_bias is None else position_bias
        if whole is None:  # cross-attention has no biases, and hands on zeros
            whole = own[:, :1].expand(-1, self.n_all, -1, -1)
        return output, whole, *rest

    def compute_bias(self, *args: Any, **kwargs: Any) -> Tensor:
        """Called by the first layer of a stack, amid its forward pass."""
        whole: Tensor = super().compute_bias(*args, **kwargs)  # type: ignore[misc]
        self.__dict__["_whole"] = whole
        return whole.index_select(1, self.places)

    def __reduce__(self) -> tuple[Any, ...]:  # a class made on the spot cannot be found by its name
        return _blank, (type(self).__mro__[2],), self.__dict__


def pick_bias(attention: nn.Module, places: Sequence[int], n_all: int, device: torch.device | None) -> None:
    """Let an attention module of fewer heads than there were use the biases at these places."""
    if not isinstance(attention, _PicksBias):
        kind: Any = type(attention)
        attention.__class__ = _picking(kind)
    attention.n_all = n_all  # type: ignore[assignment]
    attention.register_buffer("places", torch.tensor(places, dtype=torch.long, device=device), persistent=False)


@cache
def _picking(kind: Any) -> type[nn.Module]:
    return type(f"Cut{kind.__name__}", (_PicksBias, kind), {})


def _blank(kind: Any) -> nn.Module:
    made = _picking(kind)
    return made.__new__(made)


# --- PyTorch's own attention ------------------------------------------------------------------------------------------
# With any number of heads: nn.MultiheadAttention cannot have fewer than fill its width.


class PrunedMHA(nn.Module):
    """What is left of an nn.MultiheadAttention; it is called as that is, and has the output that that has."""

    in_proj_bias = None
    _qkv_same_embed_dim = False  # so nn.TransformerEncoderLayer does not pass it by
    in_proj_weight = None

    def __init__(self, old: nn.Module, keep: Sequence[int]) -> None:
        super().__init__()
        if not isinstance(old, nn.MultiheadAttention) or old.bias_k is not None or old.add_zero_attn:
            raise InputError("heads of attention with add_bias_kv or add_zero_attn cannot be cut out", "ablate them")
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


def is_linear(layer: nn.Module) -> bool:
    """Whether it is a layer whose outputs can be dropped one by one."""
    return type(layer) is nn.Linear or (type(layer).__name__ == "Conv1D" and hasattr(layer, "nf"))
