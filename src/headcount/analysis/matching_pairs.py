"""Pair the heads of two models one to one, so that the sum of the overlaps of their attention is largest.

The overlap of two heads is the attention that they share (defined in matching.py). `Pairing.best` finds the pairing.
The rest of this file measures how large overlaps are by chance, in null models that cannot have learned the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn import functional as F

from headcount.analysis.role_measures import only_row
from headcount.experiments.task_attention import TaskAttention, task_weights
from headcount.heads import HeadId
from headcount.hooks.attention import attention_of
from headcount.hooks.sites import Sites
from headcount.seeds import integer, stream
from headcount.tasks.base import Examples

Kind = tuple[str, str]
"""A stack and a kind of attention, such as ("decoder", "self")."""
Partners = Mapping[HeadId, HeadId]
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Pairing:
    """A one-to-one pairing of the heads of two models, called ours and theirs, with the largest sum of overlaps.

    The overlap of two heads is the attention that they share, from 0 to 1.
    """

    ours: Activity
    theirs: Activity
    overlaps: dict[Kind, Values]
    """For each kind of attention, the overlaps of attention [example, head of our model, head of their model]."""
    pairs: tuple[tuple[Kind, int, int], ...]
    """For each pair of heads: the kind of attention, the index of our head, and that of its partner in their model."""

    @classmethod
    def best(cls, ours: Activity, theirs: Activity) -> Pairing:
        """Return the pairing of the heads of two models that has the largest sum of attention overlaps."""
        overlaps, pairs = {}, list[tuple[Kind, int, int]]()
        for kind, activity in ours.items():
            weights, others = activity.weights, theirs[kind].weights
            shared = [torch.minimum(w_BQK[:, None], others).sum(dim=(-2, -1)) for w_BQK in weights.unbind(dim=1)]
            overlaps[kind] = np.asarray(torch.stack(shared, dim=1).double().numpy() / weights.shape[2])
            indices = linear_sum_assignment(overlaps[kind].mean(axis=0), maximize=True)
            pairs += [(kind, int(i), int(j)) for i, j in zip(*indices, strict=True)]
        return cls(ours, theirs, overlaps, tuple(pairs))

    @property
    def partners(self) -> Partners:
        """Return, for each of our heads, its partner in their model; heads without a partner are left out."""
        return {self.ours[kind].heads[i]: self.theirs[kind].heads[j] for kind, i, j in self.pairs}

    def values(self, measure: PairMeasure) -> Values:
        """Return the similarity of the two heads of each pair by one measure, such as overlap of attention."""
        return np.array([measure(self, *pair) for pair in self.pairs])

    def along(self, axis: int, measure: PairMeasure) -> Values:
        """Return the similarity of each head of one model with its partner by one measure; 0 without a partner.

        Axis 0 stands for the heads of our model, axis 1 for those of their model.
        """
        values = np.zeros(sum(len(kind.heads) for kind in (self.ours, self.theirs)[axis].values()))
        values[self.indices(axis)] = self.values(measure)
        return values

    def indices(self, axis: int) -> list[int]:
        """Return the index of each pair's head among all heads of our model (axis 0) or of their model (axis 1)."""
        before, first = 0, dict[Kind, int]()
        for kind, activity in (self.ours, self.theirs)[axis].items():
            first[kind], before = before, before + len(activity.heads)
        return [first[kind] + (i, j)[axis] for kind, i, j in self.pairs]

    @property
    def measures(self) -> tuple[PairMeasure, ...]:
        """Return the similarity measures that can be computed: overlap of attention and, if outputs are known, CKA."""
        known = all(kind.values is not None for side in (self.ours, self.theirs) for kind in side.values())
        return (pair_overlap, pair_cka) if known else (pair_overlap,)

    @property
    def mean(self) -> float:
        """Return the overlap of attention (0 to 1), averaged over all pairs of heads."""
        return float(np.mean(self.values(pair_overlap)))


PairMeasure = Callable[[Pairing, Kind, int, int], float]
"""A function that returns the similarity of two heads, given the kind of attention and the indices of both heads."""


def pair_overlap(pairing: Pairing, kind: Kind, i: int, j: int) -> float:
    """Return the overlap of attention of two heads (0 to 1), averaged over examples."""
    return float(pairing.overlaps[kind][:, i, j].mean())


