"""The same by another way, for tests in which two routes must agree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from headcount.heads import HeadId, HeadSite
from headcount.models.transformer import Model


def _asked(heads: Iterable[str | HeadId]) -> list[HeadId]:
    return [HeadId.parse(head) if isinstance(head, str) else head for head in heads]


@torch.no_grad()
def zero_heads(model: Model, heads: Iterable[str | HeadId]) -> Model:
    """A copy in which these heads are computed as before, and their columns of the output projection are zero."""
    gone, copy = _asked(heads), deepcopy(model)
    for site, projection in copy.projections.items():
        for place, head in enumerate(copy.heads_at(site)):
            if head in gone:
                d_head = model.config.d_model // model.config.n_heads
                projection.weight.unflatten(1, (-1, d_head))[:, place] = 0.0
    return copy


def held_at_means(model: Model, heads: Iterable[str | HeadId], means: Mapping[HeadSite, Tensor]) -> Model:
    """A copy in which these heads output the same at every position, their mean; all else is computed as before."""
    gone, copy = _asked(heads), deepcopy(model)

    def hold(site: HeadSite) -> Callable[..., tuple[Tensor]]:
        is_gone = torch.tensor([head in gone for head in copy.heads_at(site)])[:, None]

        def hook(projection: Any, args: tuple[Tensor]) -> tuple[Tensor]:
            z_BQHE = args[0].unflatten(-1, means[site].shape)
            return (torch.where(is_gone.to(z_BQHE.device), means[site].to(z_BQHE), z_BQHE).flatten(start_dim=-2),)

        return hook

    for site, projection in copy.projections.items():
        projection.register_forward_pre_hook(hold(site))
    return copy
