"""Score a model while heads are removed one after another; a removed head is ablated in all later measurements.

The forward passes over all batches are cached as far as they fit into memory. After a removal, only the layers from the
removed head on are computed again.
"""

from collections.abc import Sequence

import numpy as np
import torch

from headcount.errors import ReplayError
from headcount.experiments.experiment import Experiment, Scores
from headcount.experiments.interventions import Progress, plain_scores, run_interventions, scores_of
from headcount.heads import HeadId
from headcount.hooks.gates import eval_mode
from headcount.hooks.replay import CachedPass, Intervention, sweep
from headcount.limits import BATCH, available_memory

ROOM = 2**30
"""Largest total size of the cached forward passes in bytes; a quarter of the available memory if that is less."""


class Removal:
    """An experiment whose heads are removed one after another: scores are measured without the heads removed so far.

    The hooks must have been proven to act on the model before.
    """

    def __init__(self, experiment: Experiment, batch_size: int = BATCH) -> None:
        self.experiment, self.removed = experiment, list[HeadId]()
        self.is_plain = False
        """Whether every measurement takes a full forward pass (no cache), because the model's modules keep state."""
        self._batch_size = min(batch_size, experiment.most_rows or batch_size)
        self._passes: dict[int, CachedPass] = {}
        self._next: dict[tuple[HeadId, int], CachedPass] = {}
        """Cached forward passes with one further head removed, kept because this head is likely to be removed next."""
        self._room: int | None = None
        self._unchecked = True

    def clean(self) -> Scores:
        """Return the score of every example without the heads that were removed so far."""
        scores = np.empty(self.experiment.n)
        with eval_mode(self.experiment.model), torch.no_grad():
            for i, batch in enumerate(self.experiment.batches):
                scores[batch.rows] = scores_of(self.experiment, batch, self._pass(i).output)
        return scores

    def scores(self, heads: Sequence[HeadId], batches: Sequence[int], *, keep: bool = False) -> Scores:
        """Return scores [head, example] with one further head removed, for each of `heads` in turn.

        Only examples of the batches with these indices are scored; others get NaN. With `keep`, the forward passes are
        kept in memory, because one of the heads is likely to be removed next.
        """
        scores = np.full((len(heads), self.experiment.n), np.nan)
        with eval_mode(self.experiment.model), torch.no_grad():
            for i in batches:
                try:
                    of_batch = None if self.is_plain else self._replayed(i, heads, keep)
                except ReplayError:
                    self.is_plain, of_batch = True, None
                    self._passes.clear()
                    self._next.clear()
                if of_batch is None:
                    removals = [Intervention((head,)) for head in heads]
                    of_batch = plain_scores(self.experiment, self.experiment.batches[i], removals, self.removed)
                scores[:, self.experiment.batches[i].rows] = of_batch
        return scores

    def remove(self, head: HeadId) -> None:
        """Remove a head: all further measurements are made without this head."""
        self.removed.append(head)
        self._passes |= {i: cached for (each, i), cached in self._next.items() if each == head}
        self._next.clear()
        self._unchecked = True

    def _replayed(self, i: int, heads: Sequence[HeadId], keep: bool) -> Scores:
        """Return scores [head, example] of batch `i` with one further head removed, computed from a cached pass.

        The first scores after each removal are checked against a full pass.
        """
        batch, cached, checked = self.experiment.batches[i], self._pass(i), self._unchecked
        self._unchecked = False
        if keep:
            further = [cached.without([head]) for head in heads]
            for head, each in zip(heads, further, strict=True):
                if checked:
                    each.check()
                if self._has_room(each):
                    self._next[head, i] = each
            return np.array([scores_of(self.experiment, batch, each.output) for each in further])
        scores = np.empty((len(heads), len(batch.rows)))
        interventions = [Intervention((head,)) for head in heads]
        for j, output in sweep(cached, interventions, batch_size=self._batch_size, checked=checked):
            scores[j] = scores_of(self.experiment, batch, output)
        return scores

    def _pass(self, i: int) -> CachedPass:
        """Return a cached forward pass over batch `i` without the heads that were removed so far."""
        cached = self._passes.get(i)
        if cached is None:
            model, sites, inputs = self.experiment.model, self.experiment.sites, self.experiment.batches[i].inputs
            cached = CachedPass(model, sites, inputs, self.removed)
        elif gone := [head for head in self.removed if head not in cached.base]:
            cached = cached.without(gone)
        if i in self._passes or self._has_room(cached):
            self._passes[i] = cached
        return cached

    def _has_room(self, cached: CachedPass) -> bool:
        if self._room is None:
            self._room = min(ROOM, (available_memory() or 4 * ROOM) // 4) // max(1, cached.n_bytes)
        return len(self._passes) + len(self._next) < self._room


def scores_along(
    experiment: Experiment,
    orders: Sequence[Sequence[Sequence[HeadId]]],
    *,
    batch_size: int = BATCH,
    progress: Progress | None = None,
) -> list[Scores]:
    """Return the scores [step, example] along several orders of removal; in each step, a group of heads is removed."""
    scores = [np.empty((len(order), experiment.n)) for order in orders]
    try:
        with eval_mode(experiment.model), torch.no_grad():
            for i, batch in enumerate(experiment.batches):
                whole = CachedPass(experiment.model, experiment.sites, batch.inputs)
                for j, order in enumerate(orders):
                    cached = whole
                    for k, heads in enumerate(order):
                        cached = cached.without(heads)
                        scores[j][k, batch.rows] = scores_of(experiment, batch, cached.output)
                        if i == 0 and k == len(order) // 2:
                            cached.check()
                    if progress:
                        progress(i * len(orders) + j + 1, len(experiment.batches) * len(orders))
    except ReplayError:
        sets = [
            tuple(head for group in order[: k + 1] for head in group) for order in orders for k in range(len(order))
        ]
        outcome = run_interventions(experiment, list(map(Intervention, sets)), batch_size=batch_size, proven=True)
        return np.split(outcome.scores, np.cumsum([len(order) for order in orders])[:-1])
    return scores