def pair_cka(pairing: Pairing, kind: Kind, i: int, j: int) -> float:
    """Return the linear CKA (centred kernel alignment) of the outputs of two heads: about 0 if unrelated, at most 1."""
    return cka(pairing.ours[kind].outputs[i], pairing.theirs[kind].outputs[j])


# --- similarity -------------------------------------------------------------------------------------------------------
# Linear CKA (Kornblith et al. 2019) is a similarity of two sets of vectors for the same rows. Rotation and scale
# do not change it, so it can compare models with different residual streams. Plain CKA of few rows in many dimensions
# is well above 0 even for noise. Here HSIC is estimated without bias (Song et al. 2012; Nguyen et al. 2021): unrelated
# sets have a CKA around 0, sometimes below.


def hsic(x: Values, y: Values) -> float:
    """Return the unbiased HSIC estimate (the numerator of CKA) of two arrays [row, dimension] with more than 3 rows."""
    n = len(x)
    own_x, own_y = (x * x).sum(axis=1), (y * y).sum(axis=1)
    sums_x, sums_y = x @ x.sum(axis=0) - own_x, y @ y.sum(axis=0) - own_y  # inner products with all other rows
    together = float(((x.T @ y) ** 2).sum() - own_x @ own_y)
    overall = float(sums_x.sum() * sums_y.sum()) / ((n - 1) * (n - 2))
    return (together + overall - 2 * float(sums_x @ sums_y) / (n - 2)) / (n * (n - 3))


def cka(x: Values, y: Values) -> float:
    """Return the linear CKA of two arrays [row, dimension], whose rows belong to the same inputs.

    CKA is 1 if the arrays differ only by rotation and scale, around 0 if they are unrelated, and 0 if one is
    constant.

    >>> rng = np.random.default_rng(0)
    >>> x, other = rng.normal(size=(50, 20)), rng.normal(size=(50, 20))
    >>> rotation = np.linalg.qr(rng.normal(size=(20, 20)))[0]
    >>> round(cka(x, 3 * x @ rotation), 6), abs(cka(x, other)) < 0.1
    (1.0, True)
    """
    scale = hsic(x, x) * hsic(y, y)
    return hsic(x, y) / math.sqrt(scale) if scale > 0 else 0.0


# --- activity: attention of heads on some examples, and their outputs to the residual stream --------------------------


@dataclass(frozen=True)
class KindActivity:
    """Attention weights and outputs of all heads of one kind, such as decoder self-attention, on some examples.

    Queries that see only one key are left out.
    """

    heads: tuple[HeadId, ...]
    queries: NDArray[np.int64]
    """Indices of the queries among the positions of the task's examples."""
    weights: Float[Tensor, "example head query key"]
    visible: Bool[Tensor, "query key"]
    """A mask [query, key] of the keys that each query can see."""
    values: Float[Tensor, "example head key d_head"] | None
    """Value vectors; None if unknown, as for models that headcount did not train."""
    written: Float[Tensor, "head row d_head"] | None
    """Each head's output matrix, rotated into d_head dimensions, which keeps inner products; None if unknown."""

    @cached_property
    def outputs(self) -> tuple[Values, ...]:
        """Return each head's outputs [example and query, dimension], minus the mean over examples at each query."""
        assert self.values is not None and self.written is not None, "outputs are unknown"  # noqa: PT018
        z_BHQE = (self.weights @ self.values).double()
        z_HNE = (z_BHQE - z_BHQE.mean(dim=0)).transpose(0, 1).flatten(1, 2)
        return tuple(output.numpy() for output in z_HNE @ self.written.transpose(1, 2))

    def like(self, other: KindActivity) -> KindActivity:
        """Return a copy that can be compared with `other`: only with its queries, and with zeros for missing keys."""
        rows = torch.from_numpy(np.isin(self.queries, other.queries))
        extra = (0, other.weights.shape[-1] - self.weights.shape[-1])
        return replace(
            self,
            queries=self.queries[rows.numpy()],
            weights=F.pad(self.weights[:, :, rows], extra),
            visible=F.pad(self.visible[rows], extra),
        )


