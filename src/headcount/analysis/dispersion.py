"""Where does attention still go as sequences grow: to the neighbours, to equal numbers?

A softmax over more tokens is flatter. What a head pays to the tokens that matter, against the length, says whether it
dispersed. Weights are read piece by piece, so that no matrix of queries times keys is ever held.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from headcount.heads import HeadSite
from headcount.models.attention import Weights
from headcount.models.classifier import Classifier
from headcount.seeds import stream
from headcount.tasks.base import ClassTask
from headcount.training.evaluation import evaluating, on_device

LOOKED_AT = 4
"""Examples per length whose attention is read."""


@dataclass(frozen=True)
class Look:
    """One head at one length: the mean share of its attention on the token itself, on its neighbours, on its equals.

    In a sorted sequence the equals of a token, itself among them, are the largest numbers up to there.
    """

    length: int
    head: str
    left: float
    itself: float
    right: float
    alike: float


class NeighbourMass:
    """Reads weights as they are made, a few queries at a time, and keeps only what falls on neighbours and equals."""

    def __init__(self, model: Classifier) -> None:
        self._model = model
        self._tokens = torch.empty(0)
        self._done: dict[HeadSite, int] = {}
        self.sums: dict[HeadSite, list[NDArray[np.float64]]] = {}

    def begin(self, tokens: Int[Tensor, " length"]) -> None:
        """A new example: its first query comes next."""
        self._tokens = tokens
        self._done.clear()

    def read(self, site: HeadSite, weights: Weights, keys: slice, n_keys: int) -> None:
        """Add the next queries: for each head, the sums over queries of (left, itself, right, alike)."""
        first = self._done.get(site, 0)
        self._done[site] = last = first + weights.shape[2]
        near = [
            weights.diagonal(offset=first - keys.start + step, dim1=2, dim2=3).sum(dim=(0, 2)) for step in (-1, 0, 1)
        ]
        same = self._tokens[first:last, None] == self._tokens[None, keys]
        sums = torch.stack([*near, (weights * same).sum(dim=(0, 2, 3))], dim=1)
        self.sums.setdefault(site, []).append(sums.cpu().double().numpy())

    def looks(self, length: int, n: int) -> Iterator[Look]:
        """Means over all queries."""
        for site, parts in self.sums.items():
            per_query = np.sum(parts, axis=0) / (n * length)
            for head, shares in zip(self._model.heads_at(site), per_query.tolist(), strict=True):
                yield Look(length, str(head), *shares)


def look(model: Classifier, task: ClassTask, length: int) -> Iterator[Look]:
    """Every head on a few sorted sequences of this length."""
    examples = task.stretched(stream(0, "stretch looks", length), length, None, LOOKED_AT)
    mass = NeighbourMass(model)
    with evaluating(model) as device:
        for row in task.encode(examples).source:
            (tokens,) = on_device(device, row[None])
            mass.begin(tokens[0])
            model(tokens, weights=mass)
    yield from mass.looks(length, len(examples))
