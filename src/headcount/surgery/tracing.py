"""Plans for anybody's modules, by tracing which outputs of their linear layers go to which head; never without proof.

    cut = cut_traced(model, heads, inputs)             a copy; the model stays as it is

Every linear layer's output is detached from what it was computed from, and the gradient of one head's z is taken by all
of them. Queries, keys and values of that head have one; what mixes heads has one from several; and whatever is further
up has none, for another linear layer is in between. How the code splits heads - one layer or three, queries beside keys
or head beside head - shows without being asked for.

Site by site, ways to cut are tried on a copy, the fastest first, and the first is taken that is proven in double
precision. The heads that are left keep their names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from itertools import takewhile
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from headcount.errors import CheckFailed, HeadcountError, InputError
from headcount.heads import HeadId, HeadSite
from headcount.hooks.gates import Capture, eval_mode
from headcount.hooks.proof import difference
from headcount.hooks.sites import Sites
from headcount.surgery.layers import is_linear, n_inputs
from headcount.surgery.plan import CustomCut, Places, SitePlan, apply_to_sites
from headcount.surgery.proof import TOLERANCE, ForceFloat64, double_by_default, prove_cut

FAILURES = (HeadcountError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What a plan for somebody's modules may end in; whatever goes wrong in their own code is a HeadcountError."""
ROWS = 16
"""Examples that each way to cut is tried on; what comes out is proven on more."""
Connectivity = dict[str, Tensor]
"""By a layer's path, [head, output]: whether the head depends on the output."""
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

    def parameters(self) -> Iterator[nn.Parameter]:
        """Those of the module inside."""

    def after(self, plan: SitePlan, model: nn.Module, sites: Sites) -> Self:
        """The same around a model that a plan was applied to."""

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Logits."""


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
    gone, tried = [sites[name].heads[place] for place in places], list[str]()
    for plan in _plans(traced, name, places, inputs):
        try:
            cut = _applied(plan, traced)
            _prove(traced, cut, name, plan.keep, gone, inputs)
            return cut
        except FAILURES as error:
            if isinstance(error.__cause__, SystemExit):
                raise
            told = str(error).strip() or "no reason given"
            tried.append(f"tried {plan}\n    {type(error).__name__}: {told.splitlines()[0]}")
    raise CheckFailed(
        f"no way to cut heads out of {name} was proven to leave the output that the model has without them: "
        "nothing was cut",
        *(tried or ["no linear layer serves one head alone; or does forward() run without gradients?"]),
        "say how in the adapter: def cut(self, model, site, keep), see headcount.Adapter.cut; or ablate them",
    )


def _applied(plan: SitePlan, traced: Traceable) -> Traceable:
    copy = _copied(traced)
    return copy.after(plan, copy.model, apply_to_sites(plan, copy.model, copy.head_sites, copy.custom_cut))


def _copied(traced: Traceable) -> Any:
    try:
        return deepcopy(traced)
    except Exception as error:  # somebody's modules: anything may happen
        raise InputError(f"the model cannot be copied: {type(error).__name__}: {error}") from error


def _prove(
    whole: Traceable, cut: Traceable, name: HeadSite, keep: Places, gone: Sequence[HeadId], inputs: Sequence[Tensor]
) -> None:
    """The outputs are the same; and z is in its old order, for heads that swapped places would have the same output."""
    prove_cut(whole, cut, gone, inputs)  # type: ignore[arg-type]
    if not keep:
        return
    z = [_z(model, name, inputs) for model in (whole, cut)]
    kept = z[0][..., list(keep), :]
    if kept.shape != z[1].shape or not difference(kept, z[1]) <= TOLERANCE:
        raise CheckFailed("the heads that are left are not side by side in their old order", "keep the order of `keep`")


def _z(model: Any, name: HeadSite, inputs: Sequence[Tensor]) -> Tensor:
    double = deepcopy(model).cpu().double()
    given = [each.cpu().double() if each.is_floating_point() else each.cpu() for each in inputs]
    modes = double_by_default(), ForceFloat64(), eval_mode(double)
    with torch.no_grad(), modes[0], modes[1], modes[2], Capture(double.head_sites) as seen:
        double(*given)
    return seen.z(name)


# --- what might work --------------------------------------------------------------------------------------------------


def _plans(traced: Traceable, name: HeadSite, gone: Sequence[int], inputs: Any) -> Iterator[SitePlan]:
    """Every way worth trying to take the heads at these places out of a site, the best first."""
    site = traced.head_sites[name]
    path = next(path for path, module in traced.model.named_modules() if module is site.projection)
    keep = tuple(place for place in range(len(site.heads)) if place not in gone)
    base: dict[str, Any] = {"site": str(name), "heads": tuple(head.index for head in site.heads), "keep": keep}
    base["projection"] = path
    if traced.custom_cut is not None:
        yield SitePlan(way="adapter", **base)
        if keep:
            return
    if site.mha is not None:
        yield SitePlan(way="torch", **base)
        return
    connected = _connectivity(traced, name, inputs)
    if not keep:
        yield SitePlan(way="empty", layers=dict.fromkeys(connected, ()), **base)
        return
    layers = _kept(connected, keep)
    if layers:
        for numbers, tensors in _settings(traced.model, path, layers, len(site.heads), len(keep)):
            yield SitePlan(way="narrow", layers=layers, numbers=numbers, tensors=tensors, **base)
        yield SitePlan(way="spread", layers=layers, **base)


def _connectivity(traced: Traceable, name: HeadSite, inputs: Any) -> Connectivity:
    try:
        return trace(traced, name, inputs)
    except FAILURES as error:
        raise CheckFailed(
            f"what the heads at {name} depend on could not be traced: {type(error).__name__}: {error}",
            "say how to cut in the adapter: def cut(self, model, site, keep), see headcount.Adapter.cut",
        ) from error


def _kept(connected: Connectivity, keep: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """The outputs that each layer keeps, for layers that do not keep them all."""
    found = {}
    for path, each in connected.items():
        owner = head_of_output(each)
        stays = torch.isin(owner, torch.tensor([-1, *keep]))
        if not bool(stays.all()):
            found[path] = tuple(stays.nonzero().flatten().tolist())
    return found


def _settings(
    model: nn.Module, projection: str, layers: Mapping[str, Any], n: int, left: int
) -> Iterator[tuple[Numbers, Numbers]]:
    """Numbers and tensors of the attention module that may have to change with its heads."""
    home = _home([projection, *layers])
    width = n_inputs(model.get_submodule(projection))
    ints = dict(_ints(model, home))
    named = {path: left for path, value in ints.items() if value == n and _HEADS.search(path.rpartition(".")[2])}
    wide = {path: width // n * left for path, value in ints.items() if value == width}
    alike = {path: left for path, value in ints.items() if value == n}
    tensors = _with_heads(model, home, n)
    told = []
    for axes in (tensors, {}):
        for numbers in (named, wide | named, alike, wide | alike, {}):
            if (numbers, axes) not in told:
                told.append((numbers, axes))
                yield numbers, axes


def _home(paths: Sequence[str]) -> str:
    """The nearest module that holds them all."""
    shared = takewhile(lambda parts: len(set(parts)) == 1, zip(*(path.split(".")[:-1] for path in paths), strict=False))
    return ".".join(parts[0] for parts in shared)


def _ints(model: nn.Module, home: str) -> Iterator[tuple[str, int]]:
    for path, module in model.get_submodule(home).named_modules(prefix=home):
        if not is_linear(module):
            yield from ((f"{path}.{key}".lstrip("."), each) for key, each in vars(module).items() if type(each) is int)


def _with_heads(model: nn.Module, home: str, n: int) -> Numbers:
    found = {}
    for path, module in model.get_submodule(home).named_modules(prefix=home):
        if not is_linear(module):
            for key, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
                if list(tensor.shape).count(n) == 1:
                    found[f"{path}.{key}".lstrip(".")] = list(tensor.shape).index(n)
    return found


# --- tracing ----------------------------------------------------------------------------------------------------------


def trace(traced: Traceable, name: HeadSite, inputs: Sequence[Tensor]) -> Connectivity:
    """The layers that some head of a site depends on."""
    copy = _copied(traced).cpu().double().eval()
    site = copy.head_sites[name]
    loose, z = dict[str, list[Tensor]](), list[Tensor]()
    with ExitStack() as hooks:
        for path, layer in copy.model.named_modules():
            if is_linear(layer):
                hooks.callback(layer.register_forward_hook(_detach_output(loose.setdefault(path, []))).remove)
        hooks.callback(site.projection.register_forward_pre_hook(lambda _, args: z.append(args[0])).remove)
        with torch.enable_grad(), double_by_default(), ForceFloat64():
            copy(*(each.cpu().double() if each.is_floating_point() else each.cpu() for each in inputs))
    z = [each for each in z if each.requires_grad]
    return _connections(z, len(site.heads), loose) if z else {}


def head_of_output(connected: Tensor) -> Tensor:
    """Whose each output is: a head's place, or -1 if it is nobody's alone.

    A head that looks at one position only has hardly a gradient by its queries. So gaps are filled if what is seen
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


def _detach_output(kept: list[Tensor]) -> Any:
    def hook(layer: nn.Module, args: Any, output: Tensor) -> Tensor:
        kept.append(output.detach().requires_grad_())
        return kept[-1] * 1  # may be changed in place, as a leaf may not

    return hook


def _connections(z: Sequence[Tensor], n_heads: int, loose: dict[str, list[Tensor]]) -> Connectivity:
    asked = [(path, each) for path, outputs in loose.items() for each in outputs if each.dim() > 1]
    connected = {path: torch.zeros(n_heads, each.shape[-1], dtype=torch.bool) for path, each in asked}
    noise = torch.Generator().manual_seed(0)
    for head in range(n_heads):
        own = [each.unflatten(-1, (n_heads, -1))[..., head, :] for each in z]
        total = torch.stack([(each * torch.randn(each.shape, generator=noise).to(each)).sum() for each in own]).sum()
        found = torch.autograd.grad(total, [each for _, each in asked], retain_graph=True, allow_unused=True)
        for (path, _), gradient in zip(asked, found, strict=True):
            if gradient is not None:
                connected[path][head] |= (gradient.nan_to_num() != 0).flatten(0, -2).any(0)
    return {path: each for path, each in connected.items() if bool(each.any())}
