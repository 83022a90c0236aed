"""Which heads of two models look alike most? One to one, so that overlaps of attention add up to the most."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from headcount.analysis.head_measures import mask_at
from headcount.heads import HeadId, HeadSite
from headcount.hooks.gates import eval_mode
from headcount.models.attention import AttentionCache, MultiHeadAttention
from headcount.models.build import build_model
from headcount.models.transformer import AttentionBlock, Model
from headcount.runs.run import Run
from headcount.seeds import integer, stream
from headcount.tasks.base import Tokens
from headcount.training.evaluation import on_device

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


# --- similarity -------------------------------------------------------------------------------------------------------
# How alike are two sets of vectors for the same rows? Linear CKA (Kornblith et al. 2019), without its bias.
#
# CKA does not change if either set is rotated or scaled, so models with residual streams of their own can be compared.
# Plain CKA of few rows in many dimensions is well above 0 even for noise; here HSIC is estimated without bias (Song et
# al. 2012; Nguyen et al. 2021), so that unrelated sets come out around 0, sometimes below.


Rows = NDArray[np.float64]
"""[row, dimension]."""


def hsic(x: Rows, y: Rows) -> float:
    """The unbiased estimate of their dependence, of n > 3 rows; from sums over dimensions, never n by n."""
    n = len(x)
    own_x, own_y = (x * x).sum(axis=1), (y * y).sum(axis=1)
    sums_x, sums_y = x @ x.sum(axis=0) - own_x, y @ y.sum(axis=0) - own_y  # of the inner products with all other rows
    together = float(((x.T @ y) ** 2).sum() - own_x @ own_y)
    overall = float(sums_x.sum() * sums_y.sum()) / ((n - 1) * (n - 2))
    return (together + overall - 2 * float(sums_x @ sums_y) / (n - 2)) / (n * (n - 3))


def cka(x: Rows, y: Rows) -> float:
    """1 for sets that differ by a rotation and a scale, around 0 for unrelated ones; 0 where one does not vary.

    >>> rng = np.random.default_rng(0)
    >>> x, other = rng.normal(size=(50, 20)), rng.normal(size=(50, 20))
    >>> turn = np.linalg.qr(rng.normal(size=(20, 20)))[0]
    >>> round(cka(x, 3 * x @ turn), 6), abs(cka(x, other)) < 0.1
    (1.0, True)
    """
    scale = hsic(x, x) * hsic(y, y)
    return hsic(x, y) / math.sqrt(scale) if scale > 0 else 0.0


# --- head activity ----------------------------------------------------------------------------------------------------
# What do the heads of a model do on some examples? Where each looks, and what it writes into the residual stream.


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
    kept, values = AttentionCache(), dict[HeadSite, Tensor]()
    blocks = {site: block for site, block in model.blocks.items() if block.heads}
    with eval_mode(model, gradients=False) as device, ExitStack() as hooks:
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
    mask = mask_at(model, site).mask_for(slice(0, n_queries), slice(0, n_keys), n_queries, n_keys, torch.device("cpu"))
    return torch.ones(n_queries, n_keys, dtype=torch.bool) if mask is None else mask[0, 0]


def _written(projection: nn.Linear, n_heads: int) -> Tensor:
    """With W = Q R, rows W z and R z have the same inner products."""
    weight_HDE = projection.weight.detach().unflatten(1, (n_heads, -1)).transpose(0, 1)
    return torch.linalg.qr(weight_HDE.cpu().double())[1]


# --- null models ------------------------------------------------------------------------------------------------------
# What would a best pairing find by chance? That with models which cannot have learned the same.
#
# Two nulls, for they fail differently. An *untrained* model in the place of a run is drawn as that run's weights once
# were, so a run that is itself untrained is one more draw: p is exact, whatever heads attend to by their build and by
# the data. But untrained heads spread their attention, and a trained head shares about the same little with each of
# them: two trained heads that look at a few keys each would beat them by luck. So a run is also compared with the other
# one *relabelled*: each of its heads keeps how peaked and how steady it is, but its keys change places, and examples
# are shuffled.


def untrained_model(run: Run, index: int, seed: int = 0) -> Model:
    """As the run's model was before it was trained, but for its seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(integer(seed, "untrained stand-in", index))
        model = build_model(run.config.model, run.task)
    return model.to(next(run.model.parameters()).device).eval()


@dataclass
class Draws:
    """Best pairings with one kind of null model, seen from one of the two runs."""

    axis: int
    """0 for the first run's heads, 1 for the other's."""
    shared: list[Values] = field(default_factory=list)
    """The overlap of each head with its partner, draw by draw."""
    written: list[Values] = field(default_factory=list)
    """The CKA of what they write."""
    means: list[float] = field(default_factory=list)
    """The mean overlap of all pairs."""
    partners: list[Partners] = field(default_factory=list)

    def add(self, pairing: Pairing, *, outputs: bool = True) -> None:
        """One more draw."""
        self.shared.append(pairing.shared(self.axis))
        self.means.append(pairing.mean)
        self.partners.append(pairing.partners)
        if outputs:
            self.written.append(pairing.written(self.axis))


def pair_with_untrained(
    run: Run, other: Run, inputs: tuple[Tokens, ...], pairing: Pairing, n: int, seed: int, step: Callable[[], None]
) -> tuple[Draws, Draws]:
    """Our heads with untrained stand-ins for the other run, and its heads with stand-ins for ours."""
    found = Draws(0), Draws(1)
    for i in range(n):
        theirs = _like(pairing.ours, observe(untrained_model(other, i, seed), inputs))
        ours = theirs
        if run.config.model != other.config.model:
            ours = _like(pairing.ours, observe(untrained_model(run, i, seed), inputs))
        found[0].add(Pairing.best(pairing.ours, theirs))
        found[1].add(Pairing.best(ours, pairing.theirs))
        step()
    return found


def pair_with_relabelled(
    pairing: Pairing, n: int, seed: int, step: Callable[[], None], *, outputs: bool = False
) -> Draws:
    """Our heads with the other run's, whose keys changed places.

    For attention, examples are shuffled too. For `outputs` they are not, or nothing would be left to compare: heads
    write what their own values are at the other keys.
    """
    found, rng = Draws(0), stream(seed, "relabelled")
    for _ in range(n):
        examples = np.arange(pairing.n_examples) if outputs else rng.permutation(pairing.n_examples)
        moved = {kind: each.looking(relabelled(each, examples, rng)) for kind, each in pairing.theirs.items()}
        found.add(Pairing.best(pairing.ours, moved), outputs=outputs)
        step()
    return found


def _like(known: Activity, found: Activity) -> Activity:
    return {kind: found[kind] for kind in known}


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
