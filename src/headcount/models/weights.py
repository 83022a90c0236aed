"""Attention weights, for whoever asks for them."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional as F

from headcount.heads import HeadSite
from headcount.models.attention import Weights


@runtime_checkable
class WeightReader(Protocol):
    """Is shown every site's weights, the queries of one site in order but perhaps only some at a time."""

    def read(self, site: HeadSite, weights: Weights, keys: slice, n_keys: int) -> None:
        """Weights of the next queries over these of the site's keys; over the rest they are 0."""


class KeptWeights(dict[HeadSite, Tensor]):
    """Keeps all of them: [batch, head, query, key] by site."""

    def read(self, site: HeadSite, weights: Weights, keys: slice, n_keys: int) -> None:
        """Add the next queries."""
        whole = F.pad(weights, (keys.start, n_keys - keys.stop))
        self[site] = torch.cat([self[site], whole], dim=2) if site in self else whole
