"""Name what an intervention did to a head's output: how the head was removed or, if it was not, how it was changed.

headcount.auditing.dependence tests whether a head is removed; this module names the kinds of removal and of change.
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
from headcount.hooks.intervention_proof import difference
from headcount.hooks.sites import Site

UNTOUCHED, ZERO, MEAN, CONSTANT, RESAMPLE = "untouched", "zero", "mean", "constant", "resample"
OTHER_HEAD, OTHER = "another head", "other"
SCALED, PARTLY, HARDLY, NOT_A_NUMBER = "scaled", "partly removed", "hardly changed", "not a number"
POSITIONS, FEATURES, REARRANGED, MOVED = "mean over positions", "mean of features", "rearranged", "moved"
RECTIFIED, CENTRED, SHIFTED, EVEN = "rectified", "mean subtracted", "other values added", "even attention"
CHANGED, UNTESTED = "changed", "not tested"
REMOVALS = {
    ZERO: "by zero ablation",
    MEAN: "by mean ablation: its mean over the batch replaces its output",
    CONSTANT: "by a constant: the same values in every row, such as a mean over other inputs or the output on one",
    RESAMPLE: "by resample ablation: its output on another example",
    OTHER_HEAD: "by another head's output",
    OTHER: "by other values that do not depend on its own output (such as noise, or another run's output)",
}
"""For each kind of removal of a head, a description that follows the word "removed"."""
MIN_SAME_CORRELATION = 0.99
"""A head counts as hardly changed if the correlation of its new with its original output is above this."""
MAX_FIT_ERROR = 1e-3
"""A fit by head contributions explains a change of a block's output if its error is at most this fraction of it."""
N_FITTED = 2**16
"""Number of values of a block's output that are fitted by head contributions: enough for any number of heads."""


@dataclass(frozen=True)
class OutputChange:
    """What an intervention did to one head's output."""

    kind: str
    """The name of the change, such as `zero` or `scaled` (see the constants of this module)."""
    detail: str
    """A description of the change in words."""
    size: float
    """The largest change of a value of the head's output, as a fraction of the largest value."""


NO_CHANGE = OutputChange(UNTOUCHED, UNTOUCHED, 0.0)


def z_changes(
    new_BPHE: Tensor,
    own_BPHE: Tensor,
    followings: Sequence[Following],
    is_even: Sequence[bool],
    elsewhere: Sequence[Tensor] = (),
) -> list[OutputChange]:
    """Compare the outputs z of a block's heads with and without an intervention, and return the change of each head.

    Both are [row, position, head, d_head]. `followings` says for each head whether its new output still depends on the
    output that it computes, `is_even` whether the intervention made its attention uniform, and `elsewhere` is z of
    other blocks.
    """
    changes, own_heads = [], own_BPHE.unbind(dim=2)
    for i, new in enumerate(new_BPHE.unbind(dim=2)):
        others = [each for j, each in enumerate(own_heads) if j != i]
        others += [each for grid in elsewhere for each in grid.unbind(dim=2)]
        changes.append(change_of(new, own_heads[i], followings[i], others=others, is_even=is_even[i]))
    return changes


def change_of(
    new: Tensor, own: Tensor, following: Following, *, others: Sequence[Tensor] = (), is_even: bool = False
) -> OutputChange:
    """Return the name and description of the change from `own` to `new`, a head's output [row, position, d_head].

    `following` says whether `new` still depends on `own`; `others` are the outputs of the other heads.

    >>> own = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    >>> [change_of(new, own, Following(False)).kind for new in (0 * own, own.flip(0), own.mean(0).expand_as(own))]
    ['zero', 'resample', 'mean']
    >>> [change_of(new, own, Following(True)).kind for new in (2 * own, own.flip(2), own.roll(1, 1), own.relu())]
    ['scaled', 'rearranged', 'moved', 'rectified']
    """
    if n_bad := int((~new.isfinite() & own.isfinite()).sum()):
        detail = f"replaced by values that are not numbers (NaN or infinite): {n_bad} of {new.numel()}"
        return OutputChange(NOT_A_NUMBER, detail, 1.0)
    if is_same(new, own):
        return NO_CHANGE
    size = difference(new, own)
    if not new.any():
        return OutputChange(ZERO, f"removed {REMOVALS[ZERO]}", size)
    scale = float((new * own).sum() / (own * own).sum().clamp(min=torch.finfo(own.dtype).tiny))
    if is_same(new, scale * own):
        return scaled_by(scale)
    alike = scale * float(own.norm() / new.norm())
    for kind, detail, is_it, axis in _PRESERVED:
        if is_it(new, own, axis):
            return OutputChange(kind, detail, size)
    if partly := _part_removed(new, own, following):
        return OutputChange(PARTLY, partly, size)
    if is_even and following.is_following:
        return OutputChange(EVEN, "given uniform attention weights, while its values still pass through", size)
    if alike > MIN_SAME_CORRELATION:
        return OutputChange(HARDLY, f"hardly changed (its correlation with its own output is {alike:.4f})", size)
    if not following.is_following or any(is_same(new, each) for each in others):
        return _removal(new, own, others, following, size)
    return OutputChange(*_name_of_change(new, own, following), size)


