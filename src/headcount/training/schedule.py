"""The learning rate as a function of the step alone, so that there is no scheduler state to save."""

from __future__ import annotations

import math

from headcount.training.config import TrainingConfig

FLOOR = 1e-4
"""The last learning rate of a falling schedule, as a share of the highest."""


def learning_rate(config: TrainingConfig, step: int) -> float:
    """The rate at `step` (from 0).

    one-cycle   a cosine up from 1/25 of the highest rate, and a cosine down (Smith 2018, arXiv 1803.09820)
    cosine      a straight line up from 0, and a cosine down
    constant    the highest rate throughout
    """
    if config.schedule == "constant":
        return config.learning_rate
    rising = config.warmup * config.steps
    if step < rising:
        done = (step + 1) / rising
        rise = _between(1 / 25, 1.0, done) if config.schedule == "one-cycle" else min(done, 1.0)
        return config.learning_rate * rise
    return config.learning_rate * _between(1.0, FLOOR, (step - rising) / max(config.steps - rising, 1))


def _between(start: float, end: float, done: float) -> float:
    """Half a cosine from `start` to `end`."""
    return end + (start - end) * (1 + math.cos(math.pi * min(done, 1.0))) / 2
