"""What every head costs alone, on a few of the examples that are audited: one sweep for all checks that ask for it."""

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
"""Examples, at most."""
MOST_HEADS = 64
"""Of a model with more, a sweep takes too long for an audit."""


@dataclass(frozen=True)
class HeadSweep:
    """Which examples are right with each head ablated alone."""

    experiment: Experiment
    heads: tuple[HeadId, ...]
    clean: NDArray[np.float64]
    """[example]: 1 if it is right."""
    zero: NDArray[np.float64]
    """[head, example], by zero."""
    mean: NDArray[np.float64]
    """[head, example], by its mean."""

    @property
    def n(self) -> int:
        """How many examples."""
        return len(self.clean)

    def drops(self, scores: NDArray[np.float64], rows: NDArray[np.int64] | slice = slice(None)) -> NDArray[np.float64]:
        """[head]: the share of these examples that is lost."""
        return np.asarray(self.clean[rows].mean() - scores[:, rows].mean(axis=1))

    def together(self, heads: Sequence[HeadId]) -> float:
        """The share that is right without these heads."""
        found = run_interventions(self.experiment, [Intervention(tuple(heads))], proven=True)
        return float(found.scores.mean())


def sweep_heads(model: OpenModel, split: str, n: int) -> HeadSweep:
    """Every head alone, by zero and by its mean, on up to `n` examples."""
    if not 2 <= len(model.sites.heads) <= MOST_HEADS:
        what = f"it has {len(model.sites.heads)} heads, and 2 to {MOST_HEADS} are ablated one by one here"
        raise InputError(what, "ablate them at leisure: headcount ablate")
    dataset, rows = model.examples(split, n=min(N_SWEPT, n))
    # Means over these examples will do, and are quick.
    experiment = experiment_on(model.module, model.sites, replace(dataset, fresh=None), rows)
    experiment, heads = replace(experiment, reference=()), model.sites.heads
    asked = [Intervention((head,), by) for by in ("zero", "mean") for head in heads]
    found = run_interventions(experiment, asked)
    return HeadSweep(experiment, heads, found.clean, found.scores[: len(heads)], found.scores[len(heads) :])
