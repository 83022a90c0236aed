"""Wrap any model so that its heads have names and its output is one tensor.

    wrapped = wrap(AutoModel.from_pretrained(...))
    print(wrapped)                                   its heads and output projections
    wrapped(input_ids, attention_mask)               the model's output, as one tensor

This works for known families of Hugging Face models, for PyTorch's own attention, and for other models if the paths of
their output projections are given as `sites`. If they are not given, an error suggests paths based on module names;
suggestions are never used without confirmation.
"""

import inspect
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, cast

from torch import Tensor, nn

from headcount.errors import InputError
from headcount.heads import HeadId, HeadSite
from headcount.hooks.families import BOTH, AttentionLayout, Family, family_of, model_type_of, model_types
from headcount.hooks.intervention_proof import first_tensor
from headcount.hooks.parameters import ParameterProjection
from headcount.hooks.sites import SUPPORTED, Site, Sites, find_mha, guess, in_one_stack, modules_at, sites_calls, unwrap

CUT = "headcount_cut"
"""Key of a model's configuration under which the heads that were cut out are listed."""
FOLDED = "headcount_folded_over"
"""Key of a model's configuration: the number of examples over which the mean outputs of the cut heads were taken."""
BIASED = "headcount_biased"
"""Key of a model's configuration: attention blocks whose projection got a bias for the mean outputs of cut heads."""
BRIDGED = "blocks.*.attn.o._original_component"
"""Path of the output projections in models that TransformerLens 4 loads through its bridge."""
OUTPUTS = ("logits", "last_hidden_state")
"""Attributes of the object that a model returns; the first one that exists is taken as the model's output."""
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Wrapped(nn.Module):
    """A model whose heads have names, and which takes tensors and returns one tensor; `wrap` makes it."""

    def __init__(
        self, model: nn.Module, sites: Sites, inputs: Sequence[str] = (), family: Family | None = None
    ) -> None:
        super().__init__()
        self.model, self.head_sites, self.inputs, self.family = model, sites, tuple(inputs), family
        self.heads, self.sites = sites.heads, tuple(sites)
        takes = inspect.signature(model.forward).parameters
        self._always: dict[str, Any] = {"use_cache": False} if self.inputs and "use_cache" in takes else {}

    def heads_at(self, site: HeadSite) -> tuple[HeadId, ...]:
        """Return the heads of one attention block, in the order of their outputs in the output projection's input."""
        return self.head_sites[site].heads

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """Return the model's logits or, if it has none, its last hidden state."""
        if self.inputs:
            if len(inputs) > len(self.inputs):
                raise InputError(
                    f"{len(inputs)} tensors were given, but the model takes at most {len(self.inputs)}",
                    f"give these, or the first of them: {', '.join(self.inputs)}",
                )
            named = dict(zip(self.inputs, inputs, strict=False)) | named
            inputs = ()
        return output_tensor(self.model(*inputs, **self._always | named))

    def __repr__(self) -> str:
        n = sum(weight.numel() for weight in self.model.parameters())
        return f"{type(self.model).__name__}, {len(self.heads)} heads, {n:,} parameters"

    def __str__(self) -> str:
        paths = projection_paths(self.model, self.head_sites)
        lines = [f"{type(self.model).__name__}: {len(self.heads)} heads"]
        for name, site in self.head_sites.items():
            span = f"{len(site.heads)} heads, {site.heads[0].short} to {site.heads[-1].short}"
            lines.append(f"  {name}: {span}, at {paths[name]}")
        return "\n".join(lines)


def wrap(model: nn.Module, sites: Sites | None = None, *, inputs: Sequence[str] | None = None) -> Wrapped:
    """Wrap a model, so that its heads have names and its output is one tensor.

    `sites` gives the model's output projections if they cannot be inferred, and `inputs` the names of its inputs.

    >>> wrap(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True))
    TransformerEncoderLayer, 2 heads, 464 parameters
    """
    if isinstance(model, Wrapped):
        if sites is None and inputs is None:
            return model
        return Wrapped(model.model, sites or model.head_sites, inputs or model.inputs, None if sites else model.family)
    model = unwrap(model)
    if sites is not None:
        return Wrapped(model, sites, inputs or input_names(model))
    if modules_at(model, BRIDGED):
        return Wrapped(model, Sites.of(model, layer=BRIDGED, n_heads=cast(Any, model).cfg.n_heads), inputs or ())
    if (family := family_of(model_type_of(model))) is not None:
        return Wrapped(model, _sites_of(model, family), inputs or input_names(model), family)
    if isinstance(model, SUPPORTED):
        return Wrapped(model, Sites.of(model), inputs or ())
    if attentions := find_mha(model):
        return Wrapped(model, Sites(attentions), inputs or ())
    raise unknown_family(model)


