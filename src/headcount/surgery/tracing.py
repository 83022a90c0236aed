"""Cut heads out of any module, by tracing which outputs of its linear layers belong to which head.

    cut = cut_traced(model, heads, inputs)             a copy; the model is not changed

The output of every linear layer is detached from its inputs. Then the gradient of one head's output with respect to all
these layer outputs is computed. The gradient is nonzero for the head's queries, keys and values. Layer outputs that mix
heads have gradients from several heads. Earlier layers have none, because another linear layer lies in between. The
gradients therefore show how the code splits heads: in one layer or three, ordered by query, key and value or by head.

For each attention block, several ways to cut are tried on a copy, the fastest first. The first way that is proven in
double precision is used. The remaining heads keep their names.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Any, Protocol, Self, cast

import torch
from torch import Tensor, nn

from headcount.errors import CheckFailed, HeadcountError, InputError
from headcount.heads import HeadId, HeadSite
from headcount.hooks.gates import Capture, eval_mode
from headcount.hooks.intervention_proof import difference
from headcount.hooks.parameters import ParameterProjection
from headcount.hooks.sites import Sites
from headcount.surgery.cut_proof import DOUBLE_TOLERANCE, in_double_precision, prove_cut
from headcount.surgery.plan import CustomCut, Places, SitePlan, apply_to_sites, is_linear, n_inputs

FAILURES = (HeadcountError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Exceptions that a plan of a cut may raise when it is tried; errors in the user's code become a HeadcountError."""
ROWS = 16
"""Number of examples on which each way to cut is tried; the final result is proven on more examples."""
Numbers = dict[str, int]
_HEADS = re.compile(r"head|^n?h$", re.IGNORECASE)


class Traceable(Protocol):
    """A wrapped module with named heads, out of which heads can be cut."""

    model: nn.Module
    """The module inside the wrapper; the module paths in plans start there."""

    @property
    def custom_cut(self) -> CustomCut | None:
        """The user's own function that cuts heads out of an attention block; None if there is none."""

    @property
    def head_sites(self) -> Sites:
        """The attention blocks of the model, each with its heads and its output projection."""

    def after(self, plan: SitePlan, model: nn.Module, sites: Sites) -> Self:
        """Return a wrapper of the same kind around `model`, to which `plan` was applied; `sites` are its blocks."""


def cut_traced(traced: Traceable, heads: Sequence[HeadId], inputs: Sequence[Tensor]) -> Any:
    """Return a copy of a wrapped module without these heads; `inputs` are used to trace the heads and prove the cut."""
    gone = traced.head_sites.head_slots(heads)
    if set(heads) >= set(traced.head_sites.heads):
        raise InputError("this would cut out all heads, but the model needs at least one", "keep one of the heads")
    for name, places in gone.items():
        traced = _cut_site(traced, name, places, [tensor[:ROWS] for tensor in inputs])
    return traced


def _cut_site(traced: Traceable, name: HeadSite, places: Sequence[int], inputs: Sequence[Tensor]) -> Traceable:
    """Return a copy without some heads of one attention block (given by indices), cut by the first proven plan."""
    sites = traced.head_sites
    if len(sites.projections[sites[name].projection]) > 1:
        raise InputError(
            f"{name} shares its output projection with other attention blocks",
            "so its heads cannot be cut out; they can be ablated: headcount.ablated",
        )
    is_parameter, has_axis = isinstance(sites[name].projection, ParameterProjection), sites[name].head_axis is not None
    if is_parameter or has_axis:
        why = "its output projection is a parameter" if is_parameter else "its heads have their own axis in the input "
        why += "of the output projection"
        raise InputError(f"heads cannot be cut out of {name}: {why}", "ablate them instead: headcount.ablated")
    gone, failed = [sites[name].heads[place] for place in places], list[str]()
    for plan in _plans(traced, name, places, inputs):
        try:
            copy = _copied(traced)
            cut = copy.after(plan, copy.model, apply_to_sites(plan, copy.model, copy.head_sites, copy.custom_cut))
            prove_cut(traced, cut, gone, inputs)  # type: ignore[arg-type]
            _require_order(traced, cut, name, plan.keep, inputs)
            return cut
        except FAILURES as error:
            if isinstance(error.__cause__, SystemExit):
                raise
            reason = str(error).strip() or "no reason given"
            failed.append(f"tried {plan}\n    {type(error).__name__}: {reason.splitlines()[0]}")
    raise CheckFailed(
        f"heads were not cut out of {name}: none of the ways that were tried gives the output that the model has "
        "with these heads ablated",
        *(failed or ["no linear layer has outputs of one head only, or forward() runs without gradients"]),
        "write def cut(self, model, site, keep) in the adapter class (see headcount.Adapter.cut), or ablate the "
        "heads instead",
    )


