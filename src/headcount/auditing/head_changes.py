"""What became of a head's output: nothing, zero, a mean, another example's, something else; or less of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from headcount.auditing.module_watch import is_same
from headcount.heads import HeadSite
from headcount.hooks.gates import project, split_heads
from headcount.hooks.proof import difference
from headcount.hooks.sites import Site

UNTOUCHED, ZERO, MEAN, CONSTANT, RESAMPLE = "untouched", "zero", "mean", "constant", "resample"
OTHER, SCALED, POSITIONS, PARTLY, HARDLY = "other", "scaled", "mean over positions", "partly zero", "hardly changed"
REMOVALS = {
    ZERO: "by zero",
    MEAN: "by mean: its mean over the batch",
    CONSTANT: "by a constant: the same values in every row, such as a mean over other inputs, or the output on one",
    RESAMPLE: "by resample: another example's output",
    OTHER: "by other values, such as noise or another run's output",
}
"""What takes a head's own output away, in words."""
STILL_ITSELF = 0.99
"""A replacement that correlates as much with the head's own output is none."""
FITTED = 1e-3
"""What a block's output may be off what its heads explain, as a share of its change."""
N_FITTED = 2**16
"""Numbers that that is fitted on."""


@dataclass(frozen=True)
class Change:
    """What was done to one head."""

    kind: str
    detail: str
    """In words."""
    size: float
    """As a share of the largest value."""


NONE = Change(UNTOUCHED, UNTOUCHED, 0.0)


def changes_of_z(name: HeadSite, n_heads: int, new: Tensor, own: Tensor) -> list[Change]:
    """Head by head, what became of the z that enters an output projection."""
    split = (split_heads(name, each, n_heads) for each in (new, own))
    by_head = [each.reshape(len(each), -1, *each.shape[-2:]).unbind(dim=2) for each in split]
    return [change_of(*pair) for pair in zip(*by_head, strict=True)]


def change_of(new: Tensor, own: Tensor) -> Change:
    """What became of a head's output [row, position, d_head].

    >>> own = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    >>> [change_of(new, own).kind for new in (own, 0 * own, 2 * own, own.flip(0), own.mean(0).expand_as(own))]
    ['untouched', 'zero', 'scaled', 'resample', 'mean']
    """
    if new.shape != own.shape:
        return Change(OTHER, REMOVALS[OTHER], 1.0)
    if is_same(new, own):
        return NONE
    size = difference(new, own)
    if not new.any():
        return Change(ZERO, f"removed, {REMOVALS[ZERO]}", size)
    scale = float((new * own).sum() / (own * own).sum().clamp(min=torch.finfo(own.dtype).tiny))
    if is_same(new, scale * own):
        return scaled_by(scale)
    for kind, is_it in _REPLACED.items():
        if is_it(new, own):
            return Change(kind, f"removed, {REMOVALS[kind]}", size)
    if own.shape[1] > 1 and is_same(new, own.mean(dim=1, keepdim=True).expand_as(own)):
        return Change(POSITIONS, "replaced by its mean over positions, which still depends on the example", size)
    apart = (new - own).abs().amax(dim=-1) > 0
    if not new[apart].any():
        return Change(PARTLY, f"zeroed at {int(apart.sum())} of {apart.numel()} positions only", size)
    alike = scale * float(own.norm() / new.norm())
    if alike > STILL_ITSELF:
        return Change(HARDLY, f"hardly changed (its correlation with its own output is {alike:.4f})", size)
    return Change(OTHER, f"removed, {REMOVALS[OTHER]}", size)


def _is_mean(new: Tensor, own: Tensor) -> bool:
    means = own.mean(dim=0), own.mean(dim=(0, 1))
    return len(own) > 1 and any(is_same(new, each.expand_as(own)) for each in means)


def _is_constant(new: Tensor, own: Tensor) -> bool:
    return len(own) > 1 and is_same(new, new[:1].expand_as(new))


def _is_resampled(new: Tensor, own: Tensor) -> bool:
    """Whether every row has another row's."""
    rows = range(len(own))
    return len(own) > 1 and all(any(is_same(new[i], own[j]) for j in rows if j != i) for i in rows)


_REPLACED = {MEAN: _is_mean, CONSTANT: _is_constant, RESAMPLE: _is_resampled}


def scaled_by(scale: float) -> Change:
    """What it is to be multiplied by something: by 0, to be removed."""
    if abs(scale - 1) < FITTED:
        return NONE
    if abs(scale) < FITTED:
        return Change(ZERO, f"removed, {REMOVALS[ZERO]}", 1.0)
    return Change(SCALED, f"scaled by {scale:.3g}", abs(1 - scale) / max(1.0, abs(scale)))


def scales_of(site: Site, z: Tensor, change: Tensor) -> list[float] | None:
    """What heads' contributions were multiplied by, if that explains the change of a block's output; None if not.

    Weights of an output projection that are set to zero remove a head as well as its z does, and so does a hook that
    takes a head's contribution away again.
    """
    n_heads, through = len(site.heads), partial(project, site.projection)
    bias, rounding = through(torch.zeros_like(z)), 8 * torch.finfo(z.dtype).eps
    if bias.shape != change.shape or change.numel() < 4 * n_heads:
        return None
    some = torch.linspace(0, change.numel() - 1, min(change.numel(), N_FITTED), device=z.device).long()
    parts = [bias.flatten()[some]]  # a block's output that is set to zero loses its bias, too
    for features in torch.arange(z.shape[-1], device=z.device).chunk(n_heads):
        only = torch.zeros_like(z)
        only[..., features] = z[..., features]
        parts.append((through(only) - bias).flatten()[some])
    parts_NH, change_N = torch.stack(parts, dim=1).double(), change.flatten()[some].double()
    factors = torch.linalg.lstsq(parts_NH.cpu(), change_N[:, None].cpu(), driver="gelsd").solution[:, 0].to(z.device)
    if not difference(parts_NH @ factors, change_N) <= max(FITTED, rounding):
        return None
    return [1 + float(factor) for factor in factors[1:]]
