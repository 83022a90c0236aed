"""The state of a training as bytes, and back.

Safetensors only: weights, the optimizer's two moments and the pool of hard examples are tensors, the rest is a JSON
header. There is no random state in it, since every stream is made anew from the seed and the step (seeds.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from headcount.errors import CheckpointError
from headcount.models.attention import current_name
from headcount.models.transformer import Model
from headcount.tasks.base import Examples


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


def pack(state: TrainingState, extra: Mapping[str, float]) -> bytes:
    """The state as one safetensors file; `extra` comes back from `unpack`."""
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
    try:
        tensors = {current_name(name): each for name, each in safetensors.torch.load(data).items()}
        size = int.from_bytes(data[:8], "little")
        header: dict[str, Any] = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["headcount"])
        _restore(state, tensors)
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"the checkpoint does not fit this run: {error}") from error
    state.step, state.targets_met = header["step"], header["targets_met"]
    return header


def _restore(state: TrainingState, tensors: dict[str, Tensor]) -> None:
    state.model.load_state_dict(_under("model.", tensors))
    device = next(state.model.parameters()).device
    state.average = {name: tensor.to(device) for name, tensor in _under("average.", tensors).items()}
    state.hard = tensors["hard"].numpy().copy()
    moments, packed = _under("optimizer.", tensors), state.optimizer.state_dict()
    packed["state"] = {
        i: {key: moments[f"{key}.{name}"] for key in ("step", "exp_avg", "exp_avg_sq")}
        for i, (name, _) in enumerate(state.model.named_parameters())
        if f"step.{name}" in moments  # nothing hears some weights of a model without heads: they have no gradient
    }
    state.optimizer.load_state_dict(packed)  # knows which of them belong on the device


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
