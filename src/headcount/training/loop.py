"""The training loop, top to bottom.

It knows no files: what it learns goes to listeners, and what must outlive a crash to `save`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch

from headcount.errors import HeadcountError
from headcount.models.build import Model
from headcount.seeds import integer, stream
from headcount.tasks.base import Examples, Task
from headcount.training.averaging import averaged, update_average
from headcount.training.checkpoint import TrainingState
from headcount.training.config import TrainingConfig
from headcount.training.hard import MOSTLY_RIGHT, find_hard
from headcount.training.learners import Learner, StepScores, learner_of
from headcount.training.schedule import learning_rate

REPORT_EVERY = 10
"""Steps between reports to the listeners: reading a loss waits for the device, so it is not done at every step."""

MOST_TRAINING_EXAMPLES = 500
"""Training examples that an evaluation looks at: enough to see a gap, and quick."""


class Listener(Protocol):
    """Someone who wants to know how training goes."""

    def on_steps(self, last_step: int, losses: Sequence[float], rates: Sequence[float]) -> None:
        """Losses and learning rates of the steps up to `last_step` that were not told yet."""

    def on_evaluation(self, step: int, scores: StepScores) -> None:
        """How good the model is on the validation set, and on examples such as it is trained on."""


def new_state(model: Model, config: TrainingConfig) -> TrainingState:
    """A training that has not begun."""
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=config.learning_rate,
        betas=(0.9, config.beta2),
        weight_decay=config.weight_decay,
        fused=next(model.parameters()).device.type in ("cpu", "cuda"),
    )
    return TrainingState(model, optimizer)


def fit(
    state: TrainingState,
    task: Task,
    config: TrainingConfig,
    seed: int,
    *,
    listeners: Sequence[Listener] = (),
    save: Callable[[TrainingState], None] = lambda state: None,
    asked_to_stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Train until the steps are done or the target is met; False if asked to stop before that."""
    model, optimizer, learner = state.model, state.optimizer, learner_of(state.model, task)
    losses: list[torch.Tensor] = []
    rates: list[float] = []
    model.train()

    while state.step < config.steps and not _target_met(state, config):
        rates.append(learning_rate(config, state.step))
        for group in optimizer.param_groups:
            group["lr"] = rates[-1]

        torch.manual_seed(integer(seed, "dropout", state.step))
        loss = learner.loss(_draw(state, task, config, stream(seed, "batch", state.step)))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
        optimizer.step()
        state.step += 1
        update_average(state, config.averaging)

        losses.append(loss.detach())
        stopping = asked_to_stop()
        is_last = state.step == config.steps or stopping
        evaluates = state.step % config.eval_every == 0 or state.step == config.steps
        saves = state.step % config.checkpoint_every == 0 or is_last

        if state.step % REPORT_EVERY == 0 or evaluates or saves:
            _tell(listeners, state.step, torch.stack(losses).tolist(), rates)
            losses, rates = [], []
        if evaluates:
            _evaluate(state, task, learner, config, seed, listeners)
        if saves:
            save(state)
        if stopping:
            break
    return state.step == config.steps or _target_met(state, config)


def diverged(step: int) -> HeadcountError:
    """What to say when numbers are no longer numbers."""
    return HeadcountError(
        f"training diverged: by step {step} the loss or the weights are no longer numbers",
        "start again in another folder with a lower --learning-rate or --clip-norm",
    )


def _target_met(state: TrainingState, config: TrainingConfig) -> bool:
    return config.target is not None and state.targets_met >= config.target_evaluations


def _draw(state: TrainingState, task: Task, config: TrainingConfig, rng: np.random.Generator) -> Examples:
    n_hard = round(config.hard_share * config.batch_size) if len(state.hard) else 0
    examples = task.draw(rng, config.batch_size - n_hard)
    if not n_hard:
        return examples
    return np.concatenate([examples, state.hard[rng.integers(len(state.hard), size=n_hard)]])


def _tell(listeners: Sequence[Listener], step: int, losses: list[float], rates: list[float]) -> None:
    if not np.isfinite(losses).all():
        raise diverged(step)
    for listener in listeners:
        listener.on_steps(step, losses, rates)


def _evaluate(
    state: TrainingState,
    task: Task,
    learner: Learner,
    config: TrainingConfig,
    seed: int,
    listeners: Sequence[Listener],
) -> None:
    with averaged(state):
        scores = _scores(state, task, learner, seed)
        reached = scores.validation[learner.aim].rate
        for listener in listeners:
            listener.on_evaluation(state.step, scores)
        if config.hard_share and reached >= MOSTLY_RIGHT:
            state.hard = find_hard(learner, task, stream(seed, "hard", state.step), state.hard)
    if config.target is not None:
        state.targets_met = state.targets_met + 1 if reached >= config.target else 0


def _scores(state: TrainingState, task: Task, learner: Learner, seed: int) -> StepScores:
    """Training examples come from a stream of their own, so that watching changes nothing."""
    held_out = task.split("validation")
    validation, loss = learner.scores(held_out)
    if not np.isfinite(loss):
        raise diverged(state.step)
    rng = stream(seed, "training accuracy", state.step)
    return StepScores(
        validation, loss, learner.training_scores(task.draw(rng, min(len(held_out), MOST_TRAINING_EXAMPLES)))
    )
