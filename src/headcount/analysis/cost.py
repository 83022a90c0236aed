"""What a model costs before and after heads were cut out: parameters, bytes, time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from headcount.analysis.ablation import compare, interval_of
from headcount.analysis.subjects import Block, Subject, held_out, subject_of
from headcount.heads import HeadId
from headcount.instruments.running import at_rest
from headcount.results import Result
from headcount.runs.prune import Cut, Size
from headcount.runs.run import Run
from headcount.statistics import Paired
from headcount.training.device import n_threads

ROUNDS = 9
TIMED = 4
"""Blocks of examples in each round."""


@dataclass(frozen=True)
class Cost(Result):
    """One model beside the one it was cut from."""

    SCHEMA: ClassVar[int] = 3
    """In version 2, nobody said whether means were folded."""
    parent: str
    run: str
    heads: tuple[str, ...]
    """Those that were cut out."""
    n_heads: tuple[int, int]
    lost_blocks: tuple[str, ...]
    """Attention blocks that are gone as a whole."""
    parameters: tuple[int, int]
    n_bytes: tuple[int, int]
    microseconds: tuple[float, float]
    """Per example in a forward pass of 128, one thread on a CPU: median of rounds that alternate."""
    faster: float
    """Median of the rounds' ratios."""
    difference: float
    """From the parent with those heads silenced or, if they were folded, at their means: as a share of the largest
    logit, before any fine-tuning."""
    score: tuple[float, float]
    score_intervals: tuple[tuple[float, float], tuple[float, float]]
    """95 % interval of each of the two by itself."""
    drop: Paired
    """Of the two on the same examples."""
    data: str
    fine_tuned: int
    metric: str = ""
    unit: str = "points"
    is_share: bool = True
    folded_over: int = 0
    """Unlabelled examples whose means, of what the heads said, stayed in the biases; 0 if nothing stayed."""


def compare_cost(parent: Run, cut: Cut) -> Cost:
    """Side by side on the test set."""
    subject = subject_of(parent, *held_out(parent.task, "test", None))
    tuned = int(cut.run.folder.read_manifest().get("fine_tuned", 0))
    sizes = cut.before, cut.after
    names = parent.name, cut.run.name
    return cost_between(names, subject, cut.run.model, cut.heads, sizes, cut.difference, tuned, cut.folded_over)


def cost_between(
    names: tuple[str, str],
    subject: Subject,
    after: nn.Module,
    heads: Sequence[HeadId],
    sizes: tuple[Size, Size],
    difference: float,
    fine_tuned: int = 0,
    folded_over: int = 0,
) -> Cost:
    """A subject's model beside what is left of it."""
    scores = [_scores(model, subject) for model in (subject.model, after)]
    times = _times(subject.model, after, subject.blocks[:TIMED])
    left = set(subject.sites.heads) - set(heads)
    gone = [site for site in subject.sites if not left & set(subject.sites[site].heads)]
    return Cost(
        parent=names[0],
        run=names[1],
        heads=tuple(map(str, heads)),
        n_heads=(len(subject.sites.heads), len(left)),
        lost_blocks=tuple(map(str, gone)),
        parameters=(sizes[0].parameters, sizes[1].parameters),
        n_bytes=(sizes[0].n_bytes, sizes[1].n_bytes),
        microseconds=(statistics.median(times[0]), statistics.median(times[1])),
        faster=statistics.median(before / after for before, after in zip(*times, strict=True)),
        difference=difference,
        score=(float(subject.figure(scores[0])), float(subject.figure(scores[1]))),
        score_intervals=(interval_of(subject, scores[0], "before"), interval_of(subject, scores[1], "after")),
        drop=compare(subject, scores[0], [scores[1]], "cost")[0],
        data=subject.data,
        fine_tuned=fine_tuned,
        metric=subject.metric.name,
        unit=subject.metric.unit,
        is_share=subject.metric.is_share,
        folded_over=folded_over,
    )


def _scores(model: nn.Module, subject: Subject) -> NDArray[np.float64]:
    found = np.empty(subject.n)
    with at_rest(model), torch.no_grad():
        for block in subject.blocks:
            found[block.rows] = block.score(model(*block.inputs)).cpu().double().numpy()
    return found


def _times(before: nn.Module, after: nn.Module, blocks: Sequence[Block]) -> tuple[list[float], list[float]]:
    """Microseconds per example of both, round by round; each round has both side by side."""
    taken: tuple[list[float], list[float]] = ([], [])
    n = sum(len(block.rows) for block in blocks)
    with n_threads(1), torch.no_grad(), at_rest(before), at_rest(after):
        for i in range(ROUNDS + 1):
            for model, times in zip((before, after), taken, strict=True):
                started = time.perf_counter()
                for block in blocks:
                    model(*block.inputs).flatten()[0].item()  # waits until the device is done
                if i:  # the first round warms up
                    times.append(1e6 * (time.perf_counter() - started) / n)
    return taken
