"""What the command line does, as functions.

Each returns a typed result and leaves it, with its pictures, in the run folder.
"""

from __future__ import annotations

from headcount.api.looking import HeadsShown, PositionsDrawn, Stretched, show_heads, show_positions, stretch
from headcount.api.training import evaluate, read_evaluation, train, verify

__all__ = [
    "HeadsShown",
    "PositionsDrawn",
    "Stretched",
    "evaluate",
    "read_evaluation",
    "show_heads",
    "show_positions",
    "stretch",
    "train",
    "verify",
]
