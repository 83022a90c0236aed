"""The training loop, and its state (weights, optimizer, counters) as bytes for a checkpoint.

The loop does not write files: it reports losses and scores to listeners, and passes its state to a function `save`.
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
from headcount.training.contexts import ContextShape, lead_table
from headcount.training.evaluation import ClassLearner, Learner, learner_of
from headcount.training.violations import Decision, as_examples

REPORT_EVERY = 10
"""Number of steps between reports of the loss to listeners; reading a loss has to wait for the GPU."""
MOST_TRAINING_EXAMPLES = 500
"""Number of training examples that an evaluation scores, to compare with the validation set."""
SEARCH_FROM = 0.9
"""Smallest accuracy at which training begins to search for hard examples; below it, nearly all examples are hard."""
SEARCHED, KEPT, POOL = 4096, 128, 1024
"""A search for hard examples scores `SEARCHED` new examples and adds the hardest `KEPT` to a pool of at most `POOL`."""
PROOF_SHARE, PROOF_POOL, MOST_NEW = 0.5, 20_000, 1500
"""With the setting `until_proved`, a fraction `PROOF_SHARE` of each batch are sequences with wrong contexts.

(A context is the tokens that a position sees.) The sequences come from a pool of at most `PROOF_POOL`, half of them
from the last search. A search adds at most `MOST_NEW` sequences of each class.
"""
PROVED, NARROW = 0.1, 1.0
"""Smallest logit lead of the right class in every context of a proved model; smallest lead to stop training a context.

A context is the tokens that a position sees.
"""
PROOF_FLOOR = 0.1
"""With the setting `until_proved`: the last learning rate of a falling schedule, as a fraction of the highest."""
AVERAGE_EVERY = 5
"""Number of steps between updates of the running average of the weights; rare updates take almost no time."""
COUNTERS = ("step", "targets_met", "n_newest", "is_proved")
"""The fields of `TrainingState` that are plain numbers."""
FLOOR = 1e-4
"""The last learning rate of a falling schedule, as a fraction of the highest learning rate."""


@dataclass(frozen=True)
class StepScores:
    """The scores of a model at one evaluation during training."""

    validation: Mapping[str, Proportion]
    """The scores on the validation set, by name, such as "accuracy"."""
    validation_loss: float
    """The mean cross-entropy on the validation set, in nats."""
    training: Mapping[str, Proportion]
    """The scores on new examples drawn like the training examples, by name."""
    n_wrong_contexts: int | None = None
    """The number of contexts (tokens that a position sees) with a wrong answer or too small a lead of the right one.

    None if contexts were not enumerated.
    """

    def to_dict(self) -> dict[str, float]:
        """Return the scores as numbers by name, as they are written into the log."""
        logged: dict[str, float] = {}
        for prefix, shares in (("", self.validation), ("training_", self.training)):
            logged |= {f"{prefix}n": share.n for share in shares.values()}
            logged |= {f"{prefix}{name}": share.rate for name, share in shares.items()}
        contexts = {} if self.n_wrong_contexts is None else {"wrong_contexts": self.n_wrong_contexts}
        return logged | {"validation_loss": self.validation_loss} | contexts


class Listener(Protocol):
    """An observer of training, such as a log or a progress bar."""

    def on_steps(self, last_step: int, losses: Sequence[float], rates: Sequence[float]) -> None:
        """Receive the losses and learning rates of the steps since the last report, up to `last_step`."""

    def on_evaluation(self, step: int, scores: StepScores) -> None:
        """Receive the scores that were measured after this training step."""


@dataclass
class TrainingState:
    """Everything that a training step changes: weights, optimizer, counters and the pool of hard examples."""

    model: Model
    optimizer: torch.optim.Optimizer
    step: int = 0
    """The number of finished steps."""
    targets_met: int = 0
    """The number of consecutive evaluations that reached the target."""
    average: dict[str, Tensor] = field(default_factory=dict)
    """The running average of the weights, by parameter name; empty if weights are not averaged."""
    hard: Examples = field(default_factory=lambda: np.empty((0, 0), dtype=np.int64))
    """The pool of hard training examples (answered wrong or nearly so), the newest last."""
    n_newest: int = 0
    """The number of hard examples that the last search added."""
    is_proved: bool = False
    """With the setting `until_proved`: whether every context was answered right at the last evaluation."""


def new_state(model: Model, config: TrainingConfig) -> TrainingState:
    """Return the state at the beginning of training: the model with a new AdamW optimizer, at step 0."""
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
    keep: Callable[[TrainingState], None] = lambda state: None,
    asked_to_stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Train a model on a task, in place, until all steps are done or the target accuracy is reached.

    Return False if `asked_to_stop` returned True before. `save` receives the state at each checkpoint, and `keep`
    receives it at each step in `config.snapshots`.
    """
    model, optimizer, learner = state.model, state.optimizer, learner_of(state.model, task)
    losses: list[Tensor] = []
    rates: list[float] = []
    model.train()
    if state.step == 0 and 0 in config.snapshots:
        keep(state)

    while not _is_done(state, config):
        rates.append(learning_rate(config, state.step))
        for group in optimizer.param_groups:
            group["lr"] = rates[-1]

        torch.manual_seed(integer(seed, "dropout", state.step))
        loss = learner.loss(_draw_batch(state, task, config, stream(seed, "batch", state.step)))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
        optimizer.step()
        state.step += 1
        update_average(state, config.averaging)

        losses.append(loss.detach())
        stopping = asked_to_stop()
        evaluates = state.step % config.eval_every == 0 or state.step == config.most_steps
        saves = state.step % config.checkpoint_every == 0 or state.step == config.most_steps or stopping

        if state.step % REPORT_EVERY == 0 or evaluates or saves:
            reported = torch.stack(losses).tolist()
            if not np.isfinite(reported).all():
                raise diverged(state.step)
            for listener in listeners:
                listener.on_steps(state.step, reported, rates)
            losses, rates = [], []
        if evaluates:
            _evaluate(state, task, learner, config, seed, listeners)
        if state.step in config.snapshots:
            keep(state)  # before the checkpoint: a resumed training does not come back to this step
        if saves:
            save(state)
        if stopping:
            break
    return _is_done(state, config)


