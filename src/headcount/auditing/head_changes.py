"""What became of a head's output: which kind of removal it is or, if the head is not removed, which kind of change.

Whether a head is removed is tested (headcount.auditing.dependence); the kinds here are names for what was tested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from headcount.auditing.dependence import Following
from headcount.auditing.module_watch import is_same
from headcount.hooks.gates import project
from headcount.hooks.proof import difference
from headcount.hooks.sites import Site

UNTOUCHED, ZERO, MEAN, CONSTANT, RESAMPLE = "untouched", "zero", "mean", "constant", "resample"
OTHER_HEAD, OTHER = "another head", "other"
SCALED, PARTLY, HARDLY, NOT_A_NUMBER = "scaled", "partly removed", "hardly changed", "not a number"
POSITIONS, FEATURES, REARRANGED, MOVED = "mean over positions", "mean of features", "rearranged", "moved"
RECTIFIED, CENTRED, SHIFTED, EVEN = "rectified", "mean subtracted", "other values added", "even attention"
CHANGED, UNTESTED = "changed", "not tested"
REMOVALS = {
    ZERO: "by zero",
    MEAN: "by mean: its mean over the batch",
    CONSTANT: "by a constant: the same values in every row, such as a mean over other inputs, or the output on one",
    RESAMPLE: "by resample: another example's output",
    OTHER_HEAD: "by another head's output",
    OTHER: "by other values, which do not follow its own output (noise, or another run's output)",
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


def changes_of_z(
    new_BPHE: Tensor,
    own_BPHE: Tensor,
    followings: Sequence[Following],
    is_even: Sequence[bool],
    elsewhere: Sequence[Tensor] = (),
) -> list[Change]:
    """Say what became of each head's part of z [row, position, head, d_head].

    `is_even` says of which heads the intervention made the attention weights even; `elsewhere` is z of other blocks.
    """
    changes, own_heads = [], own_BPHE.unbind(dim=2)
    for i, new in enumerate(new_BPHE.unbind(dim=2)):
        others = [each for j, each in enumerate(own_heads) if j != i]
        others += [each for grid in elsewhere for each in grid.unbind(dim=2)]
        changes.append(change_of(new, own_heads[i], followings[i], others=others, is_even=is_even[i]))
    return changes


def change_of(
    new: Tensor, own: Tensor, following: Following, *, others: Sequence[Tensor] = (), is_even: bool = False
) -> Change:
    """Say what became of a head's output [row, position, d_head]; `others` are outputs of the other heads.

    >>> own = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    >>> [change_of(new, own, Following(False)).kind for new in (0 * own, own.flip(0), own.mean(0).expand_as(own))]
    ['zero', 'resample', 'mean']
    >>> [change_of(new, own, Following(True)).kind for new in (2 * own, own.flip(2), own.roll(1, 1), own.relu())]
    ['scaled', 'rearranged', 'moved', 'rectified']
    """
    if n_bad := int((~new.isfinite() & own.isfinite()).sum()):
        detail = f"replaced by values that are not numbers (NaN or infinite): {n_bad} of {new.numel()}"
        return Change(NOT_A_NUMBER, detail, 1.0)
    if is_same(new, own):
        return NONE
    size = difference(new, own)
    if not new.any():
        return Change(ZERO, f"removed, {REMOVALS[ZERO]}", size)
    scale = float((new * own).sum() / (own * own).sum().clamp(min=torch.finfo(own.dtype).tiny))
    if is_same(new, scale * own):
        return scaled_by(scale)
    alike = scale * float(own.norm() / new.norm())
    for kind, (detail, is_it) in _PRESERVED.items():
        if is_it(new, own):
            return Change(kind, detail, size)
    if partly := _part_removed(new, own, following):
        return Change(PARTLY, partly, size)
    if is_even and following.is_following:
        return Change(EVEN, "given even attention, while its values still pass through", size)
    if alike > STILL_ITSELF:
        return Change(HARDLY, f"hardly changed (its correlation with its own output is {alike:.4f})", size)
    if not following.is_following or any(is_same(new, each) for each in others):
        return _removal(new, own, others, following, size)
    return Change(*_name_of_change(new, own, following), size)


# --- removed ----------------------------------------------------------------------------------------------------------


def _removal(new: Tensor, own: Tensor, others: Sequence[Tensor], following: Following, size: float) -> Change:
    """Name what stands in the head's place, which does not follow the head's own output."""
    kinds: dict[str, Callable[[], bool]] = {
        MEAN: lambda: _is_mean(new, own),
        CONSTANT: lambda: _is_constant(new),
        RESAMPLE: lambda: _is_resampled(new, own),
        OTHER_HEAD: lambda: any(is_same(new, each) for each in others),
    }
    kind = next((kind for kind, is_it in kinds.items() if is_it()), OTHER)
    if kind == OTHER and following.is_following is None:
        why = "whether it still follows its own output could not be tested: give rows that differ from each other"
        return Change(UNTESTED, f"changed; {why}", size)
    if kind == OTHER and following.is_indirect:
        return Change(CHANGED, "replaced by values that depend on the example by another way than its own output", size)
    return Change(kind, f"removed, {REMOVALS[kind]}", size)


def _is_mean(new: Tensor, own: Tensor) -> bool:
    means = own.mean(dim=0), own.mean(dim=(0, 1))
    return len(own) > 1 and any(is_same(new, each.expand_as(own)) for each in means)


def _is_constant(new: Tensor) -> bool:
    return len(new) > 1 and is_same(new, new[:1].expand_as(new))


def _is_resampled(new: Tensor, own: Tensor) -> bool:
    """Whether every row has another row's."""
    rows = range(len(own))
    return len(own) > 1 and all(any(is_same(new[i], own[j]) for j in rows if j != i) for i in rows)


