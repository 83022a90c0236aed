"""Named settings: the reports' data and recipe, to be laid over the defaults (docs/reports.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Preset:
    """Settings by section, and what they are for."""

    help: str
    settings: Mapping[str, Mapping[str, Any]]


_FIXED = {"n_train": 10_000, "n_validation": 2_000, "n_test": 2_000}
_REPORTS_TRAINING = {
    "steps": 50 * 10_000 // 64,
    "batch_size": 64,
    "learning_rate": 1e-3,
    "schedule": "constant",
    "weight_decay": 0.0,
    "beta2": 0.999,
    "averaging": 0.0,
    "hard_share": 0.0,
    "target": None,
}
_ADDITION = {
    "older": Preset(
        "the older reports' data: operands 0..999, 10,000 fixed sums, no pair in two splits",
        {"task": {**_FIXED, "low": 0, "high": 999}},
    ),
    "newer": Preset(
        "the newer reports' data: operands 100..999, 10,000 fixed sums, splits drawn apart so that they overlap",
        {"task": {**_FIXED, "low": 100, "high": 999, "splits_may_overlap": True}},
    ),
    "reports-recipe": Preset(
        "the reports' training: sinusoidal, post-LN, dropout 0.1, Adam at a constant 1e-3, batch 64, 50 epochs",
        {"model": {"encoding": "sinusoidal", "norm": "post", "dropout": 0.1}, "training": _REPORTS_TRAINING},
    ),
}
_SORTEDNESS = {
    "older": Preset(
        "the older reports' data: 10,000 fixed sequences of different numbers, full shuffles, padded with the number 0",
        {"task": {**_FIXED, "negatives": "shuffle", "distinct": True, "padding_is_zero": True}},
    ),
    "newer": Preset(
        "the newer reports' data: 10,000 fixed sequences, max(2, L//3) transpositions, classes by the toss of a coin",
        {"task": {**_FIXED, "negatives": "transpositions", "balance": "coin"}},
    ),
    "reports-model": Preset(
        "the reports' model: 4 layers, d_model 128, 4 heads, d_ff 512, post-LN, dropout, mean pooling, a number table",
        {
            "model": {
                "d_model": 128,
                "n_heads": 4,
                "n_layers": 4,
                "d_ff": 512,
                "norm": "post",
                "dropout": 0.1,
                "pooling": "mean",
                "numbers": "table",
            }
        },
    ),
    "far": Preset(
        "reaches to 4,096: a window of ±1, one layer, small steps in half of the training data. GIVES locality",
        {
            "task": {"narrow": 0.5},
            "model": {"encoding": "relative", "clip_distance": 1, "window": 1, "n_layers": 1, "pooling": "max"},
        },
    ),
    "far-generic": Preset(
        "the farthest without being given anything: causal, no encoding, log-length softmax, one layer, small steps",
        {
            "task": {"narrow": 0.5},
            "model": {"encoding": "none", "causal": True, "softmax": "log-length", "n_layers": 1, "pooling": "max"},
        },
    ),
    "reports-recipe": Preset(
        "the reports' training: Adam at a constant 1e-3, batch 64, 50 epochs of 10,000", {"training": _REPORTS_TRAINING}
    ),
}

PRESETS: dict[str, dict[str, Preset]] = {"addition": _ADDITION, "sortedness": _SORTEDNESS}
"""By task and name."""
