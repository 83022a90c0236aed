"""What does cutting out heads save, and what does it cost? Size, time and score of a cut model and of its parent."""

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from headcount.data.dataset import EvalBatch
from headcount.experiments.drops import compare, interval_of
from headcount.experiments.experiment import Experiment
from headcount.experiments.models import OpenModel
from headcount.hooks.gates import eval_mode
from headcount.results import ROUNDING, Contradiction, Count, HeadName, Result, Size, is_close
from headcount.stats import PairedDifference
from headcount.surgery.cutting import Cut
from headcount.training.device import n_threads

ROUNDS = 9
"""Number of rounds in which forward passes are timed."""
TIMED = 4
"""Number of batches in each round."""


@dataclass(frozen=True)
class Cost(Result):
    """Size, time and score of a cut model and of its parent. Fields with two values have the parent's first."""

    SCHEMA: ClassVar[int] = 4
    parent: str
    name: str
    heads: tuple[HeadName, ...]
    """Heads that were cut out."""
    n_heads: tuple[Count, Count]
    lost_blocks: tuple[str, ...]
    """Attention blocks that have no head left."""
    parameters: tuple[Count, Count]
    n_bytes: tuple[Count, Count]
    microseconds: tuple[Size, Size]
    """Time of a forward pass per example, on one CPU thread: median over rounds that alternate between the models."""
    faster: Size
    """Speed-up: median over rounds of parent's time / cut model's time."""
    difference: Size
    """Largest difference between the logits of the cut model, before fine-tuning, and those of the parent with these
    heads ablated (set to their means, if the means were folded into the biases), relative to the largest logit."""
    score: tuple[float, float]
    score_intervals: tuple[tuple[float, float], tuple[float, float]]
    """95 % CI of each score."""
    drop: PairedDifference
    """Paired difference of the two scores on the same examples."""
    data: str
    fine_tuned: Count
    metric: str = ""
    unit: str = "points"
    is_accuracy: bool = True
    folded_over: Count = 0
    """Number of unlabelled examples that the means folded into the biases were averaged over; 0 without folding."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if the sizes, the removed heads, the scores and the drop disagree."""
        if self.n_heads[0] - self.n_heads[1] != len(set(self.heads)) or len(set(self.heads)) != len(self.heads):
            yield "n_heads", f"{len(self.heads)} fewer after the cut, the number of different heads in heads"
        for name in ("parameters", "n_bytes"):
            before, after = getattr(self, name)
            if after > before:
                yield name, f"at most {before:,} after the cut"
        for score, (low, high) in zip(self.score, self.score_intervals, strict=True):
            if not low - ROUNDING <= score <= high + ROUNDING:
                yield "score", f"in its interval, {low} to {high}"
        if not is_close(self.drop.mean, self.score[0] - self.score[1]):
            yield "drop", f"the difference of the two scores, {self.score[0] - self.score[1]}"
        if self.is_accuracy and not all(-ROUNDING <= score <= 1 + ROUNDING for score in self.score):
            yield "score", "from 0 to 1"


def compare_cost(parent: OpenModel, cut: Cut[OpenModel], experiment: Experiment, fine_tuned: int = 0) -> Cost:
    """Compare the size, time and score of a cut model with those of its parent, on the examples of an experiment."""
    module, heads = cut.model.module, cut.heads
    scores = np.empty((2, experiment.n))
    for i, model in enumerate((experiment.model, module)):
        with eval_mode(model), torch.no_grad():
            for batch in experiment.batches:
                scores[i, batch.rows] = experiment.score(batch, model(*batch.inputs)).cpu().double().numpy()
    times = _times(experiment.model, module, experiment.batches[:TIMED])
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
    """Return the microseconds per example of both models in each round, in which they are timed one after the other."""
    both: tuple[list[float], list[float]] = ([], [])
    n = sum(len(batch.rows) for batch in batches)
    with n_threads(1), torch.no_grad(), eval_mode(before), eval_mode(after):
        for i in range(ROUNDS + 1):
            for model, times in zip((before, after), both, strict=True):
                started = time.perf_counter()
                for batch in batches:
                    model(*batch.inputs).flatten()[0].item()  # wait for the device
                if i:  # the first round is a warm-up
                    times.append(1e6 * (time.perf_counter() - started) / n)
    return both
