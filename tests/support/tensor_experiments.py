"""Experiments on tensors, for any module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from headcount.data.dataset import ScoreFunction
from headcount.experiments.experiment import Experiment
from headcount.experiments.models import OpenModel
from headcount.hooks.sites import Sites


def tensor_experiment(
    model: nn.Module, sites: Sites, inputs: Sequence[Tensor], metric: ScoreFunction, **how: Any
) -> Experiment:
    """Any model on given inputs, whose first axis counts the examples."""
    return OpenModel.of_module(model, sites).experiment(list(inputs), metric, **how)
