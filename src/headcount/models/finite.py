"""Weights must be numbers: one NaN makes every score NaN, or a plausible zero."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from headcount.errors import CheckFailed, InputError


def require_finite(tensors: Mapping[str, Tensor], where: str, *, may_be_infinite: bool = False) -> None:
    """Refuse weights with NaN or infinite numbers; the first such tensor is named."""
    for name, tensor in tensors.items():
        # What is quantised, without memory or of eight bits cannot be tested.
        if not tensor.is_floating_point() or tensor.element_size() == 1 or tensor.is_quantized or tensor.is_meta:
            continue
        is_bad = tensor.isnan().any() if may_be_infinite else ~tensor.isfinite().all()
        if bool(is_bad):
            counts = {"NaN": int(tensor.isnan().sum()), "infinite": int(tensor.isinf().sum())}
            told = ", ".join(f"{n:,} of {tensor.numel():,} {what}" for what, n in counts.items() if n)
            raise InputError(
                f"in the weights of {where}, {name} holds numbers that are not finite ({told})",
                "its training diverged, or the file is damaged: copy or save the model again",
            )


def require_finite_model(model: nn.Module, where: str) -> None:
    """All parameters of a model; in buffers infinity is fair, for masks are made of it, and NaN is not."""
    require_finite(dict(model.named_parameters()), where)
    require_finite(dict(model.named_buffers()), where, may_be_infinite=True)


def require_numbers(output: Tensor | float, example: str) -> None:
    """Refuse an output (or its loss) with NaN in it, which would count as one wrong answer among others."""
    total = float(output.sum()) if isinstance(output, Tensor) else output  # a sum is quicker than a look at each
    if math.isnan(total) and (not isinstance(output, Tensor) or bool(torch.isnan(output).any())):
        raise CheckFailed(f"the model's output on {example} holds NaN", "its weights or activations overflow")
