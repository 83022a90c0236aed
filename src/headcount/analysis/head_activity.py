"""What do the heads of a model do on some examples? Where each looks, and what it writes into the residual stream."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor, nn

from headcount.analysis.head_measures import sight_at
from headcount.heads import HeadId, HeadSite
from headcount.models.blocks import AttentionBlock
from headcount.models.build import Model
from headcount.models.multi_head import MultiHeadAttention
from headcount.models.weights import KeptWeights
from headcount.tasks.base import Tokens
from headcount.training.evaluation import evaluating, on_device

Kind = tuple[str, str]
"""A stack and a kind of attention."""


@dataclass(frozen=True)
class KindActivity:
    """The heads of one kind of site, of all layers, at the queries that see more than one key."""

    heads: tuple[HeadId, ...]
    weights: Float[Tensor, "example head query key"]
    visible: Bool[Tensor, "query key"]
    """Which keys those queries may see."""
    values: Float[Tensor, "example head key d_head"]
    written: Float[Tensor, "head row d_head"]
    """What a value becomes in the residual stream, rotated into as few dimensions as a head has: no linear similarity
    can tell that from the whole."""

    def looking(self, weights: Tensor) -> KindActivity:
        """The same heads, if they looked elsewhere."""
        return replace(self, weights=weights)

    @cached_property
    def outputs(self) -> tuple[NDArray[np.float64], ...]:
        """Of each head a row for every example and query, less that query's mean: what it writes about the example."""
        z_BHQE = (self.weights @ self.values).cpu().double()
        z_HNE = (z_BHQE - z_BHQE.mean(dim=0)).transpose(0, 1).flatten(1, 2)
        return tuple(each.numpy() for each in z_HNE @ self.written.transpose(1, 2))


Activity = dict[Kind, KindActivity]


def observe(model: Model, inputs: tuple[Tokens, ...]) -> Activity:
    """One forward pass; of the kinds of site where a query sees more than one key."""
    kept, values = KeptWeights(), dict[HeadSite, Tensor]()
    blocks = {site: block for site, block in model.blocks.items() if block.heads}
    with evaluating(model) as device, ExitStack() as hooks:
        for site, block in blocks.items():
            hooks.callback(_attention(block).value.register_forward_hook(_keep(values, site)).remove)
        model(*on_device(device, *inputs), weights=kept)
    by_kind: dict[Kind, dict[HeadSite, AttentionBlock]] = {}
    for site, block in blocks.items():
        by_kind.setdefault((site.stack, site.kind), {})[site] = block
    found: Activity = {}
    for kind, sites in by_kind.items():
        visible = _visible(model, first := next(iter(sites)), kept[first])
        has_choice = visible.sum(dim=-1) > 1
        if has_choice.any():
            found[kind] = KindActivity(
                heads=tuple(head for block in sites.values() for head in block.heads),
                weights=torch.cat([kept[site].cpu()[:, :, has_choice] for site in sites], dim=1),
                visible=visible[has_choice],
                values=torch.cat([_by_head(values[site], len(block.heads)) for site, block in sites.items()], dim=1),
                written=torch.cat([_written(_attention(block).output, len(block.heads)) for block in sites.values()]),
            )
    return found


def _attention(block: AttentionBlock) -> MultiHeadAttention:
    assert isinstance(block.attention, MultiHeadAttention), "every site with heads has it"
    return block.attention


def _keep(values: dict[HeadSite, Tensor], site: HeadSite) -> Any:
    def keep(module: nn.Module, args: Any, output: Tensor) -> None:
        values[site] = output.cpu()

    return keep


def _by_head(value_BKF: Tensor, n_heads: int) -> Tensor:
    return value_BKF.unflatten(-1, (n_heads, -1)).transpose(1, 2)


def _visible(model: Model, site: HeadSite, weights: Tensor) -> Tensor:
    n_queries, n_keys = weights.shape[2:]
    mask = sight_at(model, site).open(slice(0, n_queries), slice(0, n_keys), n_queries, n_keys, torch.device("cpu"))
    return torch.ones(n_queries, n_keys, dtype=torch.bool) if mask is None else mask[0, 0]


def _written(projection: nn.Linear, n_heads: int) -> Tensor:
    """With W = Q R, rows W z and R z have the same inner products."""
    weight_HDE = projection.weight.detach().unflatten(1, (n_heads, -1)).transpose(0, 1)
    return torch.linalg.qr(weight_HDE.cpu().double())[1]