def unknown_family(model: nn.Module, advice: str = "") -> InputError:
    """Build the error for a model that is of no known family.

    It suggests paths of output projections, or says that the model has no attention.
    """
    name, model_type = type(model).__name__, model_type_of(model)
    of_type, guesses = f" (model_type {model_type!r})" if model_type else "", guess(model)
    calls = sites_calls(in_one_stack(guesses) if advice else guesses)
    names = (f"{path} {type(module).__name__}".lower() for path, module in model.named_modules())
    if model_type and not any("att" in module_name for module_name in names):
        return InputError(
            f"{name} has no attention heads: no module has 'att' in its name or class{of_type}",
            "there is nothing to ablate, read or cut: give a model with attention",
        )
    suggested = ", or ".join(calls if advice else [f"wrap(model, {call})" for call in calls])
    return InputError(
        f"{name} is of no family that headcount knows{of_type}",
        f"headcount knows {', '.join(model_types())}",
        f"its module tree suggests, for you to confirm: {suggested}"
        if calls
        else "say where its heads are: wrap(model, Sites.of(model, PATH, n_heads=...))",
        *filter(None, [advice]),
    )


def input_names(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the inputs of a Hugging Face model, in a fixed order; empty for other models."""
    takes = inspect.signature(model.forward).parameters
    family = family_of(model_type_of(model))
    names = family.inputs if family else (*BOTH, "pixel_values")
    required = {name for name, p in takes.items() if p.default is p.empty and p.kind not in _VARIADIC}
    is_known = {"input_ids", "pixel_values", names[0]} & takes.keys() and not required - set(names)
    if getattr(model, "config", None) is None or not is_known:
        return ()
    # Only the names in the signature: an encoder alone would accept and ignore the inputs of a decoder.
    return tuple(name for name in names if name in takes)


def projection_paths(model: nn.Module, sites: Sites) -> dict[HeadSite, str]:
    """Return the path of each attention block's output projection, by block.

    If blocks share a projection, the index of the block's call is added to the path.
    """
    paths = {module: path for path, module in model.named_modules()}
    labels = {}
    for name, site in sites.items():
        turn = f" (call {site.call})" if len(sites.projections[site.projection]) > 1 else ""
        path = paths.get(site.projection, "?")
        if isinstance(site.projection, ParameterProjection):
            path = f"{paths.get(site.projection.holder, '?')}.{site.projection.name}".lstrip(".")
        labels[name] = path + turn
    return labels


def output_tensor(output: Any) -> Tensor:
    """Return the logits in the object that a model returned; without logits, its last hidden state or first tensor."""
    for name in OUTPUTS:
        if isinstance(tensor := getattr(output, name, None), Tensor):
            return tensor
    return first_tensor(output)


def base_of(model: nn.Module) -> nn.Module:
    """Return the base model of a Hugging Face model: the part without a task-specific output layer."""
    return getattr(model, getattr(model, "base_model_prefix", "") or "", model)


def blocks_at(
    model: nn.Module, family: Family
) -> Iterator[tuple[HeadSite, AttentionLayout, nn.Module, nn.Module, int]]:
    """Yield each attention block of a model as (name, layout, attention module, output projection, index of the call).

    The index is above 0 only if several blocks share one module.
    """
    base = base_of(model)
    for blocks in family.blocks:
        attentions = modules_at(base, blocks.path)
        if not attentions and blocks.stack == "decoder":
            continue  # the model is an encoder without decoder
        projections, n_calls = modules_at(base, blocks.projection_path()), Counter[int]()
        if not attentions or len(projections) != len(attentions):
            at = blocks.projection_path() if attentions else blocks.path
            raise InputError(
                f"{type(model).__name__} has no module at {at}, where headcount looks for heads in this family "
                f"({family.summary})",
                "this version of the model has other module names: name its output projections, "
                'wrap(model, Sites.of(model, "layers.*.attn.out", n_heads=...))',
            )
        for layer, place in enumerate(_shared_blocks(model) if family.takes_turns else range(len(attentions))):
            site = HeadSite(blocks.stack, layer, blocks.kind)
            yield site, blocks, attentions[place][1], projections[place][1], n_calls[place]
            n_calls[place] += 1


def _shared_blocks(model: nn.Module) -> Iterator[int]:
    """Yield, for each layer of a model whose layers share attention modules (ALBERT), the index of its module."""
    config: Any = model.config
    n_layers, n_groups, inner = config.num_hidden_layers, config.num_hidden_groups, config.inner_group_num
    for i in range(n_layers):
        group = int(i / (n_layers / n_groups))
        yield from range(group * inner, (group + 1) * inner)


def cut_from(model: nn.Module) -> tuple[HeadId, ...]:
    """Return the heads that were cut out of a model, according to its configuration."""
    return tuple(map(HeadId.parse, getattr(getattr(model, "config", None), CUT, ())))


def _sites_of(model: nn.Module, family: Family) -> Sites:
    sites, cut, config = {}, set(cut_from(model)), model.config
    if getattr(config, "add_cross_attention", False) and not any(blocks.kind == "cross" for blocks in family.blocks):
        raise InputError(
            f"{type(model).__name__} has cross-attention, and headcount looks only for self-attention in this family "
            f"({family.summary})",
            "name the output projections: wrap(model, Sites.of(model, layer=..., cross=..., n_heads=...))",
        )
    for name, blocks, _, projection, call in blocks_at(model, family):
        heads = tuple(head for head in map(name.head, range(getattr(config, blocks.n_heads))) if head not in cut)
        if heads:
            sites[name] = Site(projection, heads, call)
    return Sites(sites)
