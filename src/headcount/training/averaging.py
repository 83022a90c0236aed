"""A running average of the weights, which errs less than the last weights do (Polyak and Juditsky 1992)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from headcount.training.checkpoint import TrainingState

EVERY = 5
"""Steps between updates, so that averaging costs next to no time."""


@torch.no_grad()
def update_average(state: TrainingState, decay: float) -> None:
    """Move the average a little towards the weights; a short memory at first, so that it forgets the start."""
    if decay == 0 or state.step % EVERY:
        return
    parameters = {name: p.detach() for name, p in state.model.named_parameters()}
    if not state.average:
        state.average = {name: p.clone() for name, p in parameters.items()}
    now = min(decay, (1 + state.step) / (10 + state.step)) ** EVERY
    torch._foreach_lerp_([state.average[name] for name in parameters], list(parameters.values()), 1 - now)


@contextmanager
def averaged(state: TrainingState) -> Iterator[None]:
    """The model has its average weights inside, if there are any."""
    if not state.average:
        yield
        return
    own = {name: p.detach().clone() for name, p in state.model.named_parameters()}
    state.model.load_state_dict(state.average, strict=False)
    try:
        yield
    finally:
        state.model.load_state_dict(own, strict=False)
