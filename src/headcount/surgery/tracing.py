"""Plans for anybody's modules, by tracing which outputs of their linear layers go to which head; never without proof.

    cut = cut_traced(model, heads, inputs)             a copy; the model stays as it is

Every linear layer's output is detached from what it was computed from, and the gradient of one head's z is taken by all
of them. Queries, keys and values of that head have one; what mixes heads has one from several; and whatever is further
up has none, for another linear layer is in between. How the code splits heads - one layer or three, queries beside keys
or head beside head - shows without being asked for.

Site by site, ways to cut are tried on a copy, the fastest first, and the first is taken that is proven in double
precision. The heads that are left keep their names.
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
from headcount.hooks.parameters import ParameterProjection
from headcount.hooks.proof import difference
from headcount.hooks.sites import Sites
from headcount.surgery.plan import CustomCut, Places, SitePlan, apply_to_sites, is_linear, n_inputs
from headcount.surgery.proof import TOLERANCE, in_double_precision, prove_cut

FAILURES = (HeadcountError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What a plan for somebody's modules may end in; whatever goes wrong in their own code is a HeadcountError."""
ROWS = 16
"""Examples that each way to cut is tried on; what comes out is proven on more."""
Numbers = dict[str, int]
_HEADS = re.compile(r"head|^n?h$", re.IGNORECASE)


class Traceable(Protocol):
    """A module with its heads named, whatever its code looks like."""

    model: nn.Module
    """The module inside, whose paths plans speak of."""

    @property
    def custom_cut(self) -> CustomCut | None:
        """Its own way to take heads out of a block, if it has one."""

    @property
    def head_sites(self) -> Sites:
        """Where its heads are."""

    def after(self, plan: SitePlan, model: nn.Module, sites: Sites) -> Self:
        """The same around a model that a plan was applied to."""


def cut_traced(traced: Traceable, heads: Sequence[HeadId], inputs: Sequence[Tensor]) -> Any:
    """A copy without these heads."""
    gone = traced.head_sites.head_slots(heads)
    if set(heads) >= set(traced.head_sites.heads):
        raise InputError("these are all the heads that the model has", "leave one in")
    for name, places in gone.items():
        traced = _cut_site(traced, name, places, [each[:ROWS] for each in inputs])
    return traced


def _cut_site(traced: Traceable, name: HeadSite, places: Sequence[int], inputs: Sequence[Tensor]) -> Traceable:
    sites = traced.head_sites
    if len(sites.projections[sites[name].projection]) > 1:
        raise InputError(f"{name} takes turns with other sites at one projection", "its heads can only be ablated")
    is_parameter, has_axis = isinstance(sites[name].projection, ParameterProjection), sites[name].head_axis is not None
    if is_parameter or has_axis:
        why = "its output projection is a parameter" if is_parameter else "heads have an axis of their own in its z"
        raise InputError(f"heads cannot be cut out of {name}: {why}", "they can be ablated: headcount.ablated")
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
            told = str(error).strip() or "no reason given"
            failed.append(f"tried {plan}\n    {type(error).__name__}: {told.splitlines()[0]}")
    raise CheckFailed(
        f"no way to cut heads out of {name} was proven to leave the output that the model has without them: "
        "nothing was cut",
        *(failed or ["no linear layer serves one head alone; or does forward() run without gradients?"]),
        "say how in the adapter: def cut(self, model, site, keep), see headcount.Adapter.cut; or ablate them",
    )


def _copied(traced: Traceable) -> Any:
    try:
        return deepcopy(traced)
    except Exception as error:  # somebody's modules: anything may happen
        raise InputError(f"the model cannot be copied: {type(error).__name__}: {error}") from error


def _doubles(inputs: Sequence[Tensor]) -> list[Tensor]:
    return [each.cpu().double() if each.is_floating_point() else each.cpu() for each in inputs]


def _require_order(whole: Traceable, cut: Traceable, name: HeadSite, keep: Places, inputs: Sequence[Tensor]) -> None:
    """Heads that swapped places would have the same output: so z must be in its old order."""
    if not keep:
        return
    found = []
    for model in (whole, cut):
        double = deepcopy(cast(Any, model)).cpu().double()
        with torch.no_grad(), in_double_precision(), eval_mode(double), Capture(double.head_sites) as seen:
            double(*_doubles(inputs))
        found.append(seen.z(name))
    kept = found[0][..., list(keep), :]
    if kept.shape != found[1].shape or not difference(kept, found[1]) <= TOLERANCE:
        raise CheckFailed("the heads that are left are not side by side in their old order", "keep the order of `keep`")


# --- what might work --------------------------------------------------------------------------------------------------


