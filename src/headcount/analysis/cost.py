"""What a model costs before and after heads were cut out: parameters, bytes, time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from headcount.analysis.subjects import Block, held_out, subject_of
from headcount.instruments.running import at_rest
from headcount.results import Result
from headcount.runs.prune import Cut
from headcount.runs.run import Run
from headcount.seeds import stream
from headcount.statistics import Paired, paired_hits
from headcount.training.device import n_threads

ROUNDS = 9
TIMED = 4
"""Blocks of examples in each round."""


@dataclass(frozen=True)
class Cost(Result):
    """One model beside the one it was cut from."""

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
    """From the parent with those heads silenced, as a share of the largest logit, before any fine-tuning."""
    score: tuple[float, float]
    drop: Paired
    data: str
    fine_tuned: int


def compare_cost(parent: Run, cut: Cut) -> Cost:
    """Side by side on the test set."""
    rows, what = held_out(parent.task, "test", None)
    blocks = subject_of(parent, rows, what).blocks
    scores = [_scores(run.model, blocks) for run in (parent, cut.run)]
    times = _times(parent.model, cut.run.model, blocks[:TIMED])
    gone = [site for site in parent.model.sites if site not in cut.run.model.sites]
    return Cost(
        parent=parent.name,
        run=cut.run.name,
        heads=tuple(map(str, cut.heads)),
        n_heads=(len(parent.model.heads), len(cut.run.model.heads)),
        lost_blocks=tuple(map(str, gone)),
        parameters=(cut.before.parameters, cut.after.parameters),
        n_bytes=(cut.before.n_bytes, cut.after.n_bytes),
        microseconds=(statistics.median(times[0]), statistics.median(times[1])),
        faster=statistics.median(before / after for before, after in zip(*times, strict=True)),
        difference=cut.difference,
        score=(float(scores[0].mean()), float(scores[1].mean())),
        drop=paired_hits(scores[0], scores[1], stream(0, "cost")),
        data=what,
        fine_tuned=int(cut.run.folder.read_manifest().get("fine_tuned", 0)),
    )


def _scores(model: nn.Module, blocks: Sequence[Block]) -> NDArray[np.bool_]:
    with at_rest(model), torch.no_grad():
        return np.concatenate([block.score(model(*block.inputs)).cpu().numpy() for block in blocks]) > 0.5


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