def _copied(traced: Traceable) -> Any:
    try:
        return deepcopy(traced)
    except Exception as error:  # user code may raise anything
        raise InputError(
            f"the model cannot be copied: {type(error).__name__}: {error}",
            "heads are cut out of a copy: change the model so that copy.deepcopy(model) works",
        ) from error


def _doubles(inputs: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.cpu().double() if tensor.is_floating_point() else tensor.cpu() for tensor in inputs]


def _require_order(whole: Traceable, cut: Traceable, name: HeadSite, keep: Places, inputs: Sequence[Tensor]) -> None:
    """Raise an error if a cut changed the order of the remaining heads in the output projection's input.

    The model's output does not reveal such a change.
    """
    if not keep:
        return
    outputs = []
    for model in (whole, cut):
        double = deepcopy(cast(Any, model)).cpu().double()
        with torch.no_grad(), in_double_precision(), eval_mode(double), Capture(double.head_sites) as seen:
            double(*_doubles(inputs))
        outputs.append(seen.z(name))
    kept = outputs[0][..., list(keep), :]
    if kept.shape != outputs[1].shape or not difference(kept, outputs[1]) <= DOUBLE_TOLERANCE:
        raise CheckFailed(
            "cutting heads out changed the order of the remaining heads in the input of the output projection",
            "cut() of the adapter class should keep the heads in the order of its argument `keep`",
        )


# --- candidate plans --------------------------------------------------------------------------------------------------


def _plans(traced: Traceable, name: HeadSite, gone: Sequence[int], inputs: Sequence[Tensor]) -> Iterator[SitePlan]:
    """Yield candidate plans for cutting the heads with the indices `gone` out of an attention block, the best first."""
    site = traced.head_sites[name]
    path = next(path for path, module in traced.model.named_modules() if module is site.projection)
    keep = tuple(place for place in range(len(site.heads)) if place not in gone)
    plan = SitePlan(str(name), tuple(head.index for head in site.heads), keep, "adapter", path)
    if traced.custom_cut is not None:
        yield plan
        if keep:
            return
    if site.mha is not None:
        yield replace(plan, way="torch")
        return
    try:
        connected = trace(traced, name, inputs)
    except FAILURES as error:
        raise CheckFailed(
            f"headcount could not trace which layers the heads at {name} depend on: {type(error).__name__}: {error}",
            "write def cut(self, model, site, keep) in the adapter class: see headcount.Adapter.cut",
        ) from error
    if not keep:
        yield replace(plan, way="empty", layers=dict.fromkeys(connected, ()))
        return
    layers = {}
    for layer, depends in connected.items():
        stays = torch.isin(head_of_output(depends), torch.tensor([-1, *keep]))
        if not bool(stays.all()):
            layers[layer] = tuple(stays.nonzero().flatten().tolist())
    if layers:
        for numbers, tensors in _settings(traced.model, path, layers, len(site.heads), len(keep)):
            yield replace(plan, way="narrow", layers=layers, numbers=numbers, tensors=tensors)
        yield replace(plan, way="spread", layers=layers)