Activity = dict[Kind, KindActivity]
StandIn = Callable[[int], Activity]
"""A function that returns the attention and outputs of heads in the i-th null model (untrained, shuffled), given i."""


def observe(model: TaskAttention, examples: Examples) -> Activity:
    """Return the attention weights and outputs of a model's heads on examples of its task.

    Kinds of attention in which no query sees more than one key are left out.
    """
    read, written, activity = task_weights(model, examples), model.value_outputs(examples), Activity()
    for kind in dict.fromkeys((site.stack, site.kind) for site in model.sites):
        sites = [site for site in model.sites if (site.stack, site.kind) == kind]
        visible = read[sites[0]].visible
        has_choice = (visible.sum(dim=-1) > 1) & torch.from_numpy(read[sites[0]].present.all(axis=0))
        if has_choice.any():
            activity[kind] = KindActivity(
                heads=tuple(head for site in sites for head in model.heads_at(site)),
                queries=np.flatnonzero(has_choice.numpy()),
                weights=torch.cat([read[site].weights[:, :, has_choice] for site in sites], dim=1),
                visible=visible[has_choice],
                values=None if written is None else torch.cat([written[site].values for site in sites], dim=1),
                written=None if written is None else torch.cat([_rotated(written[site].output) for site in sites]),
            )
    return activity


def observe_inputs(model: nn.Module, sites: Sites, rows: Sequence[Sequence[Tensor]]) -> Activity:
    """Return the attention weights of any model on several tokenized inputs, at the positions that all inputs have."""
    read = [{site: only_row(weights) for site, weights in attention_of(model, sites, *row).items()} for row in rows]
    activity = Activity()
    for kind in dict.fromkeys((site.stack, site.kind) for site in sites):
        here = [site for site in sites if (site.stack, site.kind) == kind]
        n_queries, n_keys = min(row[here[0]].shape[1] for row in read), max(row[here[0]].shape[2] for row in read)
        weights = torch.stack(
            [
                torch.cat([F.pad(row[site][:, :n_queries], (0, n_keys - row[site].shape[2])) for site in here])
                for row in read
            ]
        )
        weights = weights.float().nan_to_num().cpu()
        visible = (weights > 0).any(dim=1).any(dim=0)
        has_choice = visible.sum(dim=-1) > 1
        if has_choice.any():
            activity[kind] = KindActivity(
                heads=tuple(head for site in here for head in sites[site].heads),
                queries=np.flatnonzero(has_choice.numpy()),
                weights=weights[:, :, has_choice],
                visible=visible[has_choice],
                values=None,
                written=None,
            )
    return activity


def in_common(ours: Activity, theirs: Activity) -> tuple[Activity, Activity]:
    """Restrict the attention of two models to the kinds of attention and the queries that both have, for comparison.

    Both get the same number of keys.
    """
    kinds = [kind for kind in ours if kind in theirs and set(ours[kind].queries) & set(theirs[kind].queries)]

    def fit(one: KindActivity, other: KindActivity) -> KindActivity:
        wider = other if other.weights.shape[-1] > one.weights.shape[-1] else one
        return one.like(replace(wider, queries=np.intersect1d(one.queries, other.queries)))

    return {kind: fit(ours[kind], theirs[kind]) for kind in kinds}, {
        kind: fit(theirs[kind], ours[kind]) for kind in kinds
    }


def _rotated(output_HDE: Tensor) -> Tensor:
    """Return the matrix R of the QR decomposition W = Q R.

    R z has the same inner products as W z, in fewer dimensions.
    """
    return torch.linalg.qr(output_HDE.double())[1]


# --- null models ------------------------------------------------------------------------------------------------------
# What does the best pairing find by chance? It is computed with two kinds of null models, whose weaknesses differ.
#
# An *untrained* model is drawn from the distribution of a run's initial weights. An untrained run is therefore one more
# draw, and its p-value is exact, whatever its heads attend to because of the architecture and the data. But untrained
# heads spread their attention, and all of them overlap little with a trained head. Two unrelated trained heads, each
# with a few keys, could overlap more. A run is therefore also compared with the other one *relabelled*: each head keeps
# how concentrated and how steady its attention is, but its keys are permuted and the examples shuffled.