# --- removed ----------------------------------------------------------------------------------------------------------


def _removal(new: Tensor, own: Tensor, others: Sequence[Tensor], following: Following, size: float) -> OutputChange:
    """Return the change of a removed head; its kind says what replaces the output, such as a mean or another head's."""
    kind, means = OTHER, (own.mean(dim=0), own.mean(dim=(0, 1)))
    if len(own) > 1 and any(is_same(new, mean.expand_as(own)) for mean in means):
        kind = MEAN
    elif _is_constant(new):
        kind = CONSTANT
    elif _is_resampled(new, own):
        kind = RESAMPLE
    elif any(is_same(new, other) for other in others):
        kind = OTHER_HEAD
    elif following.is_following is None:
        why = "it could not be tested whether the new output still depends on what the head computes"
        return OutputChange(UNTESTED, f"changed, but {why}: give input rows that differ from each other", size)
    elif following.is_indirect:
        detail = "replaced by values that still depend on the example, but not through the head's own output"
        return OutputChange(CHANGED, detail, size)
    return OutputChange(kind, f"removed {REMOVALS[kind]}", size)


def _is_constant(new: Tensor) -> bool:
    """Return whether the output is equal in all rows."""
    return len(new) > 1 and is_same(new, new[:1].expand_as(new))


def _is_resampled(new: Tensor, own: Tensor) -> bool:
    """Return whether the new output of every row is the head's original output in another row."""
    return len(own) > 1 and all(_is_in_other_row(new[row], own, row) for row in range(len(own)))


def _is_in_other_row(output: Tensor, own: Tensor, row: int) -> bool:
    """Return whether another row of the batch has this output, from which the intervention may have taken it."""
    return any(is_same(output, own[other]) for other in range(len(own)) if other != row)


# --- changed, and not removed -----------------------------------------------------------------------------------------


def _part_removed(new: Tensor, own: Tensor, following: Following) -> str:
    """Return in words the rows, positions or values in which a head is removed; empty if it is not removed in part."""
    is_changed = new != own
    at_places = is_changed.any(dim=-1)
    in_rows, at_positions = at_places.any(dim=1), at_places.any(dim=0)
    action = "replaced" if new[is_changed].any() else "zeroed"
    if following.where is None or not (following.where & at_places).any():  # the head is removed wherever it is changed
        kept_rows = (~in_rows).nonzero().flatten().tolist()
        if kept_rows and not any(_is_in_other_row(own[row], own, row) for row in kept_rows):
            return f"{action} in {int(in_rows.sum())} of {len(in_rows)} rows only"
        # Where all examples agree, as at a first token that all of them share, another example's output is the same.
        is_telling = (own != own[:1]).any(dim=-1).any(dim=0) if len(own) > 1 else torch.ones_like(at_positions)
        if following.is_following is not False and (~at_places & is_telling).any():
            return f"{action} at {int(at_places.sum())} of {at_places.numel()} positions only"
    if following.is_following is not False and action == "zeroed":
        return f"zeroed in {int(is_changed.sum())} of its {is_changed.numel()} values only"
    return ""


def _is_averaged(new: Tensor, own: Tensor, dim: int) -> bool:
    return own.shape[dim] > 1 and is_same(new, own.mean(dim=dim, keepdim=True).expand_as(own))


def _is_reordered(new: Tensor, own: Tensor, dim: int) -> bool:
    return own.shape[dim] > 1 and is_same(new.sort(dim=dim).values, own.sort(dim=dim).values)


def _is_centred(new: Tensor, own: Tensor, dim: int) -> bool:
    return own.shape[dim] > 1 and is_same(new, own - own.mean(dim=dim, keepdim=True))