def _plans(traced: Traceable, name: HeadSite, gone: Sequence[int], inputs: Sequence[Tensor]) -> Iterator[SitePlan]:
    """Every way worth trying to take the heads at these places out of a site, the best first."""
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
            f"what the heads at {name} depend on could not be traced: {type(error).__name__}: {error}",
            "say how to cut in the adapter: def cut(self, model, site, keep), see headcount.Adapter.cut",
        ) from error
    if not keep:
        yield replace(plan, way="empty", layers=dict.fromkeys(connected, ()))
        return
    layers = {}
    for layer, each in connected.items():
        stays = torch.isin(head_of_output(each), torch.tensor([-1, *keep]))
        if not bool(stays.all()):
            layers[layer] = tuple(stays.nonzero().flatten().tolist())
    if layers:
        for numbers, tensors in _settings(traced.model, path, layers, len(site.heads), len(keep)):
            yield replace(plan, way="narrow", layers=layers, numbers=numbers, tensors=tensors)
        yield replace(plan, way="spread", layers=layers)


def _settings(
    model: nn.Module, projection: str, layers: Mapping[str, Places], n: int, left: int
) -> Iterator[tuple[Numbers, Numbers]]:
    """Numbers and tensors of the attention module that may have to change with its heads."""
    parents = (path.split(".")[:-1] for path in (projection, *layers))
    shared = takewhile(lambda parts: len(set(parts)) == 1, zip(*parents, strict=False))
    home = ".".join(parts[0] for parts in shared)  # the nearest module that holds them all
    width = n_inputs(model.get_submodule(projection))
    ints, tensors = Numbers(), Numbers()
    for path, module in model.get_submodule(home).named_modules(prefix=home):
        if not is_linear(module):
            ints |= {f"{path}.{key}".lstrip("."): each for key, each in vars(module).items() if type(each) is int}
            for key, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
                if list(tensor.shape).count(n) == 1:
                    tensors[f"{path}.{key}".lstrip(".")] = list(tensor.shape).index(n)
    alike = {path: left for path, value in ints.items() if value == n}
    named = {path: left for path in alike if _HEADS.search(path.rpartition(".")[2])}
    wide = {path: width // n * left for path, value in ints.items() if value == width}
    told = []
    for axes in (tensors, {}):
        for numbers in (named, wide | named, alike, wide | alike, {}):
            if (numbers, axes) not in told:
                told.append((numbers, axes))
                yield numbers, axes


# --- tracing ----------------------------------------------------------------------------------------------------------


def trace(traced: Traceable, name: HeadSite, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
    """By the path of each layer that heads of a site depend on, [head, output]: whether the head does on the output."""
    copy = _copied(traced).cpu().double().eval()
    site = copy.head_sites[name]
    n_heads, detached, z = len(site.heads), dict[str, list[Tensor]](), list[Tensor]()

    def detach(path: str, layer: nn.Module, args: Any, output: Tensor) -> Tensor:
        detached[path].append(output.detach().requires_grad_())
        return detached[path][-1] * 1  # may be changed in place, as a leaf may not

    with ExitStack() as hooks:
        for path, layer in copy.model.named_modules():
            if is_linear(layer):
                detached[path] = []
                hooks.callback(layer.register_forward_hook(partial(detach, path)).remove)
        hooks.callback(site.projection.register_forward_pre_hook(lambda _, args: z.append(args[0])).remove)
        with torch.enable_grad(), in_double_precision():
            copy(*_doubles(inputs))
    z = [each.unflatten(-1, (n_heads, -1)) for each in z if each.requires_grad]
    asked = [(path, each) for path, outputs in detached.items() for each in outputs if each.dim() > 1]
    connected = {path: torch.zeros(n_heads, each.shape[-1], dtype=torch.bool) for path, each in asked}
    noise = torch.Generator().manual_seed(0)
    for head in range(n_heads if z else 0):
        own = [each[..., head, :] for each in z]
        total = torch.stack([(each * torch.randn(each.shape, generator=noise).to(each)).sum() for each in own]).sum()
        found = torch.autograd.grad(total, [each for _, each in asked], retain_graph=True, allow_unused=True)
        for (path, _), gradient in zip(asked, found, strict=True):
            if gradient is not None:
                connected[path][head] |= (gradient.nan_to_num() != 0).flatten(0, -2).any(0)
    return {path: each for path, each in connected.items() if bool(each.any())}


def head_of_output(connected: Tensor) -> Tensor:
    """Whose each output is: a head's place, or -1 if it is nobody's alone.

    A head that attends to one position only has hardly a gradient by its queries. So gaps are filled if what is seen
    fits one of the usual ways to lay out heads.
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
