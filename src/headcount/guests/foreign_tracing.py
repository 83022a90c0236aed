"""Which outputs of a model's linear layers go to which head: measured, in anybody's code.

Every linear layer's output is cut loose from what it was computed from, and the gradient of one head's z is taken by
all of them. Queries, keys and values of that head have one; what mixes heads has one from several; and whatever is
further up has none, for another linear layer is in between. How the code splits heads - one layer or three, queries
beside keys or head beside head - shows without being asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from headcount.guests.adapter import Adapted
from headcount.guests.cut_proof import AllDouble
from headcount.heads import HeadSite

Heard = dict[str, Tensor]
"""By a layer's path, [head, output]: whether the head hears the output."""


def trace(adapted: Adapted, name: HeadSite, inputs: Sequence[Tensor]) -> Heard:
    """The layers that some head of a site hears."""
    copy = deepcopy(adapted).cpu().double().eval()
    site = copy.head_sites[name]
    loose, z = dict[str, list[Tensor]](), list[Tensor]()
    with ExitStack() as hooks:
        for path, layer in copy.model.named_modules():
            if is_linear(layer):
                hooks.callback(layer.register_forward_hook(_loosen(loose.setdefault(path, []))).remove)
        hooks.callback(site.projection.register_forward_pre_hook(lambda _, args: z.append(args[0])).remove)
        with torch.enable_grad(), double_by_default(), AllDouble():
            copy(*(each.cpu().double() if each.is_floating_point() else each.cpu() for each in inputs))
    z = [each for each in z if each.requires_grad]
    return _heard(z, len(site.heads), loose) if z else {}


def owners(heard: Tensor) -> Tensor:
    """Whose each output is: a head's place, or -1 if it is nobody's alone.

    A head that looks at one position only has hardly a gradient by its queries. So gaps are filled if what is seen
    fits one of the usual ways to lay out heads.
    """
    n_heads, n = heard.shape
    owner = torch.where(heard.sum(0) == 1, heard.int().argmax(0), -1)
    if n % n_heads or bool((heard.sum(0) > 1).any()):
        return owner
    heads = torch.arange(n_heads)
    per_head = n // n_heads
    for parts in (1, 3, 2, 4):
        if per_head % parts == 0:
            usual = heads.repeat_interleave(per_head // parts).repeat(parts)
            if bool(((owner == usual) | (owner == -1)).all()):
                return usual
    return owner


def is_linear(layer: nn.Module) -> bool:
    """Whether it is a layer whose outputs can be dropped one by one."""
    return type(layer) is nn.Linear or (type(layer).__name__ == "Conv1D" and hasattr(layer, "nf"))


@contextmanager
def double_by_default() -> Iterator[None]:
    """Inside, tensors that a model makes without saying how are in double precision."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _loosen(kept: list[Tensor]) -> Any:
    def hook(layer: nn.Module, args: Any, output: Tensor) -> Tensor:
        kept.append(output.detach().requires_grad_())
        return kept[-1] * 1  # may be changed in place, as a leaf may not

    return hook


def _heard(z: Sequence[Tensor], n_heads: int, loose: dict[str, list[Tensor]]) -> Heard:
    asked = [(path, each) for path, outputs in loose.items() for each in outputs if each.dim() > 1]
    heard = {path: torch.zeros(n_heads, each.shape[-1], dtype=torch.bool) for path, each in asked}
    noise = torch.Generator().manual_seed(0)
    for head in range(n_heads):
        own = [each.unflatten(-1, (n_heads, -1))[..., head, :] for each in z]
        total = torch.stack([(each * torch.randn(each.shape, generator=noise).to(each)).sum() for each in own]).sum()
        found = torch.autograd.grad(total, [each for _, each in asked], retain_graph=True, allow_unused=True)
        for (path, _), gradient in zip(asked, found, strict=True):
            if gradient is not None:
                heard[path][head] |= (gradient.nan_to_num() != 0).flatten(0, -2).any(0)
    return {path: each for path, each in heard.items() if bool(each.any())}
