"""Measure drops in score when groups of heads are ablated by zero, on the same examples for all claims on a model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headcount.bands import CRITICAL, is_above_baseline, limit_text
from headcount.claims.base import ClaimCase, Evidence
from headcount.data.dataset import mean_score
from headcount.errors import InputError
from headcount.experiments.drops import compare
from headcount.experiments.interventions import run_interventions
from headcount.formatting import percent
from headcount.heads import HeadId
from headcount.hooks.replay import Intervention
from headcount.limits import N_CLAIM
from headcount.seeds import stream
from headcount.stats import PairedDifference, paired_differences

Group = tuple[HeadId, ...]
Losses = NDArray[np.float64]
"""For each example, the score with all heads minus the score with some heads ablated."""


class Drops:
    """A model with examples, and its scores on them under zero ablation of each group of heads measured so far."""

    def __init__(self, case: ClaimCase) -> None:
        n = N_CLAIM if case.n is None else case.n
        self.experiment = case.model.experiment(case.data, None, n)
        self.n, self.metric = self.experiment.n, self.experiment.metric
        self.unit = "points" if self.metric.in_points else self.metric.unit
        self._scores = dict[Group, NDArray[np.float64]]()
        self._clean: NDArray[np.float64] | None = None
        self._needs_skill = self.metric.in_points and not case.anyway

    def losses(self, groups: Sequence[Sequence[HeadId]]) -> list[Losses]:
        """Return, for each group of heads, the loss of score of each example when all heads of the group are ablated.

        Scores of groups that were measured before are reused.
        """
        keys = [tuple(sorted(group)) for group in groups]
        new = [key for key in dict.fromkeys(keys) if key not in self._scores]
        if new:
            interventions = [Intervention(key, "zero") for key in new]
            outcome = run_interventions(self.experiment, interventions, proven=self._clean is not None)
            self._clean = outcome.clean
            self._require_skill(outcome.majority_baseline)
            self._scores |= zip(new, outcome.scores, strict=True)
        assert self._clean is not None, "a group was ablated"
        return [self._clean - self._scores[key] for key in keys]

    def _require_skill(self, baseline: float) -> None:
        """Raise an error unless the model's accuracy is at least `CRITICAL` above `baseline`.

        The baseline is the accuracy of the best constant answer.
        """
        clean = float(self.experiment.aggregate(self._clean)) if self._clean is not None else 0.0
        if self._needs_skill and not is_above_baseline(clean, baseline):
            raise InputError(
                f"with all heads, the model scores {percent(clean)}, less than {limit_text(CRITICAL)} above the best "
                "constant answer: there is too little accuracy that ablation could lower"
            )

    def drop(self, heads: Sequence[HeadId]) -> PairedDifference:
        """Return the drop in score when all of these heads are ablated together, with its 95 % CI."""
        (losses,) = self.losses([heads])
        assert self._clean is not None, "the heads were ablated"
        return compare(self.experiment, self._clean, [self._clean - losses], "claims")[0]

    def mean_of(self, losses: Losses, most: float = math.inf) -> PairedDifference:
        """Return the mean of the losses of all examples, with its 95 % CI.

        `most` is the largest loss that one example can have. For an accuracy, both ends of the CI allow for rare
        examples that the sample missed and that lose the whole answer: 3.7 per n examples.
        """
        if self.experiment.aggregator is not mean_score:
            raise InputError(f"the metric {self.metric.name} is not a mean over examples, so drops cannot be compared")
        broken = 1.0 if self.metric.is_accuracy else None
        mean, mirrored = paired_differences(np.stack([losses, -losses]), stream(0, "claims"), broken)
        low, high, most = min(mean.low, -mirrored.high), mean.high, most if self.metric.is_accuracy else math.inf
        return PairedDifference(mean.mean, max(low, -most), min(high, most), mean.p)

    def evidence(self, words: str, drop: PairedDifference) -> Evidence:
        """Return a drop in score with its 95 % CI as evidence for a claim.

        `words` is a clause such as `removing both heads costs {}`.
        """
        return Evidence(words, drop.mean, drop.low, drop.high, self.n, "examples", self.unit)


def drops_of(case: ClaimCase) -> Drops:
    """Return the store of drops in score of a model, which all claims about the model share."""
    return case.once("drops", lambda: Drops(case))