# --- changed, and not removed -----------------------------------------------------------------------------------------


def _part_removed(new: Tensor, own: Tensor, following: Following) -> str:
    """Say where alone a head is removed, if it keeps its own output elsewhere: rows, positions or features."""
    is_changed = new != own
    at_places = is_changed.any(dim=-1)
    in_rows, at_positions = at_places.any(dim=1), at_places.any(dim=0)
    done = "replaced" if new[is_changed].any() else "zeroed"
    if following.where is None or not (following.where & at_places).any():  # where it is changed, it is removed
        kept_rows = (~in_rows).nonzero().flatten().tolist()
        if kept_rows and not any(_has_twin(own, row) for row in kept_rows):
            return f"{done} in {int(in_rows.sum())} of {len(in_rows)} rows only"
        # Where all examples agree, as at a first token that all of them share, another example's output is the same.
        is_telling = (own != own[:1]).any(dim=-1).any(dim=0) if len(own) > 1 else torch.ones_like(at_positions)
        if following.is_following is not False and (~at_places & is_telling).any():
            return f"{done} at {int(at_places.sum())} of {at_places.numel()} positions only"
    if following.is_following is not False and done == "zeroed":
        return f"zeroed in {int(is_changed.sum())} of its {is_changed.numel()} values only"
    return ""


def _has_twin(own: Tensor, row: int) -> bool:
    """Whether another row has the same output."""
    return any(is_same(own[row], own[i]) for i in range(len(own)) if i != row)


def _is_negative_cut(new: Tensor, own: Tensor) -> bool:
    return bool((own < 0).any()) and is_same(new, own.clamp(min=0))


def _is_sorted_alike(new: Tensor, own: Tensor, dim: int) -> bool:
    return own.shape[dim] > 1 and is_same(new.sort(dim=dim).values, own.sort(dim=dim).values)


def _is_centred(new: Tensor, own: Tensor, dim: int) -> bool:
    return own.shape[dim] > 1 and is_same(new, own - own.mean(dim=dim, keepdim=True))


