"""What is to be done at one site to take heads out of it, as data; and doing it.

The ways:

    narrow    the layers lose the heads' outputs, the projection their inputs, and the module's numbers are set
    spread    the same, but zeros stand where the heads' outputs were: for code that takes its width from elsewhere
    empty     no head is left: zeros for the layers, and of the projection the bias
    headless  the same for a block of headcount's own models, which can do without any attention
    torch     PyTorch's own attention makes room for one that can have any number of heads
    adapter   an adapter's own cut()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from headcount.errors import HeadcountError, InputError
from headcount.heads import HeadId, HeadSite
from headcount.hooks.sites import Site, Sites
from headcount.models.transformer import AttentionBlock
from headcount.surgery import layers as cut
from headcount.surgery.layers import InputSubset, Made, PrunedMHA, ZeroFilledLinear, Zeros

Places = tuple[int, ...]
CustomCut = Callable[[nn.Module, HeadSite, list[int]], None]
"""An adapter's own way: the model, the site, and the places in z of the heads that stay."""
MOST = 2**20
"""Outputs of a layer, and more than any attribute of an attention module."""
TRACED_WAYS = ("narrow", "spread", "empty", "torch", "adapter")
WRITTEN = ("site", "heads", "keep", "way", "projection", "layers", "numbers", "tensors")
"""Of plans for an adapter's model, the only ones that are written to a file."""


@dataclass(frozen=True)
class SitePlan:
    """What is to be done at one site; paths are those of modules in the model."""

    site: str
    heads: Places
    """Those that are there before, by their original numbers."""
    keep: Places
    """The places among them that stay."""
    way: str
    projection: str
    layers: dict[str, Places] = field(default_factory=dict)
    """Outputs that each layer keeps."""
    numbers: dict[str, Any] = field(default_factory=dict)
    """Attributes that are set."""
    tensors: dict[str, int] = field(default_factory=dict)
    """Parameters and buffers with an axis of heads, and which axis it is."""
    inputs: Places | None = None
    """Inputs that the projection keeps, where they are not those of the heads that stay."""
    repeats: dict[str, Places] = field(default_factory=dict)
    """Outputs that a layer hands on more than once: keys and values that query heads share unevenly."""
    slices: dict[str, Places] = field(default_factory=dict)
    """Features of shared weights that a layer uses: outputs or, of the projection, inputs."""
    widths: dict[str, int] = field(default_factory=dict)
    """Where no head is left, how many zeros stand for a layer's outputs, if not as many as there were."""
    biases: dict[str, tuple[Places, int]] = field(default_factory=dict)
    """Attention modules that take biases of all heads, of which these are their own; and how many there are."""

    def __str__(self) -> str:
        if self.way == "adapter":
            return f"cut() of the adapter, keep={list(self.keep)}"
        parts = [f"{self.way}: {', '.join(self.layers) or 'nothing'} and {self.projection}"]
        parts += [f"{name} = {value}" for name, value in self.numbers.items()]
        return "; ".join([*parts, *(f"axis {axis} of {name}" for name, axis in self.tensors.items())])

    @property
    def name(self) -> HeadSite:
        """Its site."""
        return HeadId.parse(f"{self.site}.0").site

    def to_dict(self) -> dict[str, Any]:
        """For a file that has the weights beside it: how many outputs stay is all that is to be known."""
        told = asdict(self)
        return {name: told[name] for name in WRITTEN} | {"layers": {path: len(n) for path, n in self.layers.items()}}

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> SitePlan:
        """To be applied to a model whose weights are read afterwards; what cannot be is a ValueError."""
        if odd := sorted(map(str, told.keys() - set(WRITTEN))):
            raise ValueError(f"{odd[0]!r} is no part of a cut")
        heads, keep = tuple(told["heads"]), tuple(told["keep"])
        counts = [*heads, *told["layers"].values(), *told["numbers"].values(), *told["tensors"].values()]
        if odd := [each for each in counts if type(each) is not int or not 0 <= each <= MOST]:
            raise ValueError(f"{odd[0]!r} is no number of heads or outputs")
        if len(set(heads)) != len(heads) or list(keep) != [place for place in range(len(heads)) if place in keep]:
            raise ValueError(f"heads {list(heads)[:8]} of which the places {list(keep)[:8]} stay")
        if odd := [name for name in ("site", "way", "projection") if not isinstance(told[name], str)]:
            raise ValueError(f"{odd[0]} = {told[odd[0]]!r}")
        if told["way"] not in TRACED_WAYS:
            raise ValueError(f"no way to cut is called {told['way']!r}")
        HeadId.parse(f"{told['site']}.0")
        layers = {path: tuple(range(n)) for path, n in told["layers"].items()}
        return cls(**{**told, "heads": heads, "keep": keep, "layers": layers})


