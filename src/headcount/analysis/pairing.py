"""Which heads of two models look alike most? One to one, so that overlaps of attention add up to the most."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from headcount.analysis.head_activity import Activity, Kind
from headcount.analysis.similarity import cka
from headcount.heads import HeadId

Partners = Mapping[HeadId, HeadId]
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Pairing:
    """The heads of two models, paired so that the overlaps of each kind add up to the most."""

    ours: Activity
    theirs: Activity
    overlaps: dict[Kind, Values]
    """[example, head, other head]."""
    places: dict[Kind, tuple[NDArray[np.int64], NDArray[np.int64]]]
    """Of the pairs: which heads, and which other heads."""

    @classmethod
    def best(cls, ours: Activity, theirs: Activity) -> Pairing:
        """By attention."""
        overlaps, places = {}, {}
        for kind, mine in ours.items():
            overlaps[kind] = _overlaps(mine.weights, theirs[kind].weights)
            rows, columns = linear_sum_assignment(overlaps[kind].mean(axis=0), maximize=True)
            places[kind] = rows, columns
        return cls(ours, theirs, overlaps, places)

    @property
    def n_examples(self) -> int:
        """That both were seen on."""
        return len(next(iter(self.overlaps.values())))

    @property
    def partners(self) -> Partners:
        """Of each head that has one."""
        return {
            self.ours[kind].heads[i]: self.theirs[kind].heads[j]
            for kind, (rows, columns) in self.places.items()
            for i, j in zip(rows, columns, strict=True)
        }

    def heads(self, axis: int) -> list[HeadId]:
        """Ours or theirs, kind by kind."""
        return [head for kind in (self.ours, self.theirs)[axis].values() for head in kind.heads]

    def each(self, measure: Measure) -> dict[HeadId, float]:
        """Something about every pair, by our head."""
        return {
            self.ours[kind].heads[i]: measure(self, kind, int(i), int(j))
            for kind, places in self.places.items()
            for i, j in zip(*places, strict=True)
        }

    @property
    def mean(self) -> float:
        """Of the pairs' overlaps."""
        return float(np.mean([*self.each(pair_overlap).values()]))

    def shared(self, axis: int) -> Values:
        """The overlap of each head (axis 0) or other head (axis 1) with its partner, kind by kind; 0 without one."""
        return self._along(axis, pair_overlap)

    def written(self, axis: int) -> Values:
        """Likewise the CKA of what they write."""
        return self._along(axis, pair_cka)

    def _along(self, axis: int, measure: Measure) -> Values:
        values, partners = self.each(measure), self.partners
        by_head = values if axis == 0 else {partners[head]: value for head, value in values.items()}
        return np.array([by_head.get(head, 0.0) for head in self.heads(axis)])


Measure = Callable[[Pairing, Kind, int, int], float]
"""Of one of our heads and one of theirs, by their places."""


def pair_overlap(pairing: Pairing, kind: Kind, i: int, j: int) -> float:
    """The attention that the two share."""
    return float(pairing.overlaps[kind][:, i, j].mean())


def pair_cka(pairing: Pairing, kind: Kind, i: int, j: int) -> float:
    """Similarity of what the two write."""
    return cka(pairing.ours[kind].outputs[i], pairing.theirs[kind].outputs[j])


def _overlaps(ours: Tensor, theirs: Tensor) -> Values:
    """[example, head, other head]."""
    n_queries = ours.shape[2]
    shared = [torch.minimum(w_BQK[:, None], theirs).sum(dim=(-2, -1)) for w_BQK in ours.unbind(dim=1)]
    return np.asarray(torch.stack(shared, dim=1).double().numpy() / n_queries)
