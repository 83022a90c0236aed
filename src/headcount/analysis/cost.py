"""What does a model cost once heads were cut out of it? Size, time and score, beside the one that it was cut from."""

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from headcount.data.dataset import EvalBatch
from headcount.experiments.experiment import Experiment
from headcount.experiments.interventions import compare, interval_of
from headcount.experiments.models import OpenModel
from headcount.hooks.gates import eval_mode
from headcount.results import ROUNDING, Contradiction, Count, HeadName, Result, Size, is_close
from headcount.stats import PairedDifference
from headcount.surgery.cutting import Cut
from headcount.training.device import n_threads

ROUNDS = 9
"""In which the time of a forward pass is measured."""
TIMED = 4
"""Batches of examples in each round."""


@dataclass(frozen=True)
class Cost(Result):
    """One model beside the one it was cut from."""

    SCHEMA: ClassVar[int] = 4
    parent: str
    name: str
    heads: tuple[HeadName, ...]
    """Those that were cut out."""
    n_heads: tuple[Count, Count]
    lost_blocks: tuple[str, ...]
    """Attention blocks that are gone as a whole."""
    parameters: tuple[Count, Count]
    n_bytes: tuple[Count, Count]
    microseconds: tuple[Size, Size]
    """Per example in a forward pass of 128, one thread on a CPU: median of rounds that alternate."""
    faster: Size
    """Median of the rounds' ratios."""
    difference: Size
    """From the parent with those heads ablated or, if they were folded, at their means: as a share of the largest
    logit, before any fine-tuning."""
    score: tuple[float, float]
    score_intervals: tuple[tuple[float, float], tuple[float, float]]
    """95 % interval of each of the two by itself."""
    drop: PairedDifference
    """Of the two on the same examples."""
    data: str
    fine_tuned: Count
    metric: str = ""
    unit: str = "points"
    is_accuracy: bool = True
    folded_over: Count = 0
    """Unlabelled examples over which the means were taken that stayed in the biases; 0 if nothing stayed."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Compare the two models with the heads between them, and the drop with the two scores."""
        if self.n_heads[0] - self.n_heads[1] != len(set(self.heads)) or len(set(self.heads)) != len(self.heads):
            yield "n_heads", f"{len(self.heads)} heads less, as heads says"
        for name in ("parameters", "n_bytes"):
            before, after = getattr(self, name)
            if after > before:
                yield name, f"at most {before:,} after the cut"
        for score, (low, high) in zip(self.score, self.score_intervals, strict=True):
            if not low - ROUNDING <= score <= high + ROUNDING:
                yield "score", f"in its interval, {low} to {high}"
        if not is_close(self.drop.mean, self.score[0] - self.score[1]):
            yield "drop", f"the difference of the two scores, {self.score[0] - self.score[1]}"
        if self.is_accuracy and not all(-ROUNDING <= each <= 1 + ROUNDING for each in self.score):
            yield "score", "from 0 to 1"


def compare_cost(parent: OpenModel, cut: Cut[OpenModel], experiment: Experiment, fine_tuned: int = 0) -> Cost:
    """Side by side on the examples of an experiment."""
    after, heads = cut.model.module, cut.heads
    scores = np.empty((2, experiment.n))
    for model, its in zip((experiment.model, after), scores, strict=True):
        with eval_mode(model), torch.no_grad():
            for batch in experiment.batches:
                its[batch.rows] = experiment.score(batch, model(*batch.inputs)).cpu().double().numpy()
    times = _times(experiment.model, after, experiment.batches[:TIMED])
    left = set(experiment.sites.heads) - set(heads)
    gone = [site for site in experiment.sites if not left & set(experiment.sites[site].heads)]
    return Cost(
        parent=parent.name,
        name=cut.model.name,
        heads=tuple(map(str, heads)),
        n_heads=(len(experiment.sites.heads), len(left)),
        lost_blocks=tuple(map(str, gone)),
        parameters=(cut.before.parameters, cut.after.parameters),
        n_bytes=(cut.before.n_bytes, cut.after.n_bytes),
        microseconds=(statistics.median(times[0]), statistics.median(times[1])),
        faster=statistics.median(before / after for before, after in zip(*times, strict=True)),
        difference=cut.difference,
        score=(float(experiment.aggregate(scores[0])), float(experiment.aggregate(scores[1]))),
        score_intervals=(interval_of(experiment, scores[0], "before"), interval_of(experiment, scores[1], "after")),
        drop=compare(experiment, scores[0], [scores[1]], "cost")[0],
        data=experiment.data,
        fine_tuned=fine_tuned,
        metric=experiment.metric.name,
        unit=experiment.metric.unit,
        is_accuracy=experiment.metric.is_accuracy,
        folded_over=cut.folded_over,
    )


def _times(before: nn.Module, after: nn.Module, batches: Sequence[EvalBatch]) -> tuple[list[float], list[float]]:
    """Microseconds per example of both, round by round; each round has both side by side."""
    taken: tuple[list[float], list[float]] = ([], [])
    n = sum(len(batch.rows) for batch in batches)
    with n_threads(1), torch.no_grad(), eval_mode(before), eval_mode(after):
        for i in range(ROUNDS + 1):
            for model, times in zip((before, after), taken, strict=True):
                started = time.perf_counter()
                for batch in batches:
                    model(*batch.inputs).flatten()[0].item()  # waits until the device is done
                if i:  # the first round warms up
                    times.append(1e6 * (time.perf_counter() - started) / n)
    return taken
