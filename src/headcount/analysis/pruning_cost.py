"""What does cutting out heads save and cost? Compare size, time and score of the cut model and its parent."""

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
"""Number of rounds in which the forward passes of both models are timed."""
TIMED = 4
"""Number of batches of examples in each timed round."""


@dataclass(frozen=True)
class Cost(Result):
    """Size, time and score of a model from which heads were cut, and of its parent.

    In fields with two values, the first one belongs to the parent.
    """

    SCHEMA: ClassVar[int] = 4
    parent: str
    name: str
    heads: tuple[HeadName, ...]
    """Names of the heads that were cut out of the parent."""
    n_heads: tuple[Count, Count]
    lost_blocks: tuple[str, ...]
    """Attention blocks that have no head left in the cut model."""
    parameters: tuple[Count, Count]
    n_bytes: tuple[Count, Count]
    microseconds: tuple[Size, Size]
    """Microseconds of a forward pass per example on one CPU thread: the median over alternating rounds."""
    faster: Size
    """Speed-up of the cut model: the median over rounds of its parent's time divided by its own time."""
    difference: Size
    """Largest difference between the logits of the cut model and of the parent with the cut heads ablated.

    It is measured before fine-tuning, relative to the largest logit. If mean outputs were folded into biases, the
    parent's heads are set to their means.
    """
    score: tuple[float, float]
    score_intervals: tuple[tuple[float, float], tuple[float, float]]
    """95 % CI of the score of the parent, and of the cut model."""
    drop: PairedDifference
    """Drop from the parent's score to that of the cut model, paired on the same examples."""
    data: str
    fine_tuned: Count
    metric: str = ""
    unit: str = "points"
    is_accuracy: bool = True
    folded_over: Count = 0
    """Number of unlabelled examples over which the folded mean outputs of cut heads were taken; 0 without folding."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if the sizes, the removed heads, the scores and the drop disagree with each other."""
        if self.n_heads[0] - self.n_heads[1] != len(set(self.heads)) or len(set(self.heads)) != len(self.heads):
            yield "n_heads", f"two numbers that differ by {len(self.heads)}, the number of different heads in heads"
        for name in ("parameters", "n_bytes"):
            before, after = getattr(self, name)
            if after > before:
                yield name, f"a second number of at most {before:,}, as cutting adds nothing"
        for score, (low, high) in zip(self.score, self.score_intervals, strict=True):
            if not low - ROUNDING <= score <= high + ROUNDING:
                yield "score", f"a score inside of its confidence interval, {low} to {high}"
        if not is_close(self.drop.mean, self.score[0] - self.score[1]):
            yield "drop", f"a mean of {self.score[0] - self.score[1]}, the difference of the two scores"
        if self.is_accuracy and not all(-ROUNDING <= score <= 1 + ROUNDING for score in self.score):
            yield "score", "two accuracies from 0 to 1"


def compare_cost(parent: OpenModel, cut: Cut[OpenModel], experiment: Experiment, fine_tuned: int = 0) -> Cost:
    """Compare size, time and score of a cut model with those of its parent, on the examples of an experiment.

    `fine_tuned` is the number of training steps after the cut.
    """
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
    """Time the forward passes of two models in alternation; return microseconds per example of each in each round."""
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
