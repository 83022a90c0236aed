"""Raise errors for NaN in weights and outputs, because one NaN makes every score NaN or a plausible-looking zero."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from headcount.errors import CheckFailed, InputError


def require_finite(tensors: Mapping[str, Tensor], where: str, *, may_be_infinite: bool = False) -> None:
    """Raise an error if a tensor holds NaN or infinite numbers; the message names the first such tensor and `where`."""
    for name, tensor in tensors.items():
        # Quantised, 8-bit and meta tensors cannot be tested.
        if not tensor.is_floating_point() or tensor.element_size() == 1 or tensor.is_quantized or tensor.is_meta:
            continue
        is_bad = tensor.isnan().any() if may_be_infinite else ~tensor.isfinite().all()
        if bool(is_bad):
            counts = {"NaN": int(tensor.isnan().sum()), "infinite": int(tensor.isinf().sum())}
            summary = ", ".join(f"{n:,} of {tensor.numel():,} {what}" for what, n in counts.items() if n)
            raise InputError(
                f"in the weights of {where}, {name} holds numbers that are not finite ({summary})",
                "the training diverged, or the file is damaged: copy or save the model again",
            )


def require_finite_model(model: nn.Module, where: str) -> None:
    """Raise an error if a parameter of a model holds NaN or infinity, or a buffer holds NaN.

    Buffers may hold infinity, because masks do. The message names the model by `where`.
    """
    require_finite(dict(model.named_parameters()), where)
    require_finite(dict(model.named_buffers()), where, may_be_infinite=True)


def require_numbers(output: Tensor | float, example: str) -> None:
    """Raise an error if a model's output or loss on an example holds NaN, which would count as a wrong answer."""
    total = float(output.sum()) if isinstance(output, Tensor) else output  # a sum is faster than testing each number
    if math.isnan(total) and (not isinstance(output, Tensor) or bool(torch.isnan(output).any())):
        raise CheckFailed(
            f"the model's output on {example} holds NaN",
            "the weights hold NaN, or activations overflow: check the input, or use a higher precision",
        )