def stand_in_seed(index: int, seed: int = 0) -> int:
    """Return the seed for the weights of the i-th untrained null model, given its index i."""
    return integer(seed, "untrained stand-in", index)


@dataclass
class Draws:
    """The best pairings of one model's heads with the heads of many null models, which show what happens by chance.

    Null models are untrained or relabelled, so that they cannot have learned the same.
    """

    axis: int
    """Which model's heads are paired with those of null models, which learned nothing: 0 for ours, 1 for theirs."""
    values: dict[PairMeasure, list[Values]] = field(default_factory=dict)
    """For each measure, one array per null model (which learned nothing): each head's similarity to its partner."""
    means: list[float] = field(default_factory=list)
    """For each null model (which learned nothing), the overlap of attention averaged over all pairs of heads."""
    partners: list[Partners] = field(default_factory=list)
    """For each null model (which learned nothing), the head of that model that is paired with each head."""

    def add(self, pairing: Pairing, *measures: PairMeasure) -> None:
        """Add the best pairing with the heads of one more null model, which learned nothing, by the given measures."""
        self.means.append(pairing.mean)
        self.partners.append(pairing.partners)
        for measure in measures:
            self.values.setdefault(measure, []).append(pairing.along(self.axis, measure))


def pair_with_stand_ins(
    ours_at: StandIn, theirs_at: StandIn, pairing: Pairing, n: int, step: Callable[[], None]
) -> tuple[Draws, Draws]:
    """Pair our heads with null models of their model, and their heads with null models of our model.

    Null models are untrained or shuffled copies, which show what pairing finds by chance. `ours_at(i)` and
    `theirs_at(i)` return the i-th null model with the shape of our or of their model. If both are the same function,
    each null model is used for both. `step` is called after each of the `n` null models.
    """

    def fit(stand_in: Activity, activity: Activity) -> Activity:
        return {kind: stand_in[kind].like(of_kind) for kind, of_kind in activity.items()}

    draws = Draws(0), Draws(1)
    for i in range(n):
        theirs = fit(theirs_at(i), pairing.theirs)
        ours = theirs if ours_at is theirs_at else fit(ours_at(i), pairing.ours)
        draws[0].add(Pairing.best(pairing.ours, theirs), *pairing.measures)
        draws[1].add(Pairing.best(ours, pairing.theirs), *pairing.measures)
        step()
    return draws


def pair_with_relabelled(pairing: Pairing, measure: PairMeasure, n: int, seed: int, step: Callable[[], None]) -> Draws:
    """Pair our heads, `n` times, with those of their model after its keys were permuted at random ("relabelled").

    For overlaps, examples are shuffled too. For outputs they are not: heads write their own values at the permuted
    keys, and with shuffled examples nothing would be left to compare.
    """
    draws, rng, n_examples = Draws(0), stream(seed, "relabelled"), len(next(iter(pairing.overlaps.values())))
    for _ in range(n):
        examples = rng.permutation(n_examples) if measure is pair_overlap else np.arange(n_examples)
        theirs = {kind: replace(kept, weights=relabelled(kept, examples, rng)) for kind, kept in pairing.theirs.items()}
        draws.add(Pairing.best(pairing.ours, theirs), measure)
        step()
    return draws


def relabelled(activity: KindActivity, examples: NDArray[np.int64], rng: np.random.Generator) -> Tensor:
    """Return attention weights in which the keys of each head are permuted at random ("relabelled").

    `examples` is the order of the examples in the result. All queries of a head share one random order of the keys. A
    query that sees only some of the keys uses these keys in the same order.
    """
    n_keys = activity.visible.shape[-1]
    order_H1K = torch.from_numpy(rng.random((len(activity.heads), 1, n_keys)))
    shuffled_HQK = order_H1K.masked_fill(~activity.visible, torch.inf).argsort(dim=-1)
    weights = activity.weights[torch.from_numpy(examples)]
    moved = weights.gather(-1, shuffled_HQK.expand(weights.shape))
    if activity.visible.all():
        return moved
    in_order_QK = torch.arange(float(n_keys)).masked_fill(~activity.visible, torch.inf).argsort(dim=-1, stable=True)
    return torch.zeros_like(moved).scatter_(-1, in_order_QK.expand(weights.shape), moved)
