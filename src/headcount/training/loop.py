"""The training loop, top to bottom, and its state as bytes.

It knows no files: what it learns goes to listeners, and what must outlive a crash to `save`.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from headcount.errors import CheckpointError, HeadcountError
from headcount.models.transformer import Model
from headcount.seeds import integer, stream
from headcount.stats import Proportion
from headcount.tasks.base import Examples, Task
from headcount.training.config import TrainingConfig
from headcount.training.evaluation import Learner, learner_of

REPORT_EVERY = 10
"""Steps between reports to the listeners: reading a loss waits for the device, so it is not done at every step."""
MOST_TRAINING_EXAMPLES = 500
"""Training examples that an evaluation scores: enough to see a gap, and quick."""
SEARCH_FROM = 0.9
"""Score from which on a search for hard examples is worth its time; before, nearly everything is hard."""
SEARCHED, KEPT, POOL = 4096, 128, 1024
"""Fresh examples scored at each search; those of them that join the pool; and its size, the oldest leaving."""
AVERAGE_EVERY = 5
"""Steps between updates of the average, so that it costs next to no time."""
FLOOR = 1e-4
"""The last learning rate of a falling schedule, as a share of the highest."""


@dataclass(frozen=True)
class StepScores:
    """How good a model is after some step of its training."""

    validation: Mapping[str, Proportion]
    """By name; all of the same examples."""
    validation_loss: float
    """Cross-entropy as in training, of the pass that gave the scores."""
    training: Mapping[str, Proportion]
    """One score on examples such as it is trained on, by name."""

    def to_dict(self) -> dict[str, float]:
        """As it is logged."""
        logged: dict[str, float] = {}
        for prefix, shares in (("", self.validation), ("training_", self.training)):
            logged |= {f"{prefix}n": share.n for share in shares.values()}
            logged |= {f"{prefix}{name}": share.rate for name, share in shares.items()}
        return logged | {"validation_loss": self.validation_loss}


class Listener(Protocol):
    """Someone who wants to know how training goes."""

    def on_steps(self, last_step: int, losses: Sequence[float], rates: Sequence[float]) -> None:
        """Losses and learning rates of the steps up to `last_step` that were not told yet."""

    def on_evaluation(self, step: int, scores: StepScores) -> None:
        """How good the model is on the validation set, and on examples such as it is trained on."""


@dataclass
class TrainingState:
    """Everything that a training step changes."""

    model: Model
    optimizer: torch.optim.Optimizer
    step: int = 0
    """Steps done."""
    targets_met: int = 0
    """Evaluations in a row that met the target."""
    average: dict[str, Tensor] = field(default_factory=dict)
    """Running average of the weights, if there is one."""
    hard: Examples = field(default_factory=lambda: np.empty((0, 0), dtype=np.int64))
    """Training examples that were found hard, the newest last."""


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
    losses: list[Tensor] = []
    rates: list[float] = []
    model.train()

    while not _is_done(state, config):
        rates.append(learning_rate(config, state.step))
        for group in optimizer.param_groups:
            group["lr"] = rates[-1]

        torch.manual_seed(integer(seed, "dropout", state.step))
        rng, n_hard = stream(seed, "batch", state.step), round(config.hard_share * config.batch_size)
        examples = task.sample(rng, config.batch_size - (n_hard if len(state.hard) else 0))
        if n_hard and len(state.hard):
            examples = np.concatenate([examples, state.hard[rng.integers(len(state.hard), size=n_hard)]])
        loss = learner.loss(examples)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
        optimizer.step()
        state.step += 1
        update_average(state, config.averaging)

        losses.append(loss.detach())
        stopping = asked_to_stop()
        evaluates = state.step % config.eval_every == 0 or state.step == config.steps
        saves = state.step % config.checkpoint_every == 0 or state.step == config.steps or stopping

        if state.step % REPORT_EVERY == 0 or evaluates or saves:
            told = torch.stack(losses).tolist()
            if not np.isfinite(told).all():
                raise diverged(state.step)
            for listener in listeners:
                listener.on_steps(state.step, told, rates)
            losses, rates = [], []
        if evaluates:
            _evaluate(state, task, learner, config, seed, listeners)
        if saves:
            save(state)
        if stopping:
            break
    return _is_done(state, config)


def diverged(step: int) -> HeadcountError:
    """The error for losses or weights that are no longer numbers."""
    return HeadcountError(
        f"training diverged: by step {step} the loss or the weights are no longer numbers",
        "start again in another folder with a lower --learning-rate or --clip-norm",
    )


def _is_done(state: TrainingState, config: TrainingConfig) -> bool:
    met = config.target is not None and state.targets_met >= config.target_evaluations
    return state.step >= config.steps or met


def _evaluate(
    state: TrainingState, task: Task, learner: Learner, config: TrainingConfig, seed: int, listeners: Sequence[Listener]
) -> None:
    """Score the model with its average weights; training examples have a stream of their own, so nothing changes.

    Once it is mostly right, the fresh training examples that it is least sure of join a pool, and a share of every
    later batch comes from there. Held-out examples are never drawn, so never in it.
    """
    held_out, rng = task.split("validation"), stream(seed, "training accuracy", state.step)
    with averaged(state):
        validation, loss = learner.scores(held_out)
        if not np.isfinite(loss):
            raise diverged(state.step)
        training = learner.training_scores(task.sample(rng, min(len(held_out), MOST_TRAINING_EXAMPLES)))
        for listener in listeners:
            listener.on_evaluation(state.step, StepScores(validation, loss, training))
        reached = validation[learner.target_metric].rate
        if config.hard_share and reached >= SEARCH_FROM:
            fresh = task.sample(stream(seed, "hard", state.step), SEARCHED)
            hardest = fresh[np.argsort(learner.margins(fresh), kind="stable")[:KEPT]]
            state.hard = np.concatenate([state.hard, hardest])[-POOL:] if len(state.hard) else hardest
    if config.target is not None:
        state.targets_met = state.targets_met + 1 if reached >= config.target else 0


def learning_rate(config: TrainingConfig, step: int) -> float:
    """The rate at `step` (from 0), by the step alone: there is no scheduler state to save.

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


