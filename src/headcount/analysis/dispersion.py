"""Where does attention still go as sequences grow: to the neighbours, to equal numbers?

A softmax over more tokens is flatter. What a head pays to the tokens that matter, against the length, says whether it
dispersed. Each share is a mean over sequences, with its standard error. Weights are read piece by piece, so that no
matrix of queries times keys is ever held.
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

FEWEST, MOST, TOKENS = 8, 64, 2**14
"""Examples per length whose attention is read: as many as have so many tokens together, within these bounds."""
AT_ONCE = 2**12
"""Tokens per forward pass, or one long example."""


@dataclass(frozen=True)
class Look:
    """One head at one length: the mean share of its attention on the token itself, on its neighbours, on its equals.

    In a sorted sequence the equals of a token, itself among them, are the largest numbers up to there. A share is taken
    over the tokens of each sequence, then over sequences: `_se` is the standard error of that mean.
    """

    length: int
    head: str
    n: int
    """Sequences."""
    left: float
    itself: float
    right: float
    alike: float
    left_se: float
    itself_se: float
    right_se: float
    alike_se: float
    neighbours_se: float
    """Of left and right together: they are not independent."""

    @property
    def neighbours(self) -> float:
        """Left and right together."""
        return self.left + self.right


class NeighbourMass:
    """Reads weights as they are made, a few queries at a time, and keeps only what falls on neighbours and equals."""

    def __init__(self, model: Classifier) -> None:
        self._model = model
        self._tokens = torch.empty(0)
        self._done: dict[HeadSite, int] = {}
        self.sums: dict[HeadSite, list[NDArray[np.float64]]] = {}
        """For each batch, [example, head, (left, itself, right, alike)], summed over queries."""

    def begin(self, tokens: Int[Tensor, "batch length"]) -> None:
        """A new batch: its first queries come next."""
        self._tokens = tokens
        self._done.clear()

    def read(self, site: HeadSite, weights: Weights, keys: slice, n_keys: int) -> None:
        """Add the next queries: for each example and head, the sums over queries of (left, itself, right, alike)."""
        first = self._done.get(site, 0)
        self._done[site] = last = first + weights.shape[2]
        near = [weights.diagonal(offset=first - keys.start + step, dim1=2, dim2=3).sum(dim=2) for step in (-1, 0, 1)]
        same = self._tokens[:, None, first:last, None] == self._tokens[:, None, None, keys]
        sums = torch.stack([*near, (weights * same).sum(dim=(2, 3))], dim=2).cpu().double().numpy()
        batches = self.sums.setdefault(site, [])
        if first == 0:
            batches.append(sums)
        else:
            batches[-1] += sums

    def looks(self, length: int) -> Iterator[Look]:
        """Means over all queries of all examples so far, which had this length."""
        for site, batches in self.sums.items():
            shares = np.concatenate(batches) / self._tokens.shape[1]  # [example, head, share]
            shares = np.concatenate([shares, shares[..., [0]] + shares[..., [2]]], axis=2)
            n, means = len(shares), shares.mean(axis=0)[:, :4]
            errors = shares.std(axis=0, ddof=1) / np.sqrt(n)
            for head, mean, error in zip(self._model.heads_at(site), means.tolist(), errors.tolist(), strict=True):
                yield Look(length, str(head), n, *mean, *error)


def look(model: Classifier, task: ClassTask, length: int, draw: int = 0) -> Iterator[Look]:
    """Every head on a few sorted sequences of this length."""
    n = max(FEWEST, min(MOST, TOKENS // length))
    examples = task.stretched(stream(draw, "stretch looks", length), length, None, n)
    mass = NeighbourMass(model)
    with evaluating(model) as device:
        source, at_once = task.encode(examples).source, max(1, AT_ONCE // length)
        for i in range(0, n, at_once):
            (tokens,) = on_device(device, source[i : i + at_once])
            mass.begin(tokens)
            model(tokens, weights=mass)
    yield from mass.looks(length)
