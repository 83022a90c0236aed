"""Show that a cut model says what the whole one says with those heads silenced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from headcount.errors import CheckFailed
from headcount.heads import HeadId
from headcount.instruments.gates import Gates, silenced
from headcount.instruments.proof import difference
from headcount.instruments.running import at_rest
from headcount.instruments.wrapping import Wrapped, wrap

TOLERANCE = 1e-9
"""Most that two outputs may differ in double precision, as a share of the largest: sums in another order, no fault."""
OWN_TOLERANCE = 1e-5
"""Likewise in single precision."""
OWN_ROUNDINGS = 16
"""Likewise in half precision, where one rounding is more than that."""


class AllDouble(TorchFunctionMode):
    """Inside, nothing is computed in single precision, though models ask for it (norms, softmaxes, positions)."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.float:
            func = Tensor.double
        args, kwargs = tree_map(lambda x: torch.float64 if x is torch.float32 else x, (args, kwargs or {}))
        return func(*args, **kwargs)


def prove_cut(model: nn.Module, cut: nn.Module, heads: Iterable[HeadId | str], inputs: Sequence[Tensor]) -> float:
    """The largest difference in the model's own precision, as a share of the largest value; an error if it is large.

    `inputs` as for wrap(model). In double precision, where no rounding hides a fault or looks like one, hardly any
    difference is let through.
    """
    whole, cut = wrap(model), cut.model if isinstance(cut, Wrapped) else cut
    gone = [HeadId.parse(head) if isinstance(head, str) else head for head in heads]
    doubles = (deepcopy(whole.model).cpu().double(), deepcopy(cut).cpu().double())
    with AllDouble():
        exact = _apart(wrap(doubles[0]), doubles[1], gone, inputs)
    _require(exact, TOLERANCE, "in double precision")
    found = _apart(whole, cut, gone, inputs)
    _require(found, max(OWN_TOLERANCE, OWN_ROUNDINGS * torch.finfo(_dtype(cut)).eps), "in the model's own precision")
    return found


@torch.no_grad()
def _apart(whole: Wrapped, cut: nn.Module, gone: Sequence[HeadId], inputs: Sequence[Tensor]) -> float:
    first = next(whole.parameters())
    given = [each.to(first.device, _dtype(whole) if each.is_floating_point() else each.dtype) for each in inputs]
    sites = whole.head_sites
    with at_rest(whole), Gates(sites, silenced(sites, gone)):
        expected = whole(*given)
    with at_rest(cut):
        said = Wrapped(cut, sites, whole.inputs, whole.family)(*given)  # sites are not looked at: it may have none
    return difference(said, expected)


def _dtype(model: nn.Module) -> torch.dtype:
    return next(each.dtype for each in model.parameters() if each.is_floating_point())


def _require(apart: float, most: float, where: str) -> None:
    if not apart <= most:  # NaN is not
        raise CheckFailed(
            f"the cut model and the model with those heads silenced differ by {apart:.2g} of the largest value "
            f"{where} (at most {most:.2g})",
            "if these are the heads that were cut, it is a fault in headcount: please report it",
        )
