"""How much of a head's attention goes where, and how concentrated is it, example by example?

Weights are read a few queries at a time, so that no matrix of queries times keys is ever held. For each measure, head,
example and column the sum over queries is kept, and how many queries it counts:

    target          mass on the keys that the task calls so; at queries that may see such keys, and others beside them
    entropy         -sum w log w, in nats
    entropy share   entropy / log n, where n > 1 keys are in sight
    sparsity        (sqrt n - l1 / l2) / (sqrt n - 1), where n > 1: 0 if even, 1 if on one key (Hoyer 2004,
                    "Non-negative matrix factorization with sparseness constraints", JMLR 5)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from headcount.analysis.labels import ENTROPY, ENTROPY_SHARE, SPARSITY
from headcount.analysis.value_norms import ValueNorms
from headcount.analysis.watched import Watched
from headcount.heads import HeadSite
from headcount.models.attention import Weights
from headcount.models.build import Model
from headcount.models.classifier import Classifier
from headcount.models.finite import require_numbers
from headcount.models.sight import Sight
from headcount.runs.run import Run
from headcount.tasks.base import Looks
from headcount.training.evaluation import evaluating, on_device

Sums = NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """One measure at one site. The last column stands for queries that are about none."""

    sums: Sums
    """[example, head, column]: over the queries that count."""
    counts: Sums
    """[example, column]: how many those are."""
    even: Sums | None
    """[example, column]: what the sums would be if attention were even; None if the measure is no mass on keys."""

    @classmethod
    def nothing(cls, n: int, n_heads: int, n_columns: int, *, is_mass: bool) -> Measured:
        """All sums are 0 yet."""
        sums, counts = np.zeros((n, n_heads, n_columns)), np.zeros((n, n_columns))
        return cls(sums, counts, counts.copy() if is_mass else None)


def measure(
    run: Run,
    watched: Watched,
    progress: Callable[[int, int], None] | None = None,
    *,
    norm_weighted: bool = False,
) -> dict[HeadSite, dict[str, Measured]]:
    """Every measure, by site and name, of the sites that have heads; `progress(done, total)` in examples.

    Norm-weighted, a key counts by its share of what is added instead of by its weight (value_norms.py).
    """
    sites = {head.site for head in run.model.heads}
    with evaluating(run.model) as device, ValueNorms(run.model) if norm_weighted else nullcontext() as norms:
        reader = HeadMeasures(run.model, len(watched), norms)
        for rows in watched.blocks():
            examples, inputs = watched[rows]
            reader.begin(rows, {site: run.task.looks(site.stack, site.kind, examples) for site in sites})
            require_numbers(run.model(*on_device(device, *inputs), weights=reader), run.task.show(examples[0]))
            if progress:
                progress(rows.stop, len(watched))
    return reader.found


class HeadMeasures:
    """Reads weights as they are made, a few queries at a time."""

    def __init__(self, model: Model, n: int, norms: ValueNorms | None = None) -> None:
        self.found: dict[HeadSite, dict[str, Measured]] = {}
        self._model, self._n, self._norms = model, n, norms
        self._rows, self._looks = slice(0), dict[HeadSite, Looks]()
        self._done: dict[HeadSite, int] = {}

    def begin(self, rows: slice, looks: dict[HeadSite, Looks]) -> None:
        """These of the examples come next, from their first query on."""
        self._rows, self._looks = rows, looks
        self._done.clear()

    def read(self, site: HeadSite, weights: Weights, keys: slice, n_keys: int) -> None:
        """Add the next queries."""
        if self._norms is not None:
            weights = self._norms.share(site, weights, keys)
        first, looks = self._done.get(site, 0), self._looks[site]
        self._done[site] = last = first + weights.shape[2]
        queries, here = slice(first, last), self.found.setdefault(site, {})
        column_QC = np.eye(len(looks.columns) + 1)[looks.about[queries]]  # -1 is the last
        sees = torch.ones(weights.shape[2:], dtype=torch.bool, device=weights.device)
        if (in_sight := sight_at(self._model, site).open(queries, keys, n_keys, n_keys, weights.device)) is not None:
            sees = in_sight[0, 0]
        for name, *values in (*_masses(weights, looks, queries, keys, sees), *_spread(weights, sees)):
            if name not in here:
                shape = self._n, weights.shape[1], column_QC.shape[1]
                here[name] = Measured.nothing(*shape, is_mass=name in looks.targets)
            _add(here[name], self._rows, values, column_QC)


def sight_at(model: Model, site: HeadSite) -> Sight:
    """What the queries of a site may see where nothing is padding."""
    window = model.config.window
    if isinstance(model, Classifier):
        return Sight(causal=model.config.causal or model.positions.looks_back, window=window)
    if site.kind == "cross":
        return Sight()
    return Sight(causal=site.stack == "decoder" or model.source_positions.looks_back, window=window)


Values = tuple[str, Float[Tensor, "batch head query"], Bool[Tensor, "#batch query"], Float[Tensor, "#batch query"]]
"""A measure: its name, its values, the queries that count, and what even attention would give them."""


def _masses(
    weights: Weights, looks: Looks, queries: slice, keys: slice, sees: Bool[Tensor, "query key"]
) -> Iterator[Values]:
    """Attention on each target. A query that may see nothing but the target, or nothing of it, has no choice."""
    q, k = np.arange(queries.start, queries.stop)[:, None], np.arange(keys.start, keys.stop)[None]
    n_BQ = sees.sum(dim=-1)[None]
    for name, target in looks.targets.items():
        is_target = torch.from_numpy(target(q, k)).to(weights.device) & sees
        is_target_BQK = is_target if is_target.ndim == 3 else is_target[None]
        hits_BQ = is_target_BQK.sum(dim=-1)
        mass_BHQ = (weights * is_target_BQK[:, None]).sum(dim=-1)
        yield name, mass_BHQ, (hits_BQ > 0) & (hits_BQ < n_BQ), hits_BQ.double() / n_BQ


def _spread(weights: Weights, sees: Bool[Tensor, "query key"]) -> Iterator[Values]:
    """How concentrated attention is."""
    n_BQ = sees.sum(dim=-1)[None]
    several, n_BHQ = n_BQ > 1, n_BQ.clamp(min=2)[:, None]
    entropy_BHQ = torch.special.entr(weights).sum(dim=-1)
    l1_BHQ, l2_BHQ = weights.sum(dim=-1), weights.square().sum(dim=-1).sqrt()
    even = torch.zeros_like(n_BQ)
    yield ENTROPY, entropy_BHQ, torch.ones_like(several), even
    yield ENTROPY_SHARE, entropy_BHQ / n_BHQ.log(), several, even
    yield SPARSITY, (n_BHQ.sqrt() - l1_BHQ / l2_BHQ) / (n_BHQ.sqrt() - 1), several, even


def _add(found: Measured, rows: slice, values: Sequence[Tensor], column_QC: Sums) -> None:
    """Sum over the queries of each column."""
    values_BHQ, counted_BQ, even_BQ = (x.cpu().numpy().astype(np.float64) for x in values)
    found.sums[rows] += (values_BHQ * counted_BQ[:, None]) @ column_QC
    found.counts[rows] += counted_BQ @ column_QC
    if found.even is not None:
        found.even[rows] += (even_BQ * counted_BQ) @ column_QC