_PRESERVED: dict[str, tuple[str, Callable[[Tensor, Tensor], bool]]] = {
    POSITIONS: (
        "replaced by its mean over positions, which still depends on the example",
        lambda new, own: own.shape[1] > 1 and is_same(new, own.mean(dim=1, keepdim=True).expand_as(own)),
    ),
    FEATURES: (
        "replaced by the mean of its features, which still depends on the example",
        lambda new, own: own.shape[2] > 1 and is_same(new, own.mean(dim=2, keepdim=True).expand_as(own)),
    ),
    REARRANGED: (
        "kept, with the features in another order",
        lambda new, own: _is_sorted_alike(new, own, dim=2),
    ),
    MOVED: (
        "kept, at other positions of the same example",
        lambda new, own: _is_sorted_alike(new, own, dim=1),
    ),
    f"batch {CENTRED}": (
        "kept, with the mean over the batch subtracted",
        lambda new, own: _is_centred(new, own, dim=0),
    ),
    f"position {CENTRED}": (
        "kept, with the mean over positions subtracted",
        lambda new, own: _is_centred(new, own, dim=1),
    ),
    f"feature {CENTRED}": (
        "kept, with the mean of the features subtracted",
        lambda new, own: _is_centred(new, own, dim=2),
    ),
    RECTIFIED: ("kept where positive, with negative values set to zero", _is_negative_cut),
}
"""What keeps a head's own output, even if it comes from a cache, and so does not follow: in words, and a test."""


def _name_of_change(new: Tensor, own: Tensor, following: Following) -> tuple[str, str]:
    """Name what was done to a head's output that still follows what the head computes."""
    if following.gain is not None and abs(following.gain) >= FITTED:
        what = "a constant" if _is_constant(new - following.gain * own) else "other values, such as noise,"
        times = "" if abs(following.gain - 1) < FITTED else f", scaled by {following.gain:.3g}"
        return SHIFTED, f"kept{times}, with {what} added to it"
    return CHANGED, "changed, but what stands in its place still follows its own output"


def scaled_by(scale: float) -> Change:
    """What it is to be multiplied by something: by 0, to be removed."""
    if abs(scale - 1) < FITTED:
        return NONE
    if abs(scale) < FITTED:
        return Change(ZERO, f"removed, {REMOVALS[ZERO]}", 1.0)
    return Change(SCALED, f"scaled by {scale:.3g}", abs(1 - scale) / max(1.0, abs(scale)))


def changes_of_output(site: Site, z: Tensor, change: Tensor) -> list[Change] | None:
    """Say what became of each head, if that explains the change of a block's output; None if nothing of heads does.

    Weights of an output projection that are set to zero remove a head as well as its z does. So does a hook that takes
    a head's contribution away again; it may put the same values into every row instead, such as a mean contribution.
    """
    through = partial(project, site.projection)
    bias = through(torch.zeros_like(z))
    if bias.shape != change.shape or change.numel() < 4 * len(site.heads) or not change.isfinite().all():
        return None
    parts = []
    for features in torch.arange(z.shape[-1], device=z.device).chunk(len(site.heads)):
        only = torch.zeros_like(z)
        only[..., features] = z[..., features]
        parts.append(through(only) - bias)
    if factors := _fit([bias, *parts], change):  # a block's output that is set to zero loses its bias, too
        return [scaled_by(1 + factor) for factor in factors[1:]]
    centred = [each - each.mean(dim=0) for each in (*parts, change)]
    factors = _fit(centred[:-1], centred[-1]) if len(z) > 1 else None
    if factors is None or all(abs(factor) < FITTED for factor in factors):
        return None
    return [_with_constant(1 + factor) for factor in factors]


def _with_constant(scale: float) -> Change:
    """Say what it is to be multiplied by something, with the same values added in every row."""
    change = scaled_by(scale)
    if change.kind == ZERO:
        return Change(CONSTANT, f"removed, {REMOVALS[CONSTANT]}", change.size)
    return (
        change
        if change is NONE
        else Change(SHIFTED, f"kept, {change.detail}, with a constant added to it", change.size)
    )


def _fit(parts: Sequence[Tensor], change: Tensor) -> list[float] | None:
    """Return the factors by which parts make up a change; None if they do not."""
    some = torch.linspace(0, change.numel() - 1, min(change.numel(), N_FITTED)).long()
    parts_NH = torch.stack([each.flatten().cpu()[some].double() for each in parts], dim=1)
    change_N = change.flatten().cpu()[some].double()
    factors = torch.linalg.lstsq(parts_NH, change_N[:, None], driver="gelsd").solution[:, 0]
    is_fitting = difference(parts_NH @ factors, change_N) <= max(FITTED, 8 * torch.finfo(change.dtype).eps)
    return factors.tolist() if is_fitting else None
