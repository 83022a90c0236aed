"""What the command line does, as functions.

Each returns a typed result and leaves it, with its pictures, in the model's folder. A name is imported when it is first
used, so that `headcount predict` does not wait for matplotlib.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headcount.api.ablation import ablate_heads
    from headcount.api.lab import run_lab
    from headcount.api.opening import open_model, open_run
    from headcount.api.prediction import PredictionPair, predict
    from headcount.api.pruning import SavedPruning, prune_heads
    from headcount.api.saving import Saved
    from headcount.api.training import evaluate, next_command, read_evaluation, train, verify
    from headcount.api.viewing import (
        head_stats,
        match_heads,
        show_head,
        show_heads,
        show_positions,
        stretch,
        summarise_attention,
    )

_HOMES = {
    "ablation": ("ablate_heads",),
    "lab": ("run_lab",),
    "opening": ("open_model", "open_run"),
    "prediction": ("PredictionPair", "predict"),
    "pruning": ("SavedPruning", "prune_heads"),
    "saving": ("Saved",),
    "training": ("evaluate", "next_command", "read_evaluation", "train", "verify"),
    "viewing": (
        *("head_stats", "match_heads", "show_head", "show_heads", "show_positions", "stretch"),
        "summarise_attention",
    ),
}
_HOME_OF = {name: f"headcount.api.{home}" for home, names in _HOMES.items() for name in names}

__all__ = [
    "PredictionPair",
    "Saved",
    "SavedPruning",
    "ablate_heads",
    "evaluate",
    "head_stats",
    "match_heads",
    "next_command",
    "open_model",
    "open_run",
    "predict",
    "prune_heads",
    "read_evaluation",
    "run_lab",
    "show_head",
    "show_heads",
    "show_positions",
    "stretch",
    "summarise_attention",
    "train",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'headcount.api' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)
