"""Which heads of two models attend most alike? One to one, so that overlaps of attention add up to the most."""

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
"""A stack and a kind of attention."""
Partners = Mapping[HeadId, HeadId]
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Pairing:
    """The heads of two models, paired so that the overlaps of each kind add up to the most."""

    ours: Activity
    theirs: Activity
    overlaps: dict[Kind, Values]
    """[example, head, other head]."""
    pairs: tuple[tuple[Kind, int, int], ...]
    """Of a head and its partner: their kind, and their places in it."""

    @classmethod
    def best(cls, ours: Activity, theirs: Activity) -> Pairing:
        """By attention."""
        overlaps, pairs = {}, list[tuple[Kind, int, int]]()
        for kind, mine in ours.items():
            others, n_queries = theirs[kind].weights, mine.weights.shape[2]
            shared = [torch.minimum(w_BQK[:, None], others).sum(dim=(-2, -1)) for w_BQK in mine.weights.unbind(dim=1)]
            overlaps[kind] = np.asarray(torch.stack(shared, dim=1).double().numpy() / n_queries)
            places = linear_sum_assignment(overlaps[kind].mean(axis=0), maximize=True)
            pairs += [(kind, int(i), int(j)) for i, j in zip(*places, strict=True)]
        return cls(ours, theirs, overlaps, tuple(pairs))

    @property
    def partners(self) -> Partners:
        """Of each head that has one."""
        return {self.ours[kind].heads[i]: self.theirs[kind].heads[j] for kind, i, j in self.pairs}

    def each(self, measure: Measure) -> Values:
        """Something about every pair."""
        return np.array([measure(self, *pair) for pair in self.pairs])

    def along(self, axis: int, measure: Measure) -> Values:
        """The same for each of our heads (axis 0) or of theirs (axis 1), kind by kind; 0 without a partner."""
        found = np.zeros(sum(len(kind.heads) for kind in (self.ours, self.theirs)[axis].values()))
        found[self.places(axis)] = self.each(measure)
        return found

    def places(self, axis: int) -> list[int]:
        """Where the paired ones stand among all of our heads or of theirs."""
        before, first = 0, dict[Kind, int]()
        for kind, activity in (self.ours, self.theirs)[axis].items():
            first[kind], before = before, before + len(activity.heads)
        return [first[kind] + (i, j)[axis] for kind, i, j in self.pairs]

    @property
    def measures(self) -> tuple[Measure, ...]:
        """What can be told of every pair: what two heads write only where that is known."""
        known = all(each.values is not None for side in (self.ours, self.theirs) for each in side.values())
        return (pair_overlap, pair_cka) if known else (pair_overlap,)

    @property
    def mean(self) -> float:
        """Of the pairs' overlaps."""
        return float(np.mean(self.each(pair_overlap)))


Measure = Callable[[Pairing, Kind, int, int], float]
"""Of one of our heads and one of theirs, by their places."""


def pair_overlap(pairing: Pairing, kind: Kind, i: int, j: int) -> float:
    """The attention that the two share."""
    return float(pairing.overlaps[kind][:, i, j].mean())


def pair_cka(pairing: Pairing, kind: Kind, i: int, j: int) -> float:
    """Similarity of what the two write."""
    return cka(pairing.ours[kind].outputs[i], pairing.theirs[kind].outputs[j])


# --- similarity -------------------------------------------------------------------------------------------------------
# How alike are two sets of vectors for the same rows? Linear CKA (Kornblith et al. 2019), without its bias.
#
# CKA does not change if either set is rotated or scaled, so models with residual streams of their own can be compared.
# Plain CKA of few rows in many dimensions is well above 0 even for noise; here HSIC is estimated without bias (Song et
# al. 2012; Nguyen et al. 2021), so that unrelated sets come out around 0, sometimes below.


def hsic(x: Values, y: Values) -> float:
    """The unbiased estimate of their dependence [row, dimension], of n > 3 rows; from sums, never n by n."""
    n = len(x)
    own_x, own_y = (x * x).sum(axis=1), (y * y).sum(axis=1)
    sums_x, sums_y = x @ x.sum(axis=0) - own_x, y @ y.sum(axis=0) - own_y  # of the inner products with all other rows
    together = float(((x.T @ y) ** 2).sum() - own_x @ own_y)
    overall = float(sums_x.sum() * sums_y.sum()) / ((n - 1) * (n - 2))
    return (together + overall - 2 * float(sums_x @ sums_y) / (n - 2)) / (n * (n - 3))


