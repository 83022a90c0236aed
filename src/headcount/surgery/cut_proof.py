"""Prove that a model from which heads were cut out has the output of the original model with these heads ablated."""

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
from headcount.hooks.intervention_proof import difference
from headcount.hooks.wrapping import Wrapped, wrap
from headcount.surgery.cutting import Means, fold_in_place

DOUBLE_TOLERANCE = 1e-9
"""Largest allowed relative difference of two outputs in double precision; summing in another order changes less."""
SINGLE_TOLERANCE = 1e-5
"""Largest allowed relative difference of two outputs in single precision."""
HALF_ROUNDINGS = 16
"""Largest allowed relative difference of two outputs in half precision, in machine epsilons."""
ABLATED, AT_MEANS = "these heads ablated", "these heads replaced by their mean outputs"


class ForceFloat64(TorchFunctionMode):
    """A context in which models compute in double precision even where their code asks for single precision.

    Models do so for norms and softmaxes.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.float:
            func = Tensor.double
        args, kwargs = tree_map(lambda x: torch.float64 if x is torch.float32 else x, (args, kwargs or {}))
        return func(*args, **kwargs)


def prove_cut(model: nn.Module, cut: nn.Module, heads: Iterable[HeadId | str], inputs: Sequence[Tensor]) -> float:
    """Prove that `cut` has the output of `model` with these heads ablated to zero; raise an error if it has not.

    Return the relative difference of the two outputs in the model's own precision. `inputs` are the tensors that
    wrap(model) takes. Outputs are compared in double precision first, with a tiny tolerance, because rounding could
    otherwise hide a fault or look like one.
    """
    whole, cut = wrap(model), cut.model if isinstance(cut, Wrapped) else cut
    gone = [HeadId.parse(head) if isinstance(head, str) else head for head in heads]
    doubles = (deepcopy(whole.model).cpu().double(), deepcopy(cut).cpu().double())
    with in_double_precision():
        _require(_cut_difference(wrap(doubles[0]), doubles[1], gone, inputs), ABLATED)
    return _require(_cut_difference(whole, cut, gone, inputs), ABLATED, in_own_precision_of=cut)


def prove_folded(
    model: nn.Module, cut: nn.Module, heads: Sequence[HeadId], means: Means, inputs: Sequence[Tensor]
) -> float:
    """Prove that `cut` has the output of `model` with these heads replaced by their mean outputs.

    The biases of `cut` hold these means. Two comparisons are made: of folding (adding the means to biases) alone, in
    double precision, and of `cut` itself, in its own precision. `prove_cut` proves the removal of the heads. Return the
    relative difference of the second comparison.
    """
    whole, cut = wrap(model), cut.model if isinstance(cut, Wrapped) else cut
    double = wrap(deepcopy(whole.model).cpu().double())
    folded = deepcopy(double)
    fold_in_place(folded.head_sites, heads, means)
    gates = Gates(folded.head_sites, closed_gates(folded.head_sites, heads))
    with in_double_precision(), gates:
        _require(_cut_difference(double, folded.model, heads, inputs, means), AT_MEANS)
    return _require(_cut_difference(whole, cut, heads, inputs, means), AT_MEANS, in_own_precision_of=cut)


@torch.no_grad()
def _cut_difference(
    whole: Wrapped, cut: nn.Module, gone: Sequence[HeadId], inputs: Sequence[Tensor], means: Means | None = None
) -> float:
    """Return the relative difference of the outputs of a cut model and of the whole model with the heads ablated.

    If `means` are given, they replace the heads' outputs instead of zeros.
    """
    device, dtype = next(whole.parameters()).device, _dtype(whole)
    given = [tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype) for tensor in inputs]
    sites = whole.head_sites
    values = None if means is None else {site: means[site][None, None] for site in sites.head_slots(gone)}
    with eval_mode(whole), Gates(sites, closed_gates(sites, gone), values):
        expected = whole(*given)
    with eval_mode(cut):
        output = Wrapped(cut, sites, whole.inputs, whole.family)(*given)  # the sites are not used: none may be left
    return difference(output, expected)


def _require(error: float, reference: str, in_own_precision_of: nn.Module | None = None) -> float:
    """Return `error`, the relative difference of two models' outputs; raise an error if it is above the tolerance.

    `reference` describes the model that was compared. The tolerance is that of double precision, or that of the
    precision of the model `in_own_precision_of`.
    """
    most, where = DOUBLE_TOLERANCE, "in double precision"
    if in_own_precision_of is not None:
        most = max(SINGLE_TOLERANCE, HALF_ROUNDINGS * torch.finfo(_dtype(in_own_precision_of)).eps)
        where = "in the model's own precision"
    if not error <= most:  # NaN fails too
        raise CheckFailed(
            f"the model without these heads does not have the output of the original model with {reference}: "
            f"{where}, the outputs differ by {error:.2g} of the largest value; only {most:.2g} is allowed",
            "check that these are the heads that were removed; if so, this is a fault in headcount: please report it",
        )
    return error


def require_same_output(one: nn.Module, other: nn.Module, inputs: Sequence[Tensor]) -> None:
    """Raise an error if two of headcount's own models have different outputs in double precision."""
    with torch.no_grad():
        outputs = [deepcopy(model).cpu().double().eval()(*(x.cpu() for x in inputs)) for model in (one, other)]
    if not (error := difference(*outputs)) <= DOUBLE_TOLERANCE:  # NaN fails too
        raise CheckFailed(
            f"the model was written and read again, but then its output differs by {error:.2g} of the largest value, "
            "so the written copy was not kept",
            "this is a fault in headcount, not in the model: please report it",
        )


def _dtype(model: nn.Module) -> torch.dtype:
    return next(weight.dtype for weight in model.parameters() if weight.is_floating_point())


@contextmanager
def in_double_precision() -> Iterator[None]:
    """Return a context in which a double-precision model creates and computes all its tensors in double precision."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with ForceFloat64():
            yield
    finally:
        torch.set_default_dtype(before)
