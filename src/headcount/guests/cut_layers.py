"""Layers without the features of heads that are gone, and what stands where no head is left.

All of this changes a layer where it stands, so that whoever holds it, by whatever name, holds the changed one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headcount.errors import InputError

Made = dict[Tensor, nn.Parameter]
"""Narrowed parameters by the whole ones, for layers that share them."""


class PickedOutputs(nn.Linear):
    """A layer some of whose outputs are handed on more than once: keys and values that queries share unevenly."""

    picks: Tensor

    def forward(self, input: Tensor) -> Tensor:
        """As many outputs as there are picks."""
        return super().forward(input).index_select(-1, self.picks)


class PartOfShared(nn.Linear):
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
    """Stands where queries, keys or values were computed: those of one head that nobody hears."""

    def __init__(self, n_outputs: int) -> None:
        super().__init__()
        self.n_outputs = n_outputs

    def forward(self, input: Tensor) -> Tensor:
        """So the model's own code runs on: its caches grow, its residuals and norms are computed."""
        return input.new_zeros(*input.shape[:-1], self.n_outputs)


def features(places: Sequence[int], size: int) -> Tensor:
    """The features of heads at these places, each head having `size` of them.

    >>> features([0, 2], 2).tolist()
    [0, 1, 4, 5]
    """
    return (torch.tensor(places, dtype=torch.long)[:, None] * size + torch.arange(size)).flatten()


def n_inputs(layer: nn.Module) -> int:
    """How many features the weights of a layer take."""
    return _weight(layer).shape[1 - _axis(layer)]


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
    if isinstance(layer, PickedOutputs | PartOfShared):
        del layer.picks
        layer.__class__ = nn.Linear  # type: ignore[assignment]
        layer.out_features, layer.in_features = layer.weight.shape


def pick_outputs(layer: nn.Linear, picks: Tensor) -> None:
    """Let a layer hand on these outputs, in this order."""
    layer.__class__ = PickedOutputs
    layer.register_buffer("picks", picks.to(layer.weight.device), persistent=False)
    layer.out_features = len(picks)


def use_part(layer: nn.Linear, picks: Tensor, axis: int) -> None:
    """Let a layer use these rows (axis 0) or columns (axis 1) of its weights, which stay whole for others."""
    layer.__class__ = PartOfShared
    layer.axis = axis  # type: ignore[assignment]
    layer.register_buffer("picks", picks.to(layer.weight.device), persistent=False)
    setattr(layer, "in_features" if axis else "out_features", len(picks))


def leave_bias(projection: nn.Module) -> None:
    """Drop all weights of an output projection."""
    projection.n_outputs = _weight(projection).shape[_axis(projection)]  # type: ignore[assignment]
    if isinstance(projection, PartOfShared):
        del projection.picks
    del projection.weight
    projection.__class__ = BiasAlone


def add_bias(projection: nn.Module) -> None:
    """Give a linear layer without a bias one of zeros."""
    require_plain("an output projection", projection)
    projection.bias = nn.Parameter(_weight(projection).new_zeros(_weight(projection).shape[_axis(projection)]))


def require_plain(what: str, layer: nn.Module) -> None:
    """Adapters and quantised layers keep their weights elsewhere."""
    if not (type(layer) in (nn.Linear, PickedOutputs, PartOfShared) or _is_conv(layer)):
        raise InputError(
            f"{what} is a {type(layer).__module__}.{type(layer).__name__}, which heads cannot be cut out of",
            "merge adapters into the model first, and load it unquantised",
        )


def _taken(old: nn.Parameter, axis: int, kept: Tensor, made: Made) -> nn.Parameter:
    if old not in made:
        made[old] = nn.Parameter(old.detach().index_select(axis, kept.to(old.device)), old.requires_grad)
    return made[old]


def _weight(layer: nn.Module) -> nn.Parameter:
    assert isinstance(layer.weight, nn.Parameter)
    return layer.weight


def _axis(layer: nn.Module) -> int:
    """Which axis of the weights is that of the outputs."""
    return 1 if _is_conv(layer) else 0


def _is_conv(layer: nn.Module) -> bool:
    """Hugging Face's Conv1D, a linear layer with its weights transposed."""
    return type(layer).__name__ == "Conv1D" and hasattr(layer, "nf")
