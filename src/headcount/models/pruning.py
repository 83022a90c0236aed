"""Cutting heads out of a model: silenced they are still computed, cut out they are gone.

Both say the same. A head meets the residual stream only in its columns of the output projection, so where those are
zero (`silenced`) nothing of the head is left to hear, and its queries, keys and values can go (`without`).
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace

import torch
from torch import Tensor

from headcount.errors import InputError
from headcount.heads import HeadId
from headcount.models.blocks import AttentionBlock
from headcount.models.build import Model


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
