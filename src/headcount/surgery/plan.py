"""Plans for cutting heads out of one attention block (site), as data, and functions that apply the plans.

A plan cuts in one of six ways:

    narrow    query, key and value layers lose the cut heads' outputs, the output projection loses the matching inputs,
              and attributes such as the number of heads are adapted
    spread    like narrow, but zeros replace the cut heads' outputs, for code that expects the old width
    empty     no head is left: layers return zeros, and the projection returns its bias
    headless  no head is left in a block of headcount's own models, whose attention is removed
    torch     nn.MultiheadAttention is replaced by a class that supports any number of heads
    adapter   the adapter's own cut() is called
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
Narrowed = dict[tuple[Tensor, int, Places], nn.Parameter]
"""Maps (old parameter, axis, kept indices) to the narrowed parameter, so that layers go on sharing parameters."""
CustomCut = Callable[[nn.Module, HeadSite, list[int]], None]
"""An adapter's own function cut(): it takes the model, the attention block, and the indices of the heads that stay."""
MOST = 2**20
"""Largest number that a stored plan of a cut may contain, because no layer has more outputs."""
TRACED_WAYS = ("narrow", "spread", "empty", "torch", "adapter")
WRITTEN = ("site", "heads", "keep", "way", "projection", "layers", "numbers", "tensors")
"""The fields of a `SitePlan` that are written to files; only plans for models of adapters are written."""


