"""Weights must be numbers: one NaN makes every score NaN, or a plausible zero."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from headcount.errors import CheckFailed, InputError


def require_finite(tensors: Mapping[str, Tensor], where: str) -> None:
    """Refuse weights with NaN or infinite numbers; the first such tensor is named."""
    for name, tensor in tensors.items():
        if _is_plain(tensor) and not bool(torch.isfinite(tensor).all()):
            raise _fault(name, tensor, where)


def require_finite_model(model: nn.Module, where: str) -> None:
    """All parameters of a model; in buffers infinity is fair, for masks are made of it, and NaN is not."""
    require_finite(dict(model.named_parameters()), where)
    for name, buffer in model.named_buffers():
        if _is_plain(buffer) and bool(torch.isnan(buffer).any()):
            raise _fault(name, buffer, where)


def require_numbers(output: Tensor | float, example: str) -> None:
    """Refuse an output (or its loss) with NaN in it, which would count as one wrong answer among others."""
    total = float(output.sum()) if isinstance(output, Tensor) else output  # a sum is quicker than a look at each
    if math.isnan(total) and (not isinstance(output, Tensor) or bool(torch.isnan(output).any())):
        raise CheckFailed(f"the model's output on {example} holds NaN", "its weights or activations overflow")


def _is_plain(tensor: Tensor) -> bool:
    """Numbers that can be looked at: not quantised, not without memory, not of eight bits."""
    return tensor.is_floating_point() and tensor.element_size() > 1 and not tensor.is_quantized and not tensor.is_meta


def _fault(name: str, tensor: Tensor, where: str) -> InputError:
    counts = {"NaN": int(torch.isnan(tensor).sum()), "infinite": int(torch.isinf(tensor).sum())}
    told = ", ".join(f"{n:,} of {tensor.numel():,} {what}" for what, n in counts.items() if n)
    return InputError(
        f"in the weights of {where}, {name} holds numbers that are not finite ({told})",
        "its training diverged, or the file is damaged: copy or save the model again",
    )