def cka(x: Values, y: Values) -> float:
    """1 for sets that differ by a rotation and a scale, around 0 for unrelated ones; 0 where one does not vary.

    >>> rng = np.random.default_rng(0)
    >>> x, other = rng.normal(size=(50, 20)), rng.normal(size=(50, 20))
    >>> turn = np.linalg.qr(rng.normal(size=(20, 20)))[0]
    >>> round(cka(x, 3 * x @ turn), 6), abs(cka(x, other)) < 0.1
    (1.0, True)
    """
    scale = hsic(x, x) * hsic(y, y)
    return hsic(x, y) / math.sqrt(scale) if scale > 0 else 0.0


# --- activity: where heads attend on some examples, and what they write into the residual stream ----------------------


@dataclass(frozen=True)
class KindActivity:
    """The heads of one kind of site, of all layers, at the queries that see more than one key."""

    heads: tuple[HeadId, ...]
    queries: NDArray[np.int64]
    """Which of the task's."""
    weights: Float[Tensor, "example head query key"]
    visible: Bool[Tensor, "query key"]
    """Which keys those queries may see."""
    values: Float[Tensor, "example head key d_head"] | None
    """None if what the heads write is not known."""
    written: Float[Tensor, "head row d_head"] | None
    """What a value becomes in the residual stream, rotated into as few dimensions as a head has: no linear similarity
    can tell that from the whole."""

    @cached_property
    def outputs(self) -> tuple[Values, ...]:
        """Of each head a row for every example and query, less that query's mean: what it writes about the example."""
        assert self.values is not None and self.written is not None, "asked for where it is known"  # noqa: PT018
        z_BHQE = (self.weights @ self.values).double()
        z_HNE = (z_BHQE - z_BHQE.mean(dim=0)).transpose(0, 1).flatten(1, 2)
        return tuple(each.numpy() for each in z_HNE @ self.written.transpose(1, 2))

    def like(self, other: KindActivity) -> KindActivity:
        """At the other's queries alone, and with as many keys: those that a model lacks have no weight."""
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
"""From the number of a draw to what a model does that cannot have learned the same."""


def observe(model: TaskAttention, examples: Examples) -> Activity:
    """Of the kinds of site where a query sees more than one key."""
    read, written, found = task_weights(model, examples), model.value_outputs(examples), Activity()
    for kind in dict.fromkeys((site.stack, site.kind) for site in model.sites):
        sites = [site for site in model.sites if (site.stack, site.kind) == kind]
        visible = read[sites[0]].visible
        has_choice = (visible.sum(dim=-1) > 1) & torch.from_numpy(read[sites[0]].present.all(axis=0))
        if has_choice.any():
            found[kind] = KindActivity(
                heads=tuple(head for site in sites for head in model.heads_at(site)),
                queries=np.flatnonzero(has_choice.numpy()),
                weights=torch.cat([read[site].weights[:, :, has_choice] for site in sites], dim=1),
                visible=visible[has_choice],
                values=None if written is None else torch.cat([written[site].values for site in sites], dim=1),
                written=None if written is None else torch.cat([_rotated(written[site].output) for site in sites]),
            )
    return found


def observe_inputs(model: nn.Module, sites: Sites, rows: Sequence[Sequence[Tensor]]) -> Activity:
    """Return the attention of any model on rows of inputs, at the positions that every row has."""
    read = [{site: only_row(each) for site, each in attention_of(model, sites, *row).items()} for row in rows]
    found = Activity()
    for kind in dict.fromkeys((site.stack, site.kind) for site in sites):
        here = [site for site in sites if (site.stack, site.kind) == kind]
        n_queries, n_keys = min(each[here[0]].shape[1] for each in read), max(each[here[0]].shape[2] for each in read)
        weights = torch.stack(
            [
                torch.cat([F.pad(each[site][:, :n_queries], (0, n_keys - each[site].shape[2])) for site in here])
                for each in read
            ]
        )
        weights = weights.float().nan_to_num().cpu()
        visible = (weights > 0).any(dim=1).any(dim=0)
        has_choice = visible.sum(dim=-1) > 1
        if has_choice.any():
            found[kind] = KindActivity(
                heads=tuple(head for site in here for head in sites[site].heads),
                queries=np.flatnonzero(has_choice.numpy()),
                weights=weights[:, :, has_choice],
                visible=visible[has_choice],
                values=None,
                written=None,
            )
    return found


