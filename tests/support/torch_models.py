"""PyTorch's own attention and layers, small; and copies in which a head is not read."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from own_models import scattered, trace
from torch import Tensor, nn

D, HEADS, ROWS, LENGTH = 8, 2, 3, 5
PADDING = torch.arange(LENGTH) >= torch.tensor([[5], [3], [4]])
LATER = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
SLOPES = torch.randn(ROWS * HEADS, LENGTH, LENGTH, generator=torch.Generator().manual_seed(2)).double()


def states(width: int = D, length: int = LENGTH, seed: int = 0, first: bool = True) -> Tensor:
    drawn = torch.randn(ROWS, length, width, generator=torch.Generator().manual_seed(seed)).double()
    return drawn if first else drawn.transpose(0, 1)


def attention(**given: Any) -> Any:
    torch.manual_seed(0)
    return scattered(nn.MultiheadAttention(D, HEADS, **{"batch_first": True} | given))


def zeroed(module: nn.Module, path: str, head: int) -> Any:
    """A copy of which some output projection does not read a head."""
    copy = deepcopy(module)
    d_head = D // HEADS
    with torch.no_grad():
        copy.get_submodule(path).weight[:, head * d_head : (head + 1) * d_head] = 0.0
    return copy


def flags(*modules: nn.Module) -> list[Any]:
    """What must be the same before and after."""
    return [torch.backends.mha.get_fastpath_enabled(), *[trace(module) for module in modules]]


def layer(kind: type[nn.Module], **given: Any) -> Any:
    shape = {"d_model": D, "nhead": HEADS, "dim_feedforward": 12, "dropout": 0.1, "batch_first": True}
    return kind(**shape | given)


def encoder(n: int = 2, **given: Any) -> Any:
    torch.manual_seed(0)
    nested = not given.get("norm_first", False)
    made = nn.TransformerEncoder(layer(nn.TransformerEncoderLayer, **given), n, enable_nested_tensor=nested)
    return scattered(made)


def transformer(**given: Any) -> Any:
    torch.manual_seed(0)
    return scattered(layer(nn.Transformer, num_encoder_layers=2, num_decoder_layers=2, **given))
