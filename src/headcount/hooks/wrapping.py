"""Any model, with its heads named our way.

    wrapped = wrap(AutoModel.from_pretrained(...))
    print(wrapped)                                   what was found
    wrapped(input_ids, attention_mask)               what the model says, as one tensor

Hugging Face models of the families we know, PyTorch's own attention, and modules whose sites are given. A family that
we do not know is asked for its output projections; what its module tree looks like is offered, and never just taken.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from headcount.errors import InputError
from headcount.heads import HeadId, HeadSite
from headcount.hooks.families import BOTH, AttentionLayout, Family, family_of, model_types
from headcount.hooks.finding import find_mha, guess, sites_calls, unwrap
from headcount.hooks.proof import first_tensor
from headcount.hooks.sites import Site, Sites, SupportsHeads, SupportsSites

CUT = "headcount_cut"
"""Where a configuration keeps the names of heads that were cut out."""
FOLDED = "headcount_folded_over"
"""And over how many examples the means were taken that they left behind, if they did."""
BIASED = "headcount_biased"
"""And the attention blocks whose output projections were given a bias for that."""
SAID = ("logits", "last_hidden_state")
"""What counts as a model's answer, in this order."""


class Wrapped(nn.Module):
    """A model that is called with tensors, answers with one, and knows its heads."""

    def __init__(
        self, model: nn.Module, sites: Sites, inputs: Sequence[str] = (), family: Family | None = None
    ) -> None:
        super().__init__()
        self.model, self._sites, self.inputs, self.family = model, sites, tuple(inputs), family
        takes = inspect.signature(model.forward).parameters
        self._always: dict[str, Any] = {"use_cache": False} if family and "use_cache" in takes else {}

    @property
    def head_sites(self) -> Sites:
        """Where its heads are."""
        return self._sites

    @property
    def heads(self) -> tuple[HeadId, ...]:
        """Every head."""
        return self._sites.heads

    @property
    def sites(self) -> tuple[HeadSite, ...]:
        """Every attention block that has heads."""
        return tuple(self._sites)

    def heads_at(self, site: HeadSite) -> tuple[HeadId, ...]:
        """Those of one block."""
        return self._sites[site].heads

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """What the model says: its logits or, without a head on top, its last hidden state."""
        if self.inputs:
            if len(inputs) > len(self.inputs):
                raise InputError(f"{len(inputs)} tensors given", f"this model takes {', '.join(self.inputs)}")
            named = dict(zip(self.inputs, inputs, strict=False)) | named
            inputs = ()
        return output_tensor(self.model(*inputs, **self._always | named))

    def __str__(self) -> str:
        return describe(self.model, self._sites)


def wrap(model: nn.Module, sites: Sites | None = None, *, inputs: Sequence[str] | None = None) -> Wrapped:
    """Name a model's heads; `sites` says where they are if we cannot know, `inputs` how its tensors are called."""
    if isinstance(model, Wrapped):
        if sites is None and inputs is None:
            return model
        return Wrapped(model.model, sites or model.head_sites, inputs or model.inputs, None if sites else model.family)
    model = unwrap(model)
    config = getattr(model, "config", None)
    family = family_of(str(getattr(config, "model_type", "")))
    if sites is not None:
        return Wrapped(model, sites, inputs or (family.inputs if family else _usual_inputs(model)))
    if family is not None:
        return Wrapped(model, _sites_of(model, family), inputs or _taken(model, family.inputs), family)
    if isinstance(model, SupportsSites | SupportsHeads):
        return Wrapped(model, Sites.of(model), inputs or ())
    if attentions := find_mha(model):
        return Wrapped(model, Sites.of_found(attentions), inputs or ())
    raise _unknown(model, getattr(config, "model_type", None))


def describe(model: nn.Module, sites: Sites) -> str:
    """What was found, a line for each site."""
    paths = projection_paths(model, sites)
    lines = [f"{type(model).__name__}: {len(sites.heads)} heads"]
    for name, site in sites.items():
        span = f"{len(site.heads)} heads, {site.heads[0].short} to {site.heads[-1].short}"
        lines.append(f"  {name}: {span}, at {paths[name]}")
    return "\n".join(lines)