def apply_plan(plan: SitePlan, model: nn.Module, made: Made, custom: CustomCut | None = None) -> str:
    """Change a model in place; where the output projection is from now on. `made` are parameters narrowed already."""
    for path, (places, n_all) in plan.biases.items():
        weight = model.get_submodule(plan.projection).weight
        cut.pick_bias(model.get_submodule(path), places, n_all, weight.device if isinstance(weight, Tensor) else None)
    if plan.way == "adapter":
        if custom is None:
            raise InputError("these heads were cut out by cut() of the adapter, which it does not have any more")
        custom(model, plan.name, list(plan.keep))
    elif plan.way == "torch":
        replace(model, plan.projection.rpartition(".")[0], lambda old: PrunedMHA(old, plan.keep))
        cut.leave_fast_path(model)
    elif plan.way == "headless":
        block = model.get_submodule(plan.projection.rpartition(".attention.")[0])
        assert isinstance(block, AttentionBlock), "planned for one"
        block.drop_attention()
        block.train(block.training)
    elif plan.way == "empty":
        _empty(plan, model)
    else:
        return _narrow(plan, model, made)
    _set(model, plan)
    return plan.projection


def apply_to_sites(plan: SitePlan, model: nn.Module, sites: Sites, custom: CustomCut | None = None) -> Sites:
    """Change a model in place; where the heads are that it still has."""
    name = plan.name
    if [head.index for head in sites[name].heads] != list(plan.heads):
        raise ValueError(f"{name} has other heads than it had when it was cut")
    try:
        path = apply_plan(plan, model, {}, custom)
    except HeadcountError:
        raise
    except Exception as error:  # somebody's modules, whose attributes are set: anything may happen
        raise InputError(f"{name} cannot be changed: {type(error).__name__}: {error}") from error
    left = {site: each for site, each in sites.items() if site != name}
    if plan.keep:
        heads = tuple(sites[name].heads[place] for place in plan.keep)
        left = {site: Site(model.get_submodule(path), heads) if site == name else sites[site] for site in sites}
    return Sites(left)


def replace(model: nn.Module, path: str, make: Callable[[Any], nn.Module]) -> None:
    """Put what is made of a module in its place."""
    above, _, last = path.rpartition(".")
    old = model.get_submodule(path)
    setattr(model.get_submodule(above), last, make(old).train(old.training))


def _empty(plan: SitePlan, model: nn.Module) -> None:
    for path in plan.layers:
        replace(model, path, partial(_zeros, plan.widths.get(path)))
    projection = model.get_submodule(plan.projection)
    cut.require_plain(plan.projection, projection)
    cut.leave_bias(projection)


def _zeros(width: int | None, layer: nn.Module) -> nn.Module:
    return Zeros(width or cut.n_outputs(layer))


def _zero_filled(kept: Tensor, n: int, layer: Any) -> nn.Module:
    return ZeroFilledLinear(layer, kept.to(layer.weight.device), n)


def _narrow(plan: SitePlan, model: nn.Module, made: Made) -> str:
    """Drop outputs and inputs; the path of the projection from now on."""
    for path, kept in plan.layers.items():
        layer: Any = model.get_submodule(path)
        cut.make_plain(layer)
        n, chosen = cut.n_outputs(layer), torch.tensor(kept, dtype=torch.long)
        cut.keep_outputs(layer, chosen, made)
        if path in plan.repeats:
            cut.pick_outputs(layer, torch.tensor(plan.repeats[path], dtype=torch.long))
        if path in plan.slices:
            cut.use_part(layer, torch.tensor(plan.slices[path], dtype=torch.long), axis=0)
        if plan.way == "spread":
            replace(model, path, partial(_zero_filled, chosen, n))
    projection: Any = model.get_submodule(plan.projection)
    cut.require_plain(plan.projection, projection)
    cut.make_plain(projection)
    inputs = cut.features(plan.keep, cut.n_inputs(projection) // len(plan.heads))
    inputs = inputs if plan.inputs is None else torch.tensor(plan.inputs, dtype=torch.long)
    cut.keep_inputs(projection, inputs, made)
    if plan.projection in plan.slices:
        cut.use_part(projection, torch.tensor(plan.slices[plan.projection], dtype=torch.long), axis=1)
    _set(model, plan)
    if plan.way != "spread":
        return plan.projection
    replace(model, plan.projection, lambda old: InputSubset(old, inputs.to(old.weight.device)))
    return f"{plan.projection}.inner"


def _set(model: nn.Module, plan: SitePlan) -> None:
    for name, axis in plan.tensors.items():
        _choose(model, name, axis, plan.keep)
    for name, value in plan.numbers.items():
        above, _, last = name.rpartition(".")
        setattr(model.get_submodule(above), last, value)


def _choose(model: nn.Module, name: str, axis: int, keep: Sequence[int]) -> None:
    above, _, last = name.rpartition(".")
    module = model.get_submodule(above)
    old: Tensor = getattr(module, last)
    new = old.detach().index_select(axis, torch.tensor(keep, device=old.device))
    setattr(module, last, nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new)