def _is_rectified(new: Tensor, own: Tensor, dim: int) -> bool:
    return bool((own < 0).any()) and is_same(new, own.clamp(min=0))


BATCH, POSITION, FEATURE = 0, 1, 2
"""Axes of a head's output [row, position, d_head]."""
_PRESERVED: tuple[tuple[str, str, Callable[[Tensor, Tensor, int], bool], int], ...] = (
    (POSITIONS, "replaced by its mean over positions, which still depends on the example", _is_averaged, POSITION),
    (FEATURES, "replaced by the mean of its features, which still depends on the example", _is_averaged, FEATURE),
    (REARRANGED, "kept, with the features in another order", _is_reordered, FEATURE),
    (MOVED, "kept, at other positions of the same example", _is_reordered, POSITION),
    (f"batch {CENTRED}", "kept, with the mean over the batch subtracted", _is_centred, BATCH),
    (f"position {CENTRED}", "kept, with the mean over positions subtracted", _is_centred, POSITION),
    (f"feature {CENTRED}", "kept, with the mean of the features subtracted", _is_centred, FEATURE),
    (RECTIFIED, "kept where positive, with negative values set to zero", _is_rectified, FEATURE),
)
"""Changes after which a head's own output remains in some form: name, description, and a test along one axis."""


def _name_of_change(new: Tensor, own: Tensor, following: Following) -> tuple[str, str]:
    """Return the name and description of a change after which the output still depends on what the head computes."""
    if following.gain is not None and abs(following.gain) >= MAX_FIT_ERROR:
        what = "a constant" if _is_constant(new - following.gain * own) else "other values, such as noise,"
        times = "" if abs(following.gain - 1) < MAX_FIT_ERROR else f", scaled by {following.gain:.3g}"
        return SHIFTED, f"kept{times}, with {what} added to it"
    return CHANGED, "changed, but its new output still depends on what the head computes"


def scaled_by(scale: float) -> OutputChange:
    """Return the change for a head's output multiplied by a factor; a factor of 0 removes the head."""
    if abs(scale - 1) < MAX_FIT_ERROR:
        return NO_CHANGE
    if abs(scale) < MAX_FIT_ERROR:
        return OutputChange(ZERO, f"removed {REMOVALS[ZERO]}", 1.0)
    return OutputChange(SCALED, f"scaled by {scale:.3g}", abs(1 - scale) / max(1.0, abs(scale)))


def output_changes(site: Site, z: Tensor, change: Tensor) -> list[OutputChange] | None:
    """Return the change of each head that explains a change of a block's output; None if heads do not explain it.

    Setting weights of the output projection to zero removes a head, and so does a hook that subtracts the head's
    contribution. Such a hook may also add the same values to every row, such as a mean contribution.
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
    if factors := _fit([bias, *parts], change):  # setting a block's output to zero also removes its bias
        return [scaled_by(1 + factor) for factor in factors[1:]]
    centred = [each - each.mean(dim=0) for each in (*parts, change)]
    factors = _fit(centred[:-1], centred[-1]) if len(z) > 1 else None
    if factors is None or all(abs(factor) < MAX_FIT_ERROR for factor in factors):
        return None
    return [_with_constant(1 + factor) for factor in factors]


def _with_constant(scale: float) -> OutputChange:
    """Return the change for an output multiplied by a factor, with equal values then added to every row."""
    change = scaled_by(scale)
    if change.kind == ZERO:
        return OutputChange(CONSTANT, f"removed {REMOVALS[CONSTANT]}", change.size)
    if change is NO_CHANGE:
        return NO_CHANGE
    return OutputChange(SHIFTED, f"kept, {change.detail}, with a constant added to it", change.size)


def _fit(parts: Sequence[Tensor], change: Tensor) -> list[float] | None:
    """Return the factors with which the tensors in `parts` sum to `change`; None if no factors fit."""
    chosen = torch.linspace(0, change.numel() - 1, min(change.numel(), N_FITTED)).long()
    parts_NH = torch.stack([each.flatten().cpu()[chosen].double() for each in parts], dim=1)
    change_N = change.flatten().cpu()[chosen].double()
    factors = torch.linalg.lstsq(parts_NH, change_N[:, None], driver="gelsd").solution[:, 0]
    is_fitting = difference(parts_NH @ factors, change_N) <= max(MAX_FIT_ERROR, 8 * torch.finfo(change.dtype).eps)
    return factors.tolist() if is_fitting else None
