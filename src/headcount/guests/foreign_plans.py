"""Ways to cut heads out of somebody's attention module, to be tried in order and proven.

narrow   the layers lose the heads' outputs, the projection their inputs, and the module's numbers are set: fastest
spread   the same, but zeros stand where the heads' outputs were: for code that takes its width from elsewhere
empty    no head is left: zeros for the layers, and of the projection the bias
torch    PyTorch's own attention makes room for one that can have any number of heads
adapter  the adapter's own cut()
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn

from headcount.errors import CheckFailed
from headcount.guests.adapter import Adapted, Adapter
from headcount.guests.cut_layers import Made, Zeros, features, keep_inputs, keep_outputs, leave_bias, n_inputs
from headcount.guests.cut_layers import require_plain as require_plain_layer
from headcount.guests.foreign_torch import AnyHeads, leave_fast_path
from headcount.guests.foreign_tracing import Heard, is_linear, owners, trace
from headcount.guests.user_code import user_code_errors
from headcount.heads import HeadId, HeadSite
from headcount.instruments.sites import Site, Sites

Numbers = dict[str, int]
MOST = 2**20
"""Outputs of a layer, and more than any attribute of an attention module."""
_HEADS = re.compile(r"head|^n?h$", re.IGNORECASE)


@dataclass(frozen=True)
class Plan:
    """What is to be done at one site; paths are those of modules in the model."""

    site: str
    heads: tuple[int, ...]
    """Those that are there before, by their original numbers."""
    keep: tuple[int, ...]
    """The places among them that stay."""
    way: str
    projection: str
    layers: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Outputs that each layer keeps."""
    numbers: Numbers = field(default_factory=dict)
    """Attributes that are set."""
    tensors: Numbers = field(default_factory=dict)
    """Parameters and buffers with an axis of heads, and which axis it is."""

    def __str__(self) -> str:
        if self.way == "adapter":
            return f"cut() of the adapter, keep={list(self.keep)}"
        parts = [f"{self.way}: {', '.join(self.layers) or 'nothing'} and {self.projection}"]
        parts += [f"{name} = {value}" for name, value in self.numbers.items()]
        return "; ".join([*parts, *(f"axis {axis} of {name}" for name, axis in self.tensors.items())])

    def to_dict(self) -> dict[str, Any]:
        """For a file that has the weights beside it: how many outputs stay is all that is to be known."""
        return asdict(self) | {"layers": {path: len(kept) for path, kept in self.layers.items()}}

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> Plan:
        """To be carried out on a model whose weights are read afterwards; what cannot be is a ValueError."""
        heads, keep = tuple(told["heads"]), tuple(told["keep"])
        counts = [*heads, *told["layers"].values(), *told["numbers"].values(), *told["tensors"].values()]
        if odd := [each for each in counts if type(each) is not int or not 0 <= each <= MOST]:
            raise ValueError(f"{odd[0]!r} is no number of heads or outputs")
        if len(set(heads)) != len(heads) or not set(keep) <= set(range(len(heads))):
            raise ValueError(f"heads {list(heads)[:8]} of which the places {list(keep)[:8]} stay")
        if odd := [name for name in ("site", "way", "projection") if not isinstance(told[name], str)]:
            raise ValueError(f"{odd[0]} = {told[odd[0]]!r}")
        HeadId.parse(f"{told['site']}.0")
        layers = {path: tuple(range(n)) for path, n in told["layers"].items()}
        return cls(**{**told, "heads": heads, "keep": keep, "layers": layers})


class Spread(nn.Module):
    """Stands where a layer stood: some of its outputs are computed no more, and handed on as zeros."""

    kept: Tensor

    def __init__(self, inner: nn.Module, kept: Tensor, n_outputs: int) -> None:
        super().__init__()
        self.inner, self.n_outputs = inner, n_outputs
        self.register_buffer("kept", kept)

    def forward(self, input: Tensor) -> Tensor:
        """As wide as ever."""
        made = self.inner(input)
        return made.new_zeros(*made.shape[:-1], self.n_outputs).index_copy(-1, self.kept, made)


class Chosen(nn.Module):
    """Stands where a projection stood: it is given the inputs that it still has weights for."""

    kept: Tensor

    def __init__(self, inner: nn.Module, kept: Tensor) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("kept", kept)

    def forward(self, z: Tensor) -> Tensor:
        """Of the whole z."""
        return self.inner(z.index_select(-1, self.kept))


# --- what might work --------------------------------------------------------------------------------------------------


