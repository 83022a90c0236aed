"""Show that a cut model has the output that the whole one has with those heads ablated."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from headcount.errors import CheckFailed
from headcount.heads import HeadId
from headcount.hooks.gates import Gates, closed_gates, eval_mode
from headcount.hooks.proof import difference
from headcount.hooks.wrapping import Wrapped, wrap
from headcount.surgery.cutting import Means, fold_in_place

TOLERANCE = 1e-9
"""Most that two outputs may differ in double precision, as a share of the largest: sums in another order, no fault."""
OWN_TOLERANCE = 1e-5
"""Likewise in single precision."""
OWN_ROUNDINGS = 16
"""Likewise in half precision, where one rounding is more than that."""
ABLATED, AT_MEANS = "those heads ablated", "those heads' means in their places"


class ForceFloat64(TorchFunctionMode):
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
    with in_double_precision():
        _require(_apart(wrap(doubles[0]), doubles[1], gone, inputs), ABLATED)
    return _require(_apart(whole, cut, gone, inputs), ABLATED, in_own_precision_of=cut)


def prove_folded(
    model: nn.Module, cut: nn.Module, heads: Sequence[HeadId], means: Means, inputs: Sequence[Tensor]
) -> float:
    """Likewise for a cut whose heads left their means behind: against the model with the means in their places.

    That the cut is one of the model with those means folded in is for prove_cut to show; here, that folding them is
    exact in double precision, and near enough when the biases are rounded to the model's own.
    """
    whole, cut = wrap(model), cut.model if isinstance(cut, Wrapped) else cut
    double = wrap(deepcopy(whole.model).cpu().double())
    folded = deepcopy(double)
    fold_in_place(folded.head_sites, heads, means)
    gates = Gates(folded.head_sites, closed_gates(folded.head_sites, heads))
    with in_double_precision(), gates:
        _require(_apart(double, folded.model, heads, inputs, means), AT_MEANS)
    return _require(_apart(whole, cut, heads, inputs, means), AT_MEANS, in_own_precision_of=cut)


@torch.no_grad()
def _apart(
    whole: Wrapped, cut: nn.Module, gone: Sequence[HeadId], inputs: Sequence[Tensor], means: Means | None = None
) -> float:
    device, dtype = next(whole.parameters()).device, _dtype(whole)
    given = [each.to(device, dtype if each.is_floating_point() else each.dtype) for each in inputs]
    sites = whole.head_sites
    values = None if means is None else {site: means[site][None, None] for site in sites.head_slots(gone)}
    with eval_mode(whole), Gates(sites, closed_gates(sites, gone), values):
        expected = whole(*given)
    with eval_mode(cut):
        output = Wrapped(cut, sites, whole.inputs, whole.family)(*given)  # its sites are not used: it may have none
    return difference(output, expected)


def _require(apart: float, against: str, in_own_precision_of: nn.Module | None = None) -> float:
    most, where = TOLERANCE, "in double precision"
    if in_own_precision_of is not None:
        most = max(OWN_TOLERANCE, OWN_ROUNDINGS * torch.finfo(_dtype(in_own_precision_of)).eps)
        where = "in the model's own precision"
    if not apart <= most:  # NaN is not
        raise CheckFailed(
            f"the cut model and the model with {against} differ by {apart:.2g} of the largest value "
            f"{where} (at most {most:.2g})",
            "if these are the heads that were cut, it is a fault in headcount: please report it",
        )
    return apart


def require_same_output(one: nn.Module, other: nn.Module, inputs: Sequence[Tensor]) -> None:
    """Two models of headcount's own are one, in double precision on the CPU."""
    with torch.no_grad():
        found, expected = (deepcopy(each).cpu().double().eval()(*(x.cpu() for x in inputs)) for each in (one, other))
    if not (apart := difference(found, expected)) <= TOLERANCE:  # NaN is not
        raise CheckFailed(
            f"what was written and what is read differ by {apart:.2g} of the largest value: nothing was kept",
            "this is a fault in headcount, not in the model: please report it",
        )


def _dtype(model: nn.Module) -> torch.dtype:
    return next(each.dtype for each in model.parameters() if each.is_floating_point())


@contextmanager
def in_double_precision() -> Iterator[None]:
    """Inside, a model in double precision computes in it throughout, and makes tensors of it."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with ForceFloat64():
            yield
    finally:
        torch.set_default_dtype(before)
