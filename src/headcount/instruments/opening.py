"""PyTorch's own attention computes its output projection without calling it, so hooks there never fire.

While it is open, an `nn.MultiheadAttention` computes z just as it always does - its own code runs, with an identity in
the place of the output projection - and then calls the projection, rows first. The fused paths of
`nn.TransformerEncoderLayer` and of the module itself are off meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def opened(hosts: Iterable[nn.MultiheadAttention]) -> Iterator[None]:
    """Inside, these modules call their output projections; contexts may nest."""
    closed = [host for host in dict.fromkeys(hosts) if "forward" not in host.__dict__]
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        for host in closed:
            host.__dict__["forward"] = _open_forward(host)
        yield
    finally:
        for host in closed:
            host.__dict__.pop("forward", None)
        torch.backends.mha.set_fastpath_enabled(fused)


def _open_forward(host: nn.MultiheadAttention) -> Callable[..., Any]:
    def forward(query: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        projection, through = host.out_proj, _identity(query)
        host._modules["out_proj"] = through
        try:
            z, weights = type(host).forward(host, query, *args, **kwargs)
        finally:
            host._modules["out_proj"] = projection
        if host.batch_first or z.dim() == 2:
            return projection(z), weights
        return projection(z.transpose(0, 1)).transpose(0, 1), weights

    return forward


def _identity(query: Tensor) -> nn.Module:
    """A projection that hands on what it is given, bit for bit: each sum has one term that is not 0."""
    through = nn.Module()
    through.weight = nn.Parameter(torch.eye(query.shape[-1], device=query.device, dtype=query.dtype), False)
    through.bias = None  # type: ignore[assignment]
    return through