@torch.no_grad()
def update_average(state: TrainingState, decay: float) -> None:
    """Move the average of the weights, which errs less than the last ones do (Polyak and Juditsky 1992), towards them.

    It has a short memory at first, so that it forgets the start.
    """
    if decay == 0 or state.step % AVERAGE_EVERY:
        return
    parameters = {name: p.detach() for name, p in state.model.named_parameters()}
    if not state.average:
        state.average = {name: p.clone() for name, p in parameters.items()}
    now = min(decay, (1 + state.step) / (10 + state.step)) ** AVERAGE_EVERY
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


def pack(state: TrainingState, extra: Mapping[str, float]) -> bytes:
    """The state as one safetensors file; `extra` comes back from `unpack`.

    Weights, the optimizer's two moments and the pool of hard examples are tensors, the rest is a JSON header. There is
    no random state in it, since every stream is made anew from the seed and the step (seeds.py).
    """
    header = {"step": state.step, "targets_met": state.targets_met, **extra}
    tensors = {f"model.{name}": tensor for name, tensor in state.model.state_dict().items()}
    tensors |= {f"average.{name}": tensor for name, tensor in state.average.items()}
    for name, parameter in state.model.named_parameters():
        for key, moment in state.optimizer.state[parameter].items():
            tensors[f"optimizer.{key}.{name}"] = moment
    tensors["hard"] = torch.from_numpy(state.hard)
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return safetensors.torch.save(on_cpu, metadata={"headcount": json.dumps(header)})


def unpack(data: bytes, state: TrainingState) -> dict[str, Any]:
    """Put packed bytes into a freshly built state; returns the header."""
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "average": {}, "optimizer": {}, "hard": {}}
    try:
        for packed_name, tensor in safetensors.torch.load(data).items():
            part, _, name = packed_name.partition(".")
            parts[part][name] = tensor
        size = int.from_bytes(data[:8], "little")
        header: dict[str, Any] = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["headcount"])
        state.model.load_state_dict(parts["model"])
        device = next(state.model.parameters()).device
        state.average = {name: tensor.to(device) for name, tensor in parts["average"].items()}
        state.hard = parts["hard"][""].numpy().copy()
        moments, packed = parts["optimizer"], state.optimizer.state_dict()
        packed["state"] = {
            i: {key: moments[f"{key}.{name}"] for key in ("step", "exp_avg", "exp_avg_sq")}
            for i, (name, _) in enumerate(state.model.named_parameters())
            if f"step.{name}" in moments  # some weights of a model without heads reach no output: no gradient
        }
        state.optimizer.load_state_dict(packed)  # knows which of them belong on the device
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"the checkpoint does not fit this run: {error}") from error
    state.step, state.targets_met = header["step"], header["targets_met"]
    return header
