"""What do the heads of a model do on some examples? Where each looks, and what it writes into the residual stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from headcount.analysis.head_measures import sight_at
from headcount.heads import HeadId, HeadSite
from headcount.instruments.capture import Capture
from headcount.instruments.sites import Sites
from headcount.models.build import Model
from headcount.models.weights import KeptWeights
from headcount.tasks.base import Tokens
from headcount.training.evaluation import evaluating, on_device

Kind = tuple[str, str]
"""A stack and a kind of attention."""


@dataclass(frozen=True)
class KindActivity:
    """The heads of one kind of site, of all layers."""

    heads: tuple[HeadId, ...]
    weights: Float[Tensor, "example head query key"]
    """At the queries that see more than one key."""
    visible: Bool[Tensor, "query key"]
    """Which keys those queries may see."""
    outputs: tuple[NDArray[np.float64], ...]
    """Of each head, a row for every example and position, less the mean at that position: what it writes about the
    example. Rotated into as few dimensions as a head has, which no linear similarity can tell from the whole."""


Activity = dict[Kind, KindActivity]


def observe(model: Model, inputs: tuple[Tokens, ...]) -> Activity:
    """One forward pass; of the kinds of site where a query sees more than one key."""
    kept = KeptWeights()
    with evaluating(model) as device, Capture(sites := Sites.of(model)) as capture:
        model(*on_device(device, *inputs), weights=kept)
        outputs = {site: _written(sites, site, capture.z(site)) for site in sites}
    by_kind: dict[Kind, list[HeadSite]] = {}
    for site in (site for site in model.sites if site in kept):
        by_kind.setdefault((site.stack, site.kind), []).append(site)
    found: Activity = {}
    for kind, members in by_kind.items():
        visible = _visible(model, members[0], kept[members[0]])
        has_choice = visible.sum(dim=-1) > 1
        if has_choice.any():
            found[kind] = KindActivity(
                heads=tuple(head for site in members for head in model.heads_at(site)),
                weights=torch.cat([kept[site].cpu()[:, :, has_choice] for site in members], dim=1),
                visible=visible[has_choice],
                outputs=tuple(each for site in members for each in outputs[site]),
            )
    return found


def _visible(model: Model, site: HeadSite, weights: Tensor) -> Tensor:
    n_queries, n_keys = weights.shape[2:]
    mask = sight_at(model, site).open(slice(0, n_queries), slice(0, n_keys), n_queries, n_keys, torch.device("cpu"))
    return torch.ones(n_queries, n_keys, dtype=torch.bool) if mask is None else mask[0, 0]


def _written(sites: Sites, site: HeadSite, z_BQHE: Tensor) -> list[NDArray[np.float64]]:
    """With W = Q R, rows z W and z R' have the same inner products."""
    weight_DF: Tensor = sites[site].projection.weight  # type: ignore[assignment]
    weight_HDE = weight_DF.unflatten(1, (z_BQHE.shape[2], -1)).transpose(0, 1)
    factor_HRE = torch.linalg.qr(weight_HDE.double())[1]
    z_HNE = (z_BQHE - z_BQHE.mean(dim=0)).double().permute(2, 0, 1, 3).flatten(1, 2)
    written: Sequence[Tensor] = (z_HNE @ factor_HRE.transpose(1, 2)).cpu().unbind(dim=0)
    return [each.numpy() for each in written]
