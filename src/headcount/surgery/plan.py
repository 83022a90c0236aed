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
from typing import Any

import torch
from torch import Tensor, nn

from headcount.errors import HeadcountError, InputError
from headcount.heads import HeadId, HeadSite
from headcount.hooks.sites import Site, Sites
from headcount.models.transformer import AttentionBlock
from headcount.surgery.layers import (
    BiasAlone,
    InputSubset,
    PrunedMHA,
    RepeatedKV,
    SharedSlice,
    ZeroFilledLinear,
    Zeros,
    pick_bias,
)

Places = tuple[int, ...]
Made = dict[tuple[Tensor, int, Places], nn.Parameter]
"""Narrowed parameters by the whole ones, the axis and what was kept of it: layers that share them still do."""
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
        device = weight.device if isinstance(weight, Tensor) else None
        pick_bias(model.get_submodule(path), places, n_all, device)
    projection = plan.projection
    if plan.way == "adapter":
        if custom is None:
            raise InputError("these heads were cut out by cut() of the adapter, which it does not have any more")
        custom(model, plan.name, list(plan.keep))
    elif plan.way == "torch":
        above = projection.rpartition(".")[0]
        _replace(model, above, PrunedMHA(model.get_submodule(above), plan.keep))
        if not plan.keep:
            leave_bias(model.get_submodule(projection))
        for module in model.modules():
            if isinstance(module, nn.TransformerEncoder):  # its layers cannot read nested tensors any more
                module.enable_nested_tensor = module.use_nested_tensor = False
    elif plan.way == "headless":
        block = model.get_submodule(projection.rpartition(".attention.")[0])
        assert isinstance(block, AttentionBlock), "planned for one"
        block.drop_attention()
        block.train(block.training)
    elif plan.way == "empty":
        for path in plan.layers:
            _replace(model, path, Zeros(plan.widths.get(path) or _n_outputs(model.get_submodule(path))))
        require_plain(projection, model.get_submodule(projection))
        leave_bias(model.get_submodule(projection))
    else:
        projection = _narrow(plan, model, made)
    for name in (*plan.tensors, *plan.numbers):
        above, _, last = name.rpartition(".")
        holder = model.get_submodule(above)
        value = plan.numbers.get(name)
        if name in plan.tensors:
            old: Tensor = getattr(holder, last)
            value = old.detach().index_select(plan.tensors[name], _index(plan.keep, old))
            value = nn.Parameter(value, old.requires_grad) if isinstance(old, nn.Parameter) else value
        setattr(holder, last, value)
    return projection


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
    left = dict(sites)
    if plan.keep:
        left[name] = Site(model.get_submodule(path), tuple(sites[name].heads[place] for place in plan.keep))
    else:
        del left[name]
    return Sites(left)