def projection_paths(model: nn.Module, sites: Sites) -> dict[HeadSite, str]:
    """Where in the model each site's output projection is, and which call of it is meant where sites take turns."""
    paths = {module: path for path, module in model.named_modules()}
    found = {}
    for name, site in sites.items():
        turn = f" (call {site.call})" if len(sites.projections[site.projection]) > 1 else ""
        found[name] = paths.get(site.projection, "?") + turn
    return found


def output_tensor(output: Any) -> Tensor:
    """The tensor that counts as a model's answer."""
    for name in SAID:
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
        found = _modules_at(base, blocks.path)
        if not found and blocks.stack == "decoder":
            continue  # an encoder alone
        if not found:
            raise InputError(
                f"{type(model).__name__} has nothing at {blocks.path}, where {family.summary} have their heads",
                "this version of the model is laid out differently: give its sites, wrap(model, Sites.of(...))",
            )
        projections = _modules_at(base, blocks.projection_path())
        for layer, place, call in _order(model, len(found), family):
            yield HeadSite(blocks.stack, layer, blocks.kind), blocks, found[place], projections[place], call


def cut_from(model: nn.Module) -> tuple[HeadId, ...]:
    """The heads that were cut out of a model."""
    return tuple(map(HeadId.parse, getattr(getattr(model, "config", None), CUT, ())))


def _usual_inputs(model: nn.Module) -> tuple[str, ...]:
    """What models of Hugging Face are given, whose order of arguments differs from family to family."""
    takes = inspect.signature(model.forward).parameters
    return _taken(model, BOTH) if hasattr(model, "config") and "input_ids" in takes else ()


def _taken(model: nn.Module, names: Sequence[str]) -> tuple[str, ...]:
    """Those that this model asks for: an encoder alone would swallow, and ignore, what is meant for a decoder."""
    takes = inspect.signature(model.forward).parameters
    return tuple(name for name in names if name in takes)


def _sites_of(model: nn.Module, family: Family) -> Sites:
    sites, cut = {}, set(cut_from(model))
    if getattr(model.config, "add_cross_attention", False) and not any(each.kind == "cross" for each in family.blocks):
        raise InputError(
            f"{type(model).__name__} was given cross-attention, where headcount does not look in {family.summary}",
            "give its sites: wrap(model, Sites.of(model, layer=..., cross=..., n_heads=...))",
        )
    for name, blocks, _, projection, call in blocks_at(model, family):
        config: Any = model.config
        heads = tuple(head for head in map(name.head, range(getattr(config, blocks.n_heads))) if head not in cut)
        if heads:
            sites[name] = Site(projection, heads, call)
    return Sites(sites)


def _order(model: nn.Module, n_blocks: int, family: Family) -> Iterator[tuple[int, int, int]]:
    """For every layer the number of its block, and which call of that it is."""
    if not family.takes_turns:
        yield from ((i, i, 0) for i in range(n_blocks))
        return
    config: Any = model.config
    n_layers, n_groups, inner = config.num_hidden_layers, config.num_hidden_groups, config.inner_group_num
    calls: dict[int, int] = {}
    for i in range(n_layers):
        group = int(i / (n_layers / n_groups))
        for k in range(inner):
            place = group * inner + k
            yield i * inner + k, place, calls.get(place, 0)
            calls[place] = calls.get(place, 0) + 1


def _modules_at(base: nn.Module, path: str) -> list[nn.Module]:
    """The modules at a path, `*` being any number, in order."""
    found = [base]
    for part in path.split("."):
        found = [each for module in found for each in _children(module, part)]
    return found


def _children(module: nn.Module, part: str) -> list[nn.Module]:
    if part == "*":
        return list(module.children())
    child = module._modules.get(part)
    return [] if child is None else [child]


def _unknown(model: nn.Module, model_type: Any) -> InputError:
    known = f"headcount knows {', '.join(model_types())}"
    what = f"{type(model).__name__} is of no family that headcount knows"
    what += f" (model_type {model_type!r})" if model_type else ""
    guesses = guess(model)
    if not guesses:
        return InputError(what, known, "say where its heads are: wrap(model, Sites.of(model, PATH, n_heads=...))")
    return InputError(
        what,
        known,
        "its module tree suggests, for you to confirm: "
        + ", or ".join(f"wrap(model, {call})" for call in sites_calls(guesses)),
    )
