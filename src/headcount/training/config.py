"""The settings of training."""

import re
from collections import Counter
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from headcount.config import config, misfit

Count = Annotated[int, Field(ge=1)]
MOST_ROUNDS = 3
"""With the setting `until_proved`, training takes at most this many times `steps` optimizer steps."""
Fraction = Annotated[float, Field(ge=0, le=1)]


def _listed(steps: Any) -> Any:
    """Return the steps in a text such as `0,50,100` as a list; other values are returned as they are."""
    if not isinstance(steps, str):
        return steps
    return [] if steps == "none" else [step for step in steps.split(",") if step.strip()]


def _in_order(steps: tuple[int, ...]) -> tuple[int, ...]:
    """Return the steps in ascending order; raise an error if a step is listed twice."""
    if repeated := [str(step) for step, count in sorted(Counter(steps).items()) if count > 1]:
        raise ValueError(f"{', '.join(repeated)} is listed more than once: list each step once")
    return tuple(sorted(steps))


Steps = Annotated[tuple[Annotated[int, Field(ge=0)], ...], BeforeValidator(_listed), AfterValidator(_in_order)]


@config
class TrainingConfig:
    """The settings of the optimizer, the schedule and the training loop."""

    steps: Count = 2000
    """Maximum number of optimizer steps."""
    batch_size: Count = 64
    """Number of examples per step."""
    learning_rate: Annotated[float, Field(gt=0)] = 2e-3
    """Highest learning rate."""
    schedule: Literal["one-cycle", "cosine", "constant"] = "one-cycle"
    """Schedule of the learning rate."""
    warmup: Fraction = 0.2
    """Fraction of the steps in which the learning rate rises."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Weight decay of AdamW."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Decay of AdamW's running average of squared gradients."""
    clip_norm: Annotated[float, Field(gt=0)] = 1.0
    """Largest norm of the gradient; larger gradients are scaled down."""
    averaging: Annotated[float, Field(ge=0, lt=1)] = 0.98
    """Decay of the running average of the weights, which becomes the trained model; 0 uses the last weights."""
    hard_share: Annotated[float, Field(ge=0, lt=1)] = 0.25
    """Fraction of each batch that is drawn from the hardest training examples so far."""
    target: Fraction | None = None
    """Validation accuracy (free-running) at which training stops early, such as 0.995; none: never."""
    target_evaluations: Count = 3
    """Number of consecutive evaluations that must reach the target."""
    until_proved: bool = False
    """Train on the contexts (what a position sees) that are answered wrong, until the model is right at every length.

    Half of each batch then contains such contexts, in sequences of the training lengths. Training may take up to three
    times as many steps as `steps`.
    """
    eval_every: Count = 100
    """Number of steps between evaluations."""
    checkpoint_every: Count = 200
    """Number of steps between checkpoints."""
    device: str = "auto"
    """auto (CUDA, then MPS, then CPU), or a PyTorch device such as cuda:1."""
    threads: Annotated[int, Field(ge=1, le=256)] = 1
    """Number of CPU threads; small steps do not get faster with more, and another number changes the exact weights."""
    snapshots: Steps = ()
    """Steps whose weights are kept, such as 0,50,100; `RUN@50` then names the model after 50 steps."""

    @property
    def most_steps(self) -> int:
        """The largest number of optimizer steps that training may take."""
        return self.steps * (MOST_ROUNDS if self.until_proved else 1)

    @model_validator(mode="after")
    def _require_steps_of_snapshots(self) -> Self:
        if late := [step for step in self.snapshots if step > self.most_steps]:
            steps = ", ".join(map(str, late))
            raise misfit("snapshots", self.snapshots, f"no step {steps}: training ends at step {self.most_steps}")
        return self

    @field_validator("device")
    @classmethod
    def _is_a_device(cls, device: str) -> str:
        if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", device):
            raise ValueError("must be auto, cpu, mps, cuda or cuda:N")
        return device
