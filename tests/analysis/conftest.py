"""Untrained models for analyses that only need models with different heads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from headcount.runs.config import RunConfig
from headcount.runs.run import Run, build


@pytest.fixture(scope="session")
def untrained() -> Callable[..., Run]:
    """Return a run with other settings and an untrained model whose heads attend sharply to different keys."""

    def make(run: Run, **settings: Any) -> Run:
        config = RunConfig.build(run.config.task_name, base=run.config, **settings)
        task, model = build(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if ".query." in name or ".key." in name:
                    parameter.mul_(4)
        return replace(run, config=config, task=task, model=model.eval())

    return make