@dataclass(frozen=True)
class SitePlan:
    """The changes to one attention block that cut heads out of it; modules are given by their paths in the model."""

    site: str
    heads: Places
    """The original indices of the heads that the attention block has before this cut."""
    keep: Places
    """The heads that are kept, as indices into `heads`."""
    way: str
    """The way of cutting: narrow, spread, empty, headless, torch or adapter (explained at the top of this file)."""
    projection: str
    """The path of the block's output projection in the model."""
    layers: dict[str, Places] = field(default_factory=dict)
    """For each layer, by path, the indices of the output features that it keeps."""
    numbers: dict[str, Any] = field(default_factory=dict)
    """The new values of attributes, by path, such as {"layers.0.attn.n_heads": 3}."""
    tensors: dict[str, int] = field(default_factory=dict)
    """For each parameter or buffer with an axis that counts heads, by path, the number of that axis."""
    inputs: Places | None = None
    """The indices of the input features that the output projection keeps; None for those of the heads in `keep`."""
    repeats: dict[str, Places] = field(default_factory=dict)
    """For each layer, by path, its outputs after the cut as indices that may repeat (for grouped-query attention)."""
    slices: dict[str, Places] = field(default_factory=dict)
    """For each layer with shared weights, by path, the features it uses: outputs or, for the projection, inputs."""
    widths: dict[str, int] = field(default_factory=dict)
    """If no head is left: for each layer, by path, how many zeros replace its outputs (default: as many as before)."""
    biases: dict[str, tuple[Places, int]] = field(default_factory=dict)
    """For T5: attention modules that receive the position biases of all heads, by path.

    The values are the indices of the module's own heads, and the number of all heads.
    """

    def __str__(self) -> str:
        if self.way == "adapter":
            return f"cut() of the adapter, keep={list(self.keep)}"
        parts = [f"{self.way}: {', '.join(self.layers) or 'nothing'} and {self.projection}"]
        parts += [f"{name} = {value}" for name, value in self.numbers.items()]
        return "; ".join([*parts, *(f"axis {axis} of {name}" for name, axis in self.tensors.items())])

    @property
    def name(self) -> HeadSite:
        """The name of the attention block that this plan changes, as a `HeadSite`."""
        return HeadId.parse(f"{self.site}.0").site

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data, to be stored in a file beside the weights.

        Layers are stored with their number of outputs only, which suffices to build the cut model.
        """
        data = asdict(self)
        return {name: data[name] for name in WRITTEN} | {"layers": {path: len(n) for path, n in self.layers.items()}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SitePlan:
        """Build a plan from the output of `to_dict`; raise a ValueError if the data is invalid.

        The plan is for a model whose weights are loaded after the plan was applied.
        """
        if unknown := sorted(map(str, data.keys() - set(WRITTEN))):
            raise ValueError(f"the stored record of the removed heads has an unknown field: {unknown[0]!r}")
        heads, keep = tuple(data["heads"]), tuple(data["keep"])
        counts = [*heads, *data["layers"].values(), *data["numbers"].values(), *data["tensors"].values()]
        if invalid := [count for count in counts if type(count) is not int or not 0 <= count <= MOST]:
            raise ValueError(
                f"{invalid[0]!r} in the stored record of the removed heads must be a number of heads or outputs"
            )
        if len(set(heads)) != len(heads) or list(keep) != [place for place in range(len(heads)) if place in keep]:
            raise ValueError(
                f"in the stored record of the removed heads, `keep` {list(keep)[:8]} must be indices into `heads` "
                f"{list(heads)[:8]}, in ascending order"
            )
        if invalid := [name for name in ("site", "way", "projection") if not isinstance(data[name], str)]:
            raise ValueError(
                f"{invalid[0]} in the stored record of the removed heads must be a text, got {data[invalid[0]]!r}"
            )
        if data["way"] not in TRACED_WAYS:
            raise ValueError(
                f"`way` in the stored record of the removed heads must be one of {', '.join(TRACED_WAYS)}, got "
                f"{data['way']!r}"
            )
        HeadId.parse(f"{data['site']}.0")
        layers = {path: tuple(range(n)) for path, n in data["layers"].items()}
        return cls(**{**data, "heads": heads, "keep": keep, "layers": layers})


def apply_plan(plan: SitePlan, model: nn.Module, narrowed: Narrowed, custom: CustomCut | None = None) -> str:
    """Apply a plan to a model in place, and return the new path of the output projection.

    `narrowed` collects the parameters that were narrowed by earlier plans. `custom` is the adapter's own cut().
    """
    for path, (places, n_all) in plan.biases.items():
        weight = model.get_submodule(plan.projection).weight
        device = weight.device if isinstance(weight, Tensor) else None
        pick_bias(model.get_submodule(path), places, n_all, device)
    projection = plan.projection
    if plan.way == "adapter":
        if custom is None:
            raise InputError(
                "heads of this model were cut out by cut() of its adapter class, but the class no longer has this "
                "method",
                "add cut() to the adapter class again",
            )
        custom(model, plan.name, list(plan.keep))
    elif plan.way == "torch":
        above = projection.rpartition(".")[0]
        _replace(model, above, PrunedMHA(model.get_submodule(above), plan.keep))
        if not plan.keep:
            leave_bias(model.get_submodule(projection))
        for module in model.modules():
            if isinstance(module, nn.TransformerEncoder):  # its layers no longer support nested tensors
                module.enable_nested_tensor = module.use_nested_tensor = False
    elif plan.way == "headless":
        block = model.get_submodule(projection.rpartition(".attention.")[0])
        assert isinstance(block, AttentionBlock), "a headless plan is for an attention block of headcount's own models"
        block.drop_attention()
        block.train(block.training)
    elif plan.way == "empty":
        for path in plan.layers:
            _replace(model, path, Zeros(plan.widths.get(path) or n_outputs(model.get_submodule(path))))
        require_plain(projection, model.get_submodule(projection))
        leave_bias(model.get_submodule(projection))
    else:
        projection = _narrow(plan, model, narrowed)
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
    """Cut heads out of one attention block of a model in place, and return all attention blocks that are left.

    `sites` are the blocks before the cut, and `custom` is the adapter's own cut(), if it has one.
    """
    name = plan.name
    if [head.index for head in sites[name].heads] != list(plan.heads):
        raise ValueError(
            f"the stored record of the removed heads does not fit {name}: it was made for an attention block with "
            "other heads"
        )
    try:
        path = apply_plan(plan, model, {}, custom)
    except HeadcountError:
        raise
    except Exception as error:  # user code may raise anything when its attributes are set
        raise InputError(f"heads cannot be cut out of {name}: {type(error).__name__}: {error}") from error
    left = dict(sites)
    if plan.keep:
        left[name] = Site(model.get_submodule(path), tuple(sites[name].heads[place] for place in plan.keep))
    else:
        del left[name]
    return Sites(left)


def _narrow(plan: SitePlan, model: nn.Module, narrowed: Narrowed) -> str:
    """Remove the outputs and inputs of cut heads from layers in place; return the new path of the output projection."""
    for path, kept in plan.layers.items():
        layer: Any = model.get_submodule(path)
        _make_plain(layer)
        n = n_outputs(layer)
        layer.weight = _selected(weight_of(layer), 1 if is_conv(layer) else 0, kept, narrowed)
        if isinstance(layer.bias, nn.Parameter):
            layer.bias = _selected(layer.bias, 0, kept, narrowed)
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
    projection.weight = _selected(weight_of(projection), 0 if is_conv(projection) else 1, inputs, narrowed)
    setattr(projection, "nx" if is_conv(projection) else "in_features", len(inputs))
    if plan.projection in plan.slices:
        _pick(projection, SharedSlice, plan.slices[plan.projection], axis=1)
    if plan.way != "spread":
        return plan.projection
    _replace(model, plan.projection, InputSubset(projection, _index(inputs, projection.weight)))
    return f"{plan.projection}.inner"


def _replace(model: nn.Module, path: str, new: nn.Module) -> None:
    """Replace the module at a path by `new`, which takes over the training mode of the old module."""
    above, _, last = path.rpartition(".")
    setattr(model.get_submodule(above), last, new.train(model.get_submodule(path).training))


def _index(places: Places, beside: Tensor) -> Tensor:
    return torch.tensor(places, dtype=torch.long, device=beside.device)


def _selected(old: nn.Parameter, axis: int, kept: Places, narrowed: Narrowed) -> nn.Parameter:
    """Return a parameter that has only the `kept` indices of an axis of `old`.

    Equal arguments return the same parameter, which `narrowed` remembers.
    """
    if (old, axis, kept) not in narrowed:
        narrowed[old, axis, kept] = nn.Parameter(old.detach().index_select(axis, _index(kept, old)), old.requires_grad)
    return narrowed[old, axis, kept]


def _pick(layer: nn.Linear, into: type[RepeatedKV | SharedSlice], picks: Places, axis: int = 0) -> None:
    """Change a linear layer in place, into a layer that selects the outputs (axis 0) or inputs (axis 1) in `picks`."""
    layer.__class__ = into
    layer.axis = axis  # type: ignore[assignment]
    layer.register_buffer("picks", _index(picks, layer.weight), persistent=False)
    setattr(layer, "in_features" if axis else "out_features", len(picks))


def _make_plain(layer: nn.Module) -> None:
    """Turn a layer that selects outputs or inputs (see `_pick`) back into a plain linear layer, in place."""
    if isinstance(layer, RepeatedKV | SharedSlice):
        del layer.picks
        layer.__class__ = nn.Linear  # type: ignore[assignment]
        layer.out_features, layer.in_features = layer.weight.shape


def features(places: Sequence[int], size: int) -> Places:
    """Return the indices of the features that belong to the heads at `places`, if each head has `size` features.

    >>> features([0, 2], 2)
    (0, 1, 4, 5)
    """
    return tuple(place * size + i for place in places for i in range(size))


def n_inputs(layer: nn.Module) -> int:
    """Return the number of input features of a linear layer or of a `Conv1D` of GPT-2."""
    return weight_of(layer).shape[0 if is_conv(layer) else 1]


def n_outputs(layer: nn.Module) -> int:
    """Return the number of output features of a linear layer or of a `Conv1D` of GPT-2."""
    return weight_of(layer).shape[1 if is_conv(layer) else 0]


def leave_bias(projection: nn.Module) -> None:
    """Drop the weights of an output projection in place, so that only its bias is left."""
    projection.n_outputs = n_outputs(projection)  # type: ignore[assignment]
    if isinstance(projection, SharedSlice):
        del projection.picks
    del projection.weight
    projection.__class__ = BiasAlone


def add_bias(projection: nn.Module) -> None:
    """Add a bias of zeros to a linear layer without one."""
    require_plain("an output projection", projection)
    projection.bias = nn.Parameter(weight_of(projection).new_zeros(n_outputs(projection)))


def require_plain(what: str, layer: nn.Module) -> None:
    """Raise an error if a layer is not a plain linear layer but, for example, a LoRA adapter or quantised.

    `what` names the layer in the message.
    """
    if not (is_linear(layer) or type(layer) in (RepeatedKV, SharedSlice)):
        raise InputError(
            f"heads cannot be cut out of {what}: it is a {type(layer).__module__}.{type(layer).__name__}",
            "only plain linear layers can be cut: merge LoRA adapters into the model first, and load it unquantised",
        )


def weight_of(layer: nn.Module) -> nn.Parameter:
    """Return the weight matrix of a layer; raise an error if it is computed from other parameters (weight norm)."""
    if not isinstance(layer.weight, nn.Parameter):
        raise InputError(
            f"the weights of a {type(layer).__name__} are computed from other parameters: no head can be cut out of it",
            "make it a plain linear layer first, as torch.nn.utils.remove_weight_norm does",
        )
    return layer.weight


def is_linear(layer: nn.Module) -> bool:
    """Return whether a module is a linear layer or a Conv1D, whose outputs can be dropped one by one."""
    return type(layer) is nn.Linear or is_conv(layer)


def is_conv(layer: nn.Module) -> bool:
    """Return whether a module is Hugging Face's Conv1D, a linear layer with transposed weights."""
    return type(layer).__name__ == "Conv1D" and hasattr(layer, "nf")