def plans(adapted: Adapted, adapter: Adapter, name: HeadSite, gone: Sequence[int], inputs: Any) -> Iterator[Plan]:
    """Every way worth trying to take the heads at these places out of a site, the best first."""
    site = adapted.head_sites[name]
    path = next(path for path, module in adapted.model.named_modules() if module is site.projection)
    keep = tuple(place for place in range(len(site.heads)) if place not in gone)
    base: dict[str, Any] = {"site": str(name), "heads": tuple(head.index for head in site.heads), "keep": keep}
    base["projection"] = path
    if type(adapter).cut is not Adapter.cut:
        yield Plan(way="adapter", **base)
        if keep:
            return
    if site.host is not None:
        yield Plan(way="torch", **base)
        return
    heard = _traced(adapted, name, inputs)
    if not keep:
        yield Plan(way="empty", layers=dict.fromkeys(heard, ()), **base)
        return
    layers = _kept(heard, keep)
    if layers:
        for numbers, tensors in _settings(adapted.model, path, layers, len(site.heads), len(keep)):
            yield Plan(way="narrow", layers=layers, numbers=numbers, tensors=tensors, **base)
        yield Plan(way="spread", layers=layers, **base)


def _traced(adapted: Adapted, name: HeadSite, inputs: Any) -> Heard:
    try:
        return trace(adapted, name, inputs)
    except Exception as error:  # somebody's code, asked for gradients
        raise CheckFailed(
            f"what the heads at {name} hear could not be traced: {type(error).__name__}: {error}",
            "say how to cut in the adapter: def cut(self, model, site, keep), see headcount.Adapter.cut",
        ) from error


def _kept(heard: Heard, keep: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """The outputs that each layer keeps, for layers that do not keep them all."""
    found = {}
    for path, each in heard.items():
        owner = owners(each)
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


# --- doing it ---------------------------------------------------------------------------------------------------------


def carry_out(plan: Plan, model: nn.Module, adapter: Adapter, sites: Sites) -> Sites:
    """Change a model in place; where the heads are that it still has."""
    name = HeadId.parse(f"{plan.site}.0").site
    if [head.index for head in sites[name].heads] != list(plan.heads):
        raise ValueError(f"{name} has other heads than it had when it was cut")
    path = plan.projection
    if plan.way == "adapter":
        with user_code_errors(adapter, "cut", besides=Exception):  # a cut that fails is one of several ways to try
            adapter.cut(model, name, list(plan.keep))
    elif plan.way == "torch":
        replace(model, path.rpartition(".")[0], lambda old: AnyHeads(old, list(plan.keep)))
        leave_fast_path(model)
    elif plan.way == "empty":
        _empty(plan, model)
    else:
        path = _narrow(plan, model)
    left = {site: each for site, each in sites.items() if site != name}
    if plan.keep:
        heads = tuple(sites[name].heads[place] for place in plan.keep)
        left = {site: Site(model.get_submodule(path), heads) if site == name else sites[site] for site in sites}
    return Sites(left)


def replace(model: nn.Module, path: str, made: Any) -> None:
    """Put what is made of a module in its place."""
    above, _, last = path.rpartition(".")
    setattr(model.get_submodule(above), last, made(model.get_submodule(path)))


def _empty(plan: Plan, model: nn.Module) -> None:
    for path in plan.layers:
        replace(model, path, lambda layer: Zeros(layer.nf if hasattr(layer, "nf") else layer.out_features))
    projection = model.get_submodule(plan.projection)
    require_plain_layer(plan.projection, projection)
    leave_bias(projection)


def _narrow(plan: Plan, model: nn.Module) -> str:
    """Drop outputs and inputs; the path of the projection from now on."""
    made: Made = {}
    for path, kept in plan.layers.items():
        layer: Any = model.get_submodule(path)
        n, chosen = layer.nf if hasattr(layer, "nf") else layer.out_features, torch.tensor(kept, dtype=torch.long)
        keep_outputs(layer, chosen, made)
        if plan.way == "spread":
            replace(model, path, lambda old, c=chosen, n=n: Spread(old, c.to(old.weight.device), n))
    projection = model.get_submodule(plan.projection)
    require_plain_layer(plan.projection, projection)
    inputs = features(plan.keep, n_inputs(projection) // len(plan.heads))
    keep_inputs(projection, inputs, made)
    for name, axis in plan.tensors.items():
        _choose(model, name, axis, plan.keep)
    for name, value in plan.numbers.items():
        above, _, last = name.rpartition(".")
        setattr(model.get_submodule(above), last, value)
    if plan.way != "spread":
        return plan.projection
    replace(model, plan.projection, lambda old: Chosen(old, inputs.to(old.weight.device)))
    return f"{plan.projection}.inner"


def _choose(model: nn.Module, name: str, axis: int, keep: Sequence[int]) -> None:
    above, _, last = name.rpartition(".")
    module = model.get_submodule(above)
    old: Tensor = getattr(module, last)
    new = old.detach().index_select(axis, torch.tensor(keep, device=old.device))
    setattr(module, last, nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new)