def _settings(
    model: nn.Module, projection: str, layers: Mapping[str, Places], n: int, left: int
) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield guesses at which attributes and tensors of an attention module change with its number of heads.

    Each guess has the new values of attributes by path, and the head axis of tensors by path. `n` is the number of
    heads before the cut, and `left` the number afterwards.
    """
    parents = (path.split(".")[:-1] for path in (projection, *layers))
    shared = takewhile(lambda parts: len(set(parts)) == 1, zip(*parents, strict=False))
    home = ".".join(parts[0] for parts in shared)  # the innermost module that contains all these layers
    width = n_inputs(model.get_submodule(projection))
    ints, tensors = Numbers(), Numbers()
    for path, module in model.get_submodule(home).named_modules(prefix=home):
        if not is_linear(module):
            ints |= {f"{path}.{key}".lstrip("."): value for key, value in vars(module).items() if type(value) is int}
            for key, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
                if list(tensor.shape).count(n) == 1:
                    tensors[f"{path}.{key}".lstrip(".")] = list(tensor.shape).index(n)
    equal = {path: left for path, value in ints.items() if value == n}
    named = {path: left for path in equal if _HEADS.search(path.rpartition(".")[2])}
    wide = {path: width // n * left for path, value in ints.items() if value == width}
    yielded = []
    for axes in (tensors, {}):
        for numbers in (named, wide | named, equal, wide | equal, {}):
            if (numbers, axes) not in yielded:
                yielded.append((numbers, axes))
                yield numbers, axes


# --- tracing ----------------------------------------------------------------------------------------------------------


def trace(traced: Traceable, name: HeadSite, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return, for each layer on which heads of an attention block depend, which head depends on which layer output.

    The values are [head, output]: True if the head's output has a gradient with respect to the layer's output.
    """
    copy = _copied(traced).cpu().double().eval()
    site = copy.head_sites[name]
    n_heads, detached, z = len(site.heads), dict[str, list[Tensor]](), list[Tensor]()

    def detach(path: str, layer: nn.Module, args: Any, output: Tensor) -> Tensor:
        detached[path].append(output.detach().requires_grad_())
        return detached[path][-1] * 1  # the model may change this copy in place, but not a leaf

    with ExitStack() as hooks:
        for path, layer in copy.model.named_modules():
            if is_linear(layer):
                detached[path] = []
                hooks.callback(layer.register_forward_hook(partial(detach, path)).remove)
        hooks.callback(site.projection.register_forward_pre_hook(lambda _, args: z.append(args[0])).remove)
        with torch.enable_grad(), in_double_precision():
            copy(*_doubles(inputs))
    z = [tensor.unflatten(-1, (n_heads, -1)) for tensor in z if tensor.requires_grad]
    leaves = [(path, leaf) for path, outputs in detached.items() for leaf in outputs if leaf.dim() > 1]
    connected = {path: torch.zeros(n_heads, leaf.shape[-1], dtype=torch.bool) for path, leaf in leaves}
    noise = torch.Generator().manual_seed(0)
    for head in range(n_heads if z else 0):
        own = [tensor[..., head, :] for tensor in z]
        total = torch.stack([(part * torch.randn(part.shape, generator=noise).to(part)).sum() for part in own]).sum()
        gradients = torch.autograd.grad(total, [leaf for _, leaf in leaves], retain_graph=True, allow_unused=True)
        for (path, _), gradient in zip(leaves, gradients, strict=True):
            if gradient is not None:
                connected[path][head] |= (gradient.nan_to_num() != 0).flatten(0, -2).any(0)
    return {path: depends for path, depends in connected.items() if bool(depends.any())}


def head_of_output(connected: Tensor) -> Tensor:
    """Return, for each output of a layer, the index of the head that it belongs to, or -1 if that is not one head.

    `connected` [head, output] says which head depends on which output. A head that attends to a single position has
    almost no gradient with respect to its queries. Missing entries are therefore filled in if the others fit one of the
    usual layouts.
    """
    n_heads, n = connected.shape
    owner = torch.where(connected.sum(0) == 1, connected.int().argmax(0), -1)
    if n % n_heads or bool((connected.sum(0) > 1).any()):
        return owner
    heads = torch.arange(n_heads)
    per_head = n // n_heads
    for parts in (1, 3, 2, 4):
        if per_head % parts == 0:
            usual = heads.repeat_interleave(per_head // parts).repeat(parts)
            if bool(((owner == usual) | (owner == -1)).all()):
                return usual
    return owner