def _draw_batch(state: TrainingState, task: Task, config: TrainingConfig, rng: np.random.Generator) -> Examples:
    """Return the examples of the next training step: new ones and, once there is a pool of hard ones, some of these."""
    share = PROOF_SHARE if config.until_proved else config.hard_share
    n_hard = round(share * config.batch_size) if len(state.hard) else 0
    examples = task.sample(rng, config.batch_size - n_hard)
    if not n_hard:
        return examples
    which = rng.integers(len(state.hard), size=n_hard)
    if config.until_proved and state.n_newest:
        which[: n_hard // 2] = len(state.hard) - 1 - which[: n_hard // 2] % state.n_newest
    return np.concatenate([examples, state.hard[which]])


def diverged(step: int) -> HeadcountError:
    """Build the error for a training whose loss or weights are no longer finite at this step."""
    return HeadcountError(
        f"training diverged: by step {step}, the loss or the weights are no longer finite numbers",
        "start again in another folder with a lower --learning-rate or --clip-norm",
    )


def _is_done(state: TrainingState, config: TrainingConfig) -> bool:
    met = config.target is not None and state.targets_met >= config.target_evaluations
    return state.step >= config.most_steps or met or state.is_proved


def _evaluate(
    state: TrainingState, task: Task, learner: Learner, config: TrainingConfig, seed: int, listeners: Sequence[Listener]
) -> None:
    """Evaluate the model with its average weights, report the scores to listeners, and search for hard examples.

    Scoring draws its training examples from a separate random stream, so that it does not change training. Once the
    model is mostly right, the new training examples with the smallest margins join a pool, from which a fraction of
    every later batch is drawn. The pool never contains held-out examples.
    """
    held_out, rng = task.split("validation"), stream(seed, "training accuracy", state.step)
    with averaged(state):
        validation, loss = learner.scores(held_out)
        if not np.isfinite(loss):
            raise diverged(state.step)
        training = learner.training_scores(task.sample(rng, min(len(held_out), MOST_TRAINING_EXAMPLES)))
        reached = validation[learner.target_metric].rate
        n_wrong = None
        if config.until_proved and reached >= SEARCH_FROM:
            n_wrong = _train_on_wrong_contexts(state, learner, stream(seed, "contexts", state.step))
        for listener in listeners:
            listener.on_evaluation(state.step, StepScores(validation, loss, training, n_wrong))
        if config.hard_share and not config.until_proved and reached >= SEARCH_FROM:
            fresh = task.sample(stream(seed, "hard", state.step), SEARCHED)
            hardest = fresh[np.argsort(learner.margins(fresh), kind="stable")[:KEPT]]
            state.hard = np.concatenate([state.hard, hardest])[-POOL:] if len(state.hard) else hardest
    if config.target is not None:
        state.targets_met = state.targets_met + 1 if reached >= config.target else 0


def _train_on_wrong_contexts(state: TrainingState, learner: Learner, rng: np.random.Generator) -> int:
    """Enumerate all contexts (the tokens that a position sees), and return the number of those answered wrong.

    Sequences that contain wrong contexts, or contexts with too small a lead of the right class, are added to the pool
    of hard examples. The sequences have training lengths and are not held out. If no context is wrong, the model is
    proved.
    """
    assert isinstance(learner, ClassLearner), "only classifiers can be trained until they are proved"
    task, shape = learner.task, ContextShape.on_task(learner.model, learner.task)
    allowed = task.allowed_neighbours
    assert allowed is not None, "the settings were checked before training"
    leads = lead_table(learner.model, shape, all_cores=False)
    decision = Decision(shape, allowed, leads, PROVED)
    state.is_proved = decision.is_right
    lengths = range(task.trained_lengths[0], task.trained_lengths[1] + 1)
    narrow = Decision(shape, allowed, leads, NARROW)
    rows = as_examples(narrow.wrong_sequences(rng, lengths, MOST_NEW), task.longest)
    held_out = {row.tobytes() for name in ("validation", "test") for row in task.split(name)}
    rows = rows[[row.tobytes() not in held_out for row in rows]]
    assert set(task.lengths(rows).tolist()) <= set(lengths), "training never leaves its lengths"
    state.hard = np.concatenate([state.hard.reshape(-1, task.longest), rows])[-PROOF_POOL:]
    state.n_newest = len(rows)
    return len(decision.wrong_contexts) + len(decision.wrong_edges)


def learning_rate(config: TrainingConfig, step: int) -> float:
    """Return the learning rate at `step` (from 0); it depends on the step only, so there is no state to save.

    one-cycle   a cosine up from 1/25 of the highest rate, then a cosine down (Smith 2018, arXiv 1803.09820)
    cosine      a straight line up from 0, then a cosine down
    constant    the highest rate throughout
    """
    if config.schedule == "constant":
        return config.learning_rate
    rising = config.warmup * config.steps
    if step < rising:
        done = (step + 1) / rising
        rise = _between(1 / 25, 1.0, done) if config.schedule == "one-cycle" else min(done, 1.0)
        return config.learning_rate * rise
    lowest = PROOF_FLOOR if config.until_proved else FLOOR
    return config.learning_rate * _between(1.0, lowest, (step - rising) / max(config.steps - rising, 1))


def _between(start: float, end: float, done: float) -> float:
    """Interpolate between `start` and `end` along half a cosine; `done` is the finished fraction, from 0 to 1."""
    return end + (start - end) * (1 + math.cos(math.pi * min(done, 1.0))) / 2


@torch.no_grad()
def update_average(state: TrainingState, decay: float) -> None:
    """Update the running average of the weights in `state` (Polyak and Juditsky 1992).

    A model with average weights is more accurate than one with the last weights. The decay is smaller at first, so that
    the average forgets the initial weights.
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
    """Return a context in which the model has the running average of its weights, if weights are averaged."""
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
    """Return a training state as the bytes of a safetensors file, with further numbers `extra`.

    Weights, the optimizer's two moments and the pool of hard examples are tensors; the rest is a JSON header. No random
    state is stored, because every random stream depends on the seed and the step only (seeds.py).
    """
    header = {**{name: getattr(state, name) for name in COUNTERS}, **extra}
    tensors = {f"model.{name}": tensor for name, tensor in state.model.state_dict().items()}
    tensors |= {f"average.{name}": tensor for name, tensor in state.average.items()}
    for name, parameter in state.model.named_parameters():
        for key, moment in state.optimizer.state[parameter].items():
            tensors[f"optimizer.{key}.{name}"] = moment
    tensors["hard"] = torch.from_numpy(state.hard)
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return safetensors.torch.save(on_cpu, metadata={"headcount": json.dumps(header)})


def unpack(data: bytes, state: TrainingState) -> dict[str, Any]:
    """Load the bytes that `pack` returned into a new training state; return the header, which holds `extra`."""
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
            if f"step.{name}" in moments  # weights that do not affect the output have no gradient and no moments
        }
        state.optimizer.load_state_dict(packed)  # moves the moments to the right device
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"the training cannot be resumed, because its checkpoint does not fit its settings: {error}",
            "start again in another folder with -o",
        ) from error
    for name in COUNTERS:
        setattr(state, name, header[name])
    return header