def _narrow(plan: SitePlan, model: nn.Module, made: Made) -> str:
    """Drop outputs and inputs, layers staying where they stand; the path of the projection from now on."""
    for path, kept in plan.layers.items():
        layer: Any = model.get_submodule(path)
        _make_plain(layer)
        n = _n_outputs(layer)
        layer.weight = _taken(weight_of(layer), 1 if is_conv(layer) else 0, kept, made)
        if isinstance(layer.bias, nn.Parameter):
            layer.bias = _taken(layer.bias, 0, kept, made)
        setattr(layer, "nf" if is_conv(layer) else "out_features", len(kept))
        if path in plan.repeats:
            _pick(layer, RepeatedKV, plan.repeats[path])
        if path in plan.slices:
            _pick(layer, SharedSlice, plan.slices[path])
        if plan.way == "spread":
            _replace(model, path, ZeroFilledLinear(layer, _index(kept, layer.weight), n))
    projection: Any = model.get_submodule(plan.projection)
    require_plain(plan.projection, projection)
    _make_plain(projection)
    inputs = features(plan.keep, n_inputs(projection) // len(plan.heads)) if plan.inputs is None else plan.inputs
    projection.weight = _taken(weight_of(projection), 0 if is_conv(projection) else 1, inputs, made)
    setattr(projection, "nx" if is_conv(projection) else "in_features", len(inputs))
    if plan.projection in plan.slices:
        _pick(projection, SharedSlice, plan.slices[plan.projection], axis=1)
    if plan.way != "spread":
        return plan.projection
    _replace(model, plan.projection, InputSubset(projection, _index(inputs, projection.weight)))
    return f"{plan.projection}.inner"


def _replace(model: nn.Module, path: str, new: nn.Module) -> None:
    """Put a module in another's place."""
    above, _, last = path.rpartition(".")
    setattr(model.get_submodule(above), last, new.train(model.get_submodule(path).training))


def _index(places: Places, beside: Tensor) -> Tensor:
    return torch.tensor(places, dtype=torch.long, device=beside.device)


def _n_outputs(layer: Any) -> int:
    n: int = layer.nf if is_conv(layer) else layer.out_features
    return n


def _taken(old: nn.Parameter, axis: int, kept: Places, made: Made) -> nn.Parameter:
    if (old, axis, kept) not in made:
        made[old, axis, kept] = nn.Parameter(old.detach().index_select(axis, _index(kept, old)), old.requires_grad)
    return made[old, axis, kept]


def _pick(layer: nn.Linear, into: type[RepeatedKV | SharedSlice], picks: Places, axis: int = 0) -> None:
    """Let a layer hand on, or use of its weights, these outputs (axis 0) or inputs (axis 1) alone."""
    layer.__class__ = into
    layer.axis = axis  # type: ignore[assignment]
    layer.register_buffer("picks", _index(picks, layer.weight), persistent=False)
    setattr(layer, "in_features" if axis else "out_features", len(picks))


def _make_plain(layer: nn.Module) -> None:
    """Undo `_pick`."""
    if isinstance(layer, RepeatedKV | SharedSlice):
        del layer.picks
        layer.__class__ = nn.Linear  # type: ignore[assignment]
        layer.out_features, layer.in_features = layer.weight.shape


def features(places: Sequence[int], size: int) -> Places:
    """The features of heads at these places, each head having `size` of them.

    >>> features([0, 2], 2)
    (0, 1, 4, 5)
    """
    return tuple(place * size + i for place in places for i in range(size))


def n_inputs(layer: nn.Module) -> int:
    """How many features the weights of a layer take."""
    return weight_of(layer).shape[0 if is_conv(layer) else 1]


def leave_bias(projection: nn.Module) -> None:
    """Drop all weights of an output projection, where it stands."""
    projection.n_outputs = weight_of(projection).shape[1 if is_conv(projection) else 0]  # type: ignore[assignment]
    if isinstance(projection, SharedSlice):
        del projection.picks
    del projection.weight
    projection.__class__ = BiasAlone


def add_bias(projection: nn.Module) -> None:
    """Give a linear layer without a bias one of zeros."""
    require_plain("an output projection", projection)
    weight = weight_of(projection)
    projection.bias = nn.Parameter(weight.new_zeros(weight.shape[1 if is_conv(projection) else 0]))


def require_plain(what: str, layer: nn.Module) -> None:
    """Adapters and quantised layers keep their weights elsewhere."""
    if not (is_linear(layer) or type(layer) in (RepeatedKV, SharedSlice)):
        raise InputError(
            f"{what} is a {type(layer).__module__}.{type(layer).__name__}, which heads cannot be cut out of",
            "merge adapters into the model first, and load it unquantised",
        )


def weight_of(layer: nn.Module) -> nn.Parameter:
    """Its weights, which must be its own parameter."""
    if not isinstance(layer.weight, nn.Parameter):
        raise InputError(
            f"the weights of a {type(layer).__name__} are computed from other parameters: no head can be cut out of it",
            "give it plain weights first, as torch.nn.utils.remove_weight_norm does",
        )
    return layer.weight


def is_linear(layer: nn.Module) -> bool:
    """Whether it is a layer whose outputs can be dropped one by one."""
    return type(layer) is nn.Linear or is_conv(layer)


def is_conv(layer: nn.Module) -> bool:
    """Hugging Face's Conv1D, a linear layer with its weights transposed."""
    return type(layer).__name__ == "Conv1D" and hasattr(layer, "nf")
