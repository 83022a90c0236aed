"""How a model is trained."""

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator

from headcount.config import config

Count = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0, le=1)]


@config
class TrainingConfig:
    """The recipe."""

    steps: Count = 2000
    """Most optimizer steps."""
    batch_size: Count = 64
    """Examples per step."""
    learning_rate: Annotated[float, Field(gt=0)] = 2e-3
    """Highest learning rate."""
    schedule: Literal["one-cycle", "cosine", "constant"] = "one-cycle"
    """Course of the learning rate."""
    warmup: Fraction = 0.2
    """Share of the steps in which the learning rate rises."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """AdamW's weight decay."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """AdamW's memory of squared gradients."""
    clip_norm: Annotated[float, Field(gt=0)] = 1.0
    """Largest norm of the gradient."""
    averaging: Annotated[float, Field(ge=0, lt=1)] = 0.98
    """Decay of a running average of the weights, which is what is kept; 0 keeps the last weights."""
    hard_share: Annotated[float, Field(ge=0, lt=1)] = 0.25
    """Share of each batch taken from the training examples found hardest so far."""
    target: Fraction | None = None
    """Stop early when the validation set is answered this well (free-running), such as 0.995; none: never."""
    target_evaluations: Count = 3
    """How many evaluations in a row must meet the target."""
    eval_every: Count = 100
    """Steps between evaluations."""
    checkpoint_every: Count = 200
    """Steps between checkpoints."""
    device: str = "auto"
    """auto (CUDA, then MPS, then CPU), or a PyTorch device such as cuda:1."""
    threads: Annotated[int, Field(ge=1, le=256)] = 1
    """CPU threads. Steps this small gain nothing from a second one; another number gives other bytes."""

    @field_validator("device")
    @classmethod
    def _is_a_device(cls, device: str) -> str:
        if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", device):
            raise ValueError("should be auto, cpu, mps, cuda or cuda:N")
        return device
