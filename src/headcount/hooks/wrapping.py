"""Any model, with its heads named our way.

    wrapped = wrap(AutoModel.from_pretrained(...))
    print(wrapped)                                   what was found
    wrapped(input_ids, attention_mask)               the model's output, as one tensor

Hugging Face models of the families we know, PyTorch's own attention, and modules whose sites are given. A family that
we do not know is asked for its output projections; what its module tree suggests is offered, and never just taken.
"""

import inspect
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, cast

from torch import Tensor, nn

from headcount.errors import InputError
from headcount.heads import HeadId, HeadSite
from headcount.hooks.families import BOTH, AttentionLayout, Family, family_of, model_types
from headcount.hooks.parameters import ParameterProjection
from headcount.hooks.proof import first_tensor
from headcount.hooks.sites import SUPPORTED, Site, Sites, find_mha, guess, in_one_stack, modules_at, sites_calls, unwrap

CUT = "headcount_cut"
"""Where a configuration keeps the names of heads that were cut out."""
FOLDED = "headcount_folded_over"
"""And over how many examples the means were taken that they left behind, if they did."""
BIASED = "headcount_biased"
"""And the attention blocks whose output projections were given a bias for that."""
BRIDGED = "blocks.*.attn.o._original_component"
"""Where TransformerLens 4 has output projections, whatever model is behind its bridge."""
OUTPUTS = ("logits", "last_hidden_state")
"""What counts as a model's output, in this order."""
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Wrapped(nn.Module):
    """A model that is called with tensors, returns one, and knows its heads."""

    def __init__(
        self, model: nn.Module, sites: Sites, inputs: Sequence[str] = (), family: Family | None = None
    ) -> None:
        super().__init__()
        self.model, self.head_sites, self.inputs, self.family = model, sites, tuple(inputs), family
        self.heads, self.sites = sites.heads, tuple(sites)
        takes = inspect.signature(model.forward).parameters
        self._always: dict[str, Any] = {"use_cache": False} if self.inputs and "use_cache" in takes else {}

    def heads_at(self, site: HeadSite) -> tuple[HeadId, ...]:
        """Those of one block."""
        return self.head_sites[site].heads

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """The model's logits or, without a head on top, its last hidden state."""
        if self.inputs:
            if len(inputs) > len(self.inputs):
                raise InputError(f"{len(inputs)} tensors given", f"this model takes {', '.join(self.inputs)}")
            named = dict(zip(self.inputs, inputs, strict=False)) | named
            inputs = ()
        return output_tensor(self.model(*inputs, **self._always | named))

    def __repr__(self) -> str:
        n = sum(each.numel() for each in self.model.parameters())
        return f"{type(self.model).__name__}, {len(self.heads)} heads, {n:,} parameters"

    def __str__(self) -> str:
        paths = projection_paths(self.model, self.head_sites)
        lines = [f"{type(self.model).__name__}: {len(self.heads)} heads"]
        for name, site in self.head_sites.items():
            span = f"{len(site.heads)} heads, {site.heads[0].short} to {site.heads[-1].short}"
            lines.append(f"  {name}: {span}, at {paths[name]}")
        return "\n".join(lines)


def wrap(model: nn.Module, sites: Sites | None = None, *, inputs: Sequence[str] | None = None) -> Wrapped:
    """Name a model's heads; `sites` tells where they are if we cannot know, `inputs` how its tensors are called.

    >>> wrap(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True))
    TransformerEncoderLayer, 2 heads, 464 parameters
    """
    if isinstance(model, Wrapped):
        if sites is None and inputs is None:
            return model
        return Wrapped(model.model, sites or model.head_sites, inputs or model.inputs, None if sites else model.family)
    model = unwrap(model)
    config = getattr(model, "config", None)
    family = family_of(str(getattr(config, "model_type", "")))
    if sites is not None:
        return Wrapped(model, sites, inputs or input_names(model))
    if modules_at(model, BRIDGED):
        return Wrapped(model, Sites.of(model, layer=BRIDGED, n_heads=cast(Any, model).cfg.n_heads), inputs or ())
    if family is not None:
        return Wrapped(model, _sites_of(model, family), inputs or input_names(model), family)
    if isinstance(model, SUPPORTED):
        return Wrapped(model, Sites.of(model), inputs or ())
    if attentions := find_mha(model):
        return Wrapped(model, Sites(attentions), inputs or ())
    raise unknown_family(model)


