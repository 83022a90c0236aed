"""The training loop, top to bottom.

It knows no files: what it learns goes to listeners, and what must outlive a crash to `save`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch

from headcount.errors import HeadcountError
from headcount.models.transformer import Model
from headcount.seeds import integer, stream
from headcount.tasks.base import Examples, Task
from headcount.training.checkpoint import TrainingState
from headcount.training.config import TrainingConfig
from headcount.training.learners import Learner, StepScores, learner_of

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
    examples = task.sample(rng, config.batch_size - n_hard)
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
        reached = scores.validation[learner.target_metric].rate
        for listener in listeners:
            listener.on_evaluation(state.step, scores)
        if config.hard_share and reached >= SEARCH_FROM:
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
        validation, loss, learner.training_scores(task.sample(rng, min(len(held_out), MOST_TRAINING_EXAMPLES)))
    )


# --- schedule ---------------------------------------------------------------------------------------------------------
# The learning rate as a function of the step alone, so that there is no scheduler state to save.


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


# --- averaging --------------------------------------------------------------------------------------------------------
# A running average of the weights, which errs less than the last weights do (Polyak and Juditsky 1992).


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


# --- hard -------------------------------------------------------------------------------------------------------------
# Hard training examples, found and fed back.
#
# Once the model is mostly right, some fresh training examples are tried at each evaluation, and those it is least sure
# of join a pool. A share of every later batch comes from the pool. Held-out examples are never drawn, so never tried.


SEARCH_FROM = 0.9
"""Score from which on a search is worth its time; before, nearly everything is hard."""
TRIED = 4096
"""Fresh examples tried at each search."""
KEPT = 128
"""Of those, how many join the pool."""
POOL = 1024
"""Most examples in the pool; the oldest leave."""


def find_hard(learner: Learner, task: Task, rng: np.random.Generator, pool: Examples) -> Examples:
    """The pool after one more search."""
    tried = task.sample(rng, TRIED)
    hardest = tried[np.argsort(learner.margins(tried), kind="stable")[:KEPT]]
    return np.concatenate([pool, hardest])[-POOL:] if len(pool) else hardest
