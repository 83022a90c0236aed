"""How a model runs while it is measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """Dropout off inside; every module's own mode comes back."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
