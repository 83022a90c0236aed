"""Cutting heads out of a model: silenced they are still computed, cut out they are gone.

Both say the same. A head meets the residual stream only in its columns of the output projection, so where those are
zero (`silenced`) nothing of the head is left to hear, and its queries, keys and values can go (`without`).

What a head says on average, later layers count on. That much of it can stay, in the bias of the output projection
(`folded`): b + W_O[head] mean(z). A bias is the same at every position, so the mean is taken over examples and
positions; one mean for each position, as mean ablation has it, cannot be folded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headcount.errors import InputError
from headcount.heads import HeadId, HeadSite
from headcount.models.blocks import AttentionBlock
from headcount.models.build import Model

Means = Mapping[HeadSite, Float[Tensor, "head d_head"]]


def without(model: Model, heads: Iterable[str | HeadId]) -> Model:
    """A copy in which these heads are gone from the matrices; the other heads keep their names."""
    gone = _require(model, heads)
    copy = deepcopy(model)
    copy.config = replace(model.config, pruned=(*model.config.pruned, *map(str, gone)))
    sites = {head.site for head in gone}
    for layer in list(copy.modules()):
        for name, block in list(layer.named_children()):
            if isinstance(block, AttentionBlock) and block.site in sites:
                setattr(layer, name, _narrowed(block, copy))
    return copy


@torch.no_grad()
def silenced(model: Model, heads: Iterable[str | HeadId]) -> Model:
    """A copy in which these heads are computed as before, and not heard."""
    gone = _require(model, heads)
    copy = deepcopy(model)
    for site, projection in copy.projections.items():
        for place, head in enumerate(copy.heads_at(site)):
            if head in gone:
                projection.weight.unflatten(1, (-1, _d_head(model)))[:, place] = 0.0
    return copy


@torch.no_grad()
def mean_outputs(model: Model, batches: Iterable[Sequence[Tensor]]) -> Means:
    """What the heads of every site find on average, over examples and positions that hold tokens."""
    sums: dict[HeadSite, Tensor] = {}
    counts: dict[HeadSite, int] = {}
    real: dict[str, Bool[Tensor, "row position"]] = {}

    def read(site: HeadSite) -> Callable[..., None]:
        def hook(projection: Any, args: tuple[Tensor]) -> None:
            z_NHE = args[0][real[site.stack]].cpu().double().unflatten(-1, (-1, _d_head(model)))
            sums[site] = sums.get(site, 0) + z_NHE.sum(dim=0)
            counts[site] = counts.get(site, 0) + len(z_NHE)

        return hook

    hooks = [each.register_forward_pre_hook(read(site)) for site, each in model.projections.items()]
    try:
        for inputs in batches:
            stacks = ("encoder", "decoder") if len(inputs) > 1 else ("layer",)
            real |= {stack: tokens != _pad_id(model) for stack, tokens in zip(stacks, inputs, strict=True)}
            model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return {site: sums[site] / counts[site] for site in sums}


@torch.no_grad()
def folded(model: Model, heads: Iterable[str | HeadId], means: Means) -> Model:
    """A copy whose biases say already what these heads say on average: to be heard once they are cut or silenced."""
    gone = _require(model, heads)
    copy = deepcopy(model)
    for site, projection in copy.projections.items():
        weight_DHE = projection.weight.cpu().double().unflatten(1, (-1, _d_head(model)))
        places = [place for place, head in enumerate(copy.heads_at(site)) if head in gone]
        if places:
            said = torch.einsum("dhe,he->d", weight_DHE[:, places], means[site].to(weight_DHE)[places])
            projection.bias.copy_(projection.bias.cpu().double() + said)
    return copy


def held_at_means(model: Model, heads: Iterable[str | HeadId], means: Means) -> Model:
    """A copy in which these heads say the same at every position, their mean; all else is computed as before."""
    gone = _require(model, heads)
    copy = deepcopy(model)

    def hold(site: HeadSite) -> Callable[..., tuple[Tensor]]:
        is_gone = torch.tensor([head in gone for head in copy.heads_at(site)])[:, None]

        def hook(projection: Any, args: tuple[Tensor]) -> tuple[Tensor]:
            z_BQHE = args[0].unflatten(-1, means[site].shape)
            return (torch.where(is_gone.to(z_BQHE.device), means[site].to(z_BQHE), z_BQHE).flatten(start_dim=-2),)

        return hook

    for site, projection in copy.projections.items():
        projection.register_forward_pre_hook(hold(site))
    return copy


def _pad_id(model: Model) -> int:
    """Padding that is read like anything else counts like anything else."""
    return -1 if model.pad_id is None else model.pad_id


def _require(model: Model, heads: Iterable[str | HeadId]) -> list[HeadId]:
    asked = dict.fromkeys(HeadId.parse(head) if isinstance(head, str) else head for head in heads)
    if missing := [head.short for head in asked if head not in model.heads]:
        there = ", ".join(head.short for head in model.heads) or "none"
        raise InputError(f"no head {', '.join(missing)} in this model", f"its heads: {there}")
    return list(asked)


def _narrowed(block: AttentionBlock, model: Model) -> AttentionBlock:
    """A block of the model's new settings, with what it needs of the old block's weights."""
    with torch.device("meta"):  # nothing is drawn: the random stream is the caller's
        made = AttentionBlock(model.config, block.site)
    places = [place for place, head in enumerate(block.heads) if head in made.heads]
    old = block.state_dict()
    state = {name: _part(name, old[name], places, _d_head(model)) for name in made.state_dict()}
    made.load_state_dict(state, assign=True)
    return made.train(block.training)


def _part(name: str, tensor: Tensor, places: list[int], d_head: int) -> Tensor:
    """The entries of the heads at these places; tensors that no head has to itself stay whole."""
    what = name.removeprefix("attention.")
    if what == "sharpness":
        return tensor[places]
    if what == "output.weight":
        return tensor.unflatten(1, (-1, d_head))[:, places].flatten(start_dim=1)
    if what.split(".")[0] in ("query", "key", "value"):
        return tensor.unflatten(0, (-1, d_head))[places].flatten(end_dim=1)
    return tensor


def _d_head(model: Model) -> int:
    return model.config.d_model // model.config.n_heads
