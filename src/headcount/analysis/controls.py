"""What would a model show that has learned nothing? Two kinds of control, both of the model's own shape.

untrained   fresh weights, as training begins with
shuffled    the model's own weights, the entries of each matrix in random order: as large as what was learned, so
that heads are as sharp, but without its structure
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import torch

from headcount.runs.run import Run, build
from headcount.seeds import integer


def untrained(run: Run, i: int) -> Run:
    """The i-th fresh model of this shape, on the same task."""
    config = replace(run.config, seed=integer(0, "untrained control", i))
    _, model = build(config)
    return replace(run, config=config, model=model.to(next(run.model.parameters()).device).eval())


def shuffled(run: Run, i: int) -> Run:
    """The i-th order of this model's own weights; biases and scales, which are vectors, stay."""
    order, model = torch.Generator().manual_seed(integer(0, "shuffled control", i)), copy.deepcopy(run.model)
    with torch.no_grad():
        for matrix in (each for each in model.parameters() if each.ndim > 1):
            entries = matrix.flatten()[torch.randperm(matrix.numel(), generator=order).to(matrix.device)]
            matrix.copy_(entries.reshape(matrix.shape))
    return replace(run, model=model.eval())


CONTROLS: dict[str, Callable[[Run, int], Run]] = {"untrained": untrained, "shuffled": shuffled}
