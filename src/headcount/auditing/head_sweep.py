"""Measure accuracy with each head ablated, on some of the audited examples, once for all checks that need it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from headcount.errors import InputError
from headcount.experiments.experiment import Experiment, experiment_on
from headcount.experiments.interventions import run_interventions
from headcount.experiments.models import OpenModel
from headcount.heads import HeadId
from headcount.hooks.replay import Intervention

N_SWEPT = 200
"""Largest number of examples in a sweep over all heads: one example is half a percentage point of accuracy."""
MAX_HEADS = 64
"""Largest number of heads that an audit ablates one by one; for more heads, this takes too long."""


@dataclass(frozen=True)
class HeadSweep:
    """Which examples are right with all heads, and under ablation of each single head."""

    experiment: Experiment
    heads: tuple[HeadId, ...]
    clean: NDArray[np.float64]
    """[example]: 1 if the answer is right with all heads."""
    zero: NDArray[np.float64]
    """[head, example]: 1 if the answer is right under zero ablation of the head."""
    mean: NDArray[np.float64]
    """[head, example]: 1 if the answer is right under mean ablation of the head."""

    @property
    def n(self) -> int:
        """The number of examples on which heads are ablated."""
        return len(self.clean)

    def drops(self, scores: NDArray[np.float64], rows: NDArray[np.int64] | slice = slice(None)) -> NDArray[np.float64]:
        """Return the drop in accuracy when each head is ablated, on the examples `rows`; `scores`: `zero` or `mean`."""
        return np.asarray(self.clean[rows].mean() - scores[:, rows].mean(axis=1))

    def together(self, heads: Sequence[HeadId]) -> float:
        """Return the accuracy if all these heads are ablated together (zero ablation)."""
        outcome = run_interventions(self.experiment, [Intervention(tuple(heads))], proven=True)
        return float(outcome.scores.mean())


def sweep_heads(model: OpenModel, split: str, n: int) -> HeadSweep:
    """Measure zero and mean ablation of every single head, on up to `n` examples."""
    if not 2 <= len(model.sites.heads) <= MAX_HEADS:
        what = f"the model has {len(model.sites.heads)} heads, but an audit ablates heads only if there are 2 to "
        raise InputError(f"{what}{MAX_HEADS}", "ablate them without the audit: headcount ablate")
    dataset, rows = model.examples(split, n=min(N_SWEPT, n))
    # Means over the swept examples are precise enough, and save a pass over others.
    experiment = experiment_on(model.module, model.sites, replace(dataset, fresh=None), rows)
    experiment, heads = replace(experiment, reference=()), model.sites.heads
    interventions = [Intervention((head,), by) for by in ("zero", "mean") for head in heads]
    outcome = run_interventions(experiment, interventions)
    return HeadSweep(experiment, heads, outcome.clean, outcome.scores[: len(heads)], outcome.scores[len(heads) :])