def in_common(ours: Activity, theirs: Activity) -> tuple[Activity, Activity]:
    """The kinds of site that both have, at queries that both have, with as many keys."""
    kinds = [kind for kind in ours if kind in theirs and set(ours[kind].queries) & set(theirs[kind].queries)]

    def fit(each: KindActivity, other: KindActivity) -> KindActivity:
        wider = other if other.weights.shape[-1] > each.weights.shape[-1] else each
        return each.like(replace(wider, queries=np.intersect1d(each.queries, other.queries)))

    return {kind: fit(ours[kind], theirs[kind]) for kind in kinds}, {
        kind: fit(theirs[kind], ours[kind]) for kind in kinds
    }


def _rotated(output_HDE: Tensor) -> Tensor:
    """With W = Q R, rows W z and R z have the same inner products."""
    return torch.linalg.qr(output_HDE.double())[1]


# --- null models ------------------------------------------------------------------------------------------------------
# What would a best pairing find by chance? That with models which cannot have learned the same.
#
# Two nulls, for they fail differently. An *untrained* model in the place of a run is drawn as that run's weights once
# were, so a run that is itself untrained is one more draw: p is exact, whatever heads attend to by their build and by
# the data. But untrained heads spread their attention, and a trained head shares about the same little with each of
# them: two trained heads that attend to a few keys each would beat them by luck. So a run is also compared with the
# other one *relabelled*: each of its heads keeps how peaked and how steady it is, but its keys change places, and
# examples are shuffled.


def stand_in_seed(index: int, seed: int = 0) -> int:
    """Of the weights that a model of the nulls is drawn with."""
    return integer(seed, "untrained stand-in", index)


@dataclass
class Draws:
    """Best pairings with one kind of null model, seen from one of the two runs."""

    axis: int
    """0 for the first run's heads, 1 for the other's."""
    values: dict[Measure, list[Values]] = field(default_factory=dict)
    """Of each head with its partner, draw by draw."""
    means: list[float] = field(default_factory=list)
    """The mean overlap of all pairs."""
    partners: list[Partners] = field(default_factory=list)

    def add(self, pairing: Pairing, *measures: Measure) -> None:
        """One more draw."""
        self.means.append(pairing.mean)
        self.partners.append(pairing.partners)
        for measure in measures:
            self.values.setdefault(measure, []).append(pairing.along(self.axis, measure))


def pair_with_stand_ins(
    ours_at: StandIn, theirs_at: StandIn, pairing: Pairing, n: int, step: Callable[[], None]
) -> tuple[Draws, Draws]:
    """Pair our heads with stand-ins in the other model's place, and its heads with stand-ins in ours.

    Where both are drawn by one function, a stand-in for one is a stand-in for the other.
    """

    def fit(seen: Activity, activity: Activity) -> Activity:
        return {kind: seen[kind].like(each) for kind, each in activity.items()}

    found = Draws(0), Draws(1)
    for i in range(n):
        theirs = fit(theirs_at(i), pairing.theirs)
        ours = theirs if ours_at is theirs_at else fit(ours_at(i), pairing.ours)
        found[0].add(Pairing.best(pairing.ours, theirs), *pairing.measures)
        found[1].add(Pairing.best(ours, pairing.theirs), *pairing.measures)
        step()
    return found


def pair_with_relabelled(pairing: Pairing, measure: Measure, n: int, seed: int, step: Callable[[], None]) -> Draws:
    """Our heads with the other run's, whose keys changed places.

    For attention, examples are shuffled too. For outputs they are not, or nothing would be left to compare: heads
    write what their own values are at the other keys.
    """
    found, rng, n_examples = Draws(0), stream(seed, "relabelled"), len(next(iter(pairing.overlaps.values())))
    for _ in range(n):
        examples = rng.permutation(n_examples) if measure is pair_overlap else np.arange(n_examples)
        moved = {kind: replace(each, weights=relabelled(each, examples, rng)) for kind, each in pairing.theirs.items()}
        found.add(Pairing.best(pairing.ours, moved), measure)
        step()
    return found


def relabelled(activity: KindActivity, examples: NDArray[np.int64], rng: np.random.Generator) -> Tensor:
    """The weights with each head's keys in another order, the same for all queries as far as they see those keys."""
    n_keys = activity.visible.shape[-1]
    order_H1K = torch.from_numpy(rng.random((len(activity.heads), 1, n_keys)))
    shuffled_HQK = order_H1K.masked_fill(~activity.visible, torch.inf).argsort(dim=-1)
    weights = activity.weights[torch.from_numpy(examples)]
    moved = weights.gather(-1, shuffled_HQK.expand(weights.shape))
    if activity.visible.all():
        return moved
    in_order_QK = torch.arange(float(n_keys)).masked_fill(~activity.visible, torch.inf).argsort(dim=-1, stable=True)
    return torch.zeros_like(moved).scatter_(-1, in_order_QK.expand(weights.shape), moved)