def unknown_family(model: nn.Module, advice: str = "") -> InputError:
    """What a model of no known family is told: where its heads may be, or that it has no attention at all."""
    name, model_type = type(model).__name__, getattr(getattr(model, "config", None), "model_type", None)
    of_type, guesses = f" (model_type {model_type!r})" if model_type else "", guess(model)
    calls = sites_calls(in_one_stack(guesses) if advice else guesses)
    if model_type and not any("att" in f"{path} {type(each).__name__}".lower() for path, each in model.named_modules()):
        return InputError(
            f"{name} has no attention heads: none of its modules is called attention{of_type}",
            "there is nothing here to ablate, read or cut",
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
    """What a model of Hugging Face's is given, whose order of arguments differs from family to family."""
    takes = inspect.signature(model.forward).parameters
    config = getattr(model, "config", None)
    family = family_of(str(getattr(config, "model_type", "")))
    names = family.inputs if family else (*BOTH, "pixel_values")
    required = {name for name, each in takes.items() if each.default is each.empty and each.kind not in _VARIADIC}
    if config is None or required - set(names) or not {"input_ids", "pixel_values", names[0]} & takes.keys():
        return ()
    # Those that it asks for: an encoder alone would swallow, and ignore, what is meant for a decoder.
    return tuple(name for name in names if name in takes)


def projection_paths(model: nn.Module, sites: Sites) -> dict[HeadSite, str]:
    """Where in the model each site's output projection is, and which call of it is meant where sites take turns."""
    paths = {module: path for path, module in model.named_modules()}
    found = {}
    for name, site in sites.items():
        turn = f" (call {site.call})" if len(sites.projections[site.projection]) > 1 else ""
        path = paths.get(site.projection, "?")
        if isinstance(site.projection, ParameterProjection):
            path = f"{paths.get(site.projection.holder, '?')}.{site.projection.name}".lstrip(".")
        found[name] = path + turn
    return found


def output_tensor(output: Any) -> Tensor:
    """The tensor that counts as a model's output."""
    for name in OUTPUTS:
        if isinstance(found := getattr(output, name, None), Tensor):
            return found
    return first_tensor(output)


def base_of(model: nn.Module) -> nn.Module:
    """The model without the head that it was given for its task."""
    return getattr(model, getattr(model, "base_model_prefix", "") or "", model)


def blocks_at(
    model: nn.Module, family: Family
) -> Iterator[tuple[HeadSite, AttentionLayout, nn.Module, nn.Module, int]]:
    """Every attention block: its name, its layout, what computes z, what projects it, and which call it is."""
    base = base_of(model)
    for blocks in family.blocks:
        found = modules_at(base, blocks.path)
        if not found and blocks.stack == "decoder":
            continue  # an encoder alone
        projections, n_calls = modules_at(base, blocks.projection_path()), Counter[int]()
        if not found or len(projections) != len(found):
            at = blocks.projection_path() if found else blocks.path
            raise InputError(
                f"{type(model).__name__} has nothing at {at}, where {family.summary} have their heads",
                "this version of the model is laid out differently: give its sites, wrap(model, Sites.of(...))",
            )
        for layer, place in enumerate(_shared_blocks(model) if family.takes_turns else range(len(found))):
            site = HeadSite(blocks.stack, layer, blocks.kind)
            yield site, blocks, found[place][1], projections[place][1], n_calls[place]
            n_calls[place] += 1


def _shared_blocks(model: nn.Module) -> Iterator[int]:
    """For every layer the number of its block, where layers take turns with groups of blocks (ALBERT)."""
    config: Any = model.config
    n_layers, n_groups, inner = config.num_hidden_layers, config.num_hidden_groups, config.inner_group_num
    for i in range(n_layers):
        group = int(i / (n_layers / n_groups))
        yield from range(group * inner, (group + 1) * inner)


def cut_from(model: nn.Module) -> tuple[HeadId, ...]:
    """The heads that were cut out of a model."""
    return tuple(map(HeadId.parse, getattr(getattr(model, "config", None), CUT, ())))


def _sites_of(model: nn.Module, family: Family) -> Sites:
    sites, cut, config = {}, set(cut_from(model)), model.config
    if getattr(config, "add_cross_attention", False) and not any(each.kind == "cross" for each in family.blocks):
        raise InputError(
            f"{type(model).__name__} was given cross-attention, where headcount does not look in {family.summary}",
            "give its sites: wrap(model, Sites.of(model, layer=..., cross=..., n_heads=...))",
        )
    for name, blocks, _, projection, call in blocks_at(model, family):
        heads = tuple(head for head in map(name.head, range(getattr(config, blocks.n_heads))) if head not in cut)
        if heads:
            sites[name] = Site(projection, heads, call)
    return Sites(sites)
