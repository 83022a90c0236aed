"""Classifiers of a few hundred weights whose positions see few neighbours, and their sequences."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headcount.models.config import ClassifierConfig
from headcount.models.transformer import Classifier
from headcount.training.contexts import ContextShape

SMALL: dict[str, Any] = {
    **{"encoding": "relative", "clip_distance": 1, "window": 1, "n_layers": 1, "pooling": "top-score"},
    **{"d_model": 8, "d_ff": 16, "n_heads": 2},
}
MODELS: dict[str, dict[str, Any]] = {
    "one layer": {},
    "causal": {"causal": True},
    "two layers, causal": {"n_layers": 2, "causal": True},
    "two layers": {"n_layers": 2},
    "window of 2": {"window": 2, "clip_distance": 3},
    "post-norm": {"norm": "post"},
    "alibi": {"encoding": "alibi"},
    "alibi, symmetric": {"encoding": "alibi-symmetric"},
    "t5": {"encoding": "t5"},
    "no encoding, causal": {"encoding": "none", "causal": True},
    "number table": {"numbers": "table"},
    "one head cut out": {"pruned": "L0H1"},
    "all heads cut out": {"pruned": "L0H0,L0H1"},
    "first layer cut out": {"n_layers": 2, "causal": True, "pruned": "L0H0,L0H1"},
    "mean": {"pooling": "mean"},
}
"""Every kind of model whose contexts determine its answers."""


def classifier(
    n_values: int = 4, *, seed: int = 0, n_classes: int = 2, padded: bool = True, **changes: Any
) -> Classifier:
    """Return a model with random weights that are large enough for leads of both signs."""
    torch.manual_seed(seed)
    model = Classifier(ClassifierConfig(**SMALL | changes), n_values + 1, n_classes, n_values if padded else None)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.startswith("to_logits"):
                parameter.add_(0.4 * torch.randn(parameter.shape))
    return model.requires_grad_(requires_grad=False).eval()


def all_sequences(n_values: int, longest: int) -> list[tuple[int, ...]]:
    """Return every sequence of 1 to `longest` tokens."""
    return [each for length in range(1, longest + 1) for each in product(range(n_values), repeat=length)]


def rows_of(sequences: list[tuple[int, ...]], pad_id: int) -> torch.Tensor:
    """Return sequences as one batch, with padding after short ones."""
    width = max(map(len, sequences))
    return torch.tensor([[*each, *[pad_id] * (width - len(each))] for each in sequences])


def leads_by_hand(table: NDArray[Any], shape: ContextShape, sequence: tuple[int, ...]) -> list[float]:
    """Return the lead of each context of a sequence, one after the other."""
    padded = (shape.n_tokens,) * shape.left + sequence + (shape.n_tokens,) * shape.right
    return [float(table[padded[i : i + shape.width]]) for i in range(len(sequence))]


def allowed_pairs(n_values: int) -> NDArray[np.bool_]:
    """Return the pairs that a sorted sequence may contain."""
    return np.array([[a <= b for b in range(n_values)] for a in range(n_values)])
