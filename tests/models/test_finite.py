"""Weights that are not finite raise an error that names them; masks may hold minus infinity."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from headcount.errors import InputError
from headcount.models.finite import require_finite, require_finite_model


def test_the_first_tensor_that_is_not_finite_is_named() -> None:
    weights = {"good": torch.ones(3), "layer.0.bias": torch.zeros(8, 8), "later": torch.full((2,), torch.inf)}
    weights["layer.0.bias"][0, :3] = torch.nan
    with pytest.raises(InputError, match=r"of here, layer\.0\.bias holds .* not finite \(3 of 64 NaN\)"):
        require_finite(weights, "here")
    weights["layer.0.bias"][1, 0] = -torch.inf
    with pytest.raises(InputError, match="3 of 64 NaN, 1 of 64 infinite"):
        require_finite(weights, "here")
    require_finite({"good": weights["good"], "numbers": torch.arange(3), "flags": torch.ones(2).bool()}, "here")


def test_buffers_may_be_masks() -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))
    model.register_buffer("positions", torch.arange(4))
    require_finite_model(model, "here")
    model.mask = torch.full((2, 2), torch.nan)
    with pytest.raises(InputError, match="mask holds"):
        require_finite_model(model, "here")
    with torch.no_grad():
        model.weight[0, 0] = torch.inf
    with pytest.raises(InputError, match=r"weight holds .*1 of 4 infinite"):
        require_finite_model(model, "here")
