"""What the command line does, as functions.

Each returns a typed result and leaves it, with its pictures, in the run folder.
"""

from __future__ import annotations

from headcount.api.ablating import HeadsAblated, ablate_heads
from headcount.api.looking import (
    HeadsGlanced,
    HeadShown,
    HeadsShown,
    PositionsDrawn,
    Stretched,
    glance_heads,
    glance_over,
    show_head,
    show_heads,
    show_positions,
    stretch,
)
from headcount.api.predicting import Predicted, predict
from headcount.api.pruning import HeadsPruned, prune_heads
from headcount.api.specialisation import HeadsMatched, HeadsMeasured, head_stats, match_heads
from headcount.api.training import evaluate, next_command, read_evaluation, train, verify

__all__ = [
    "HeadShown",
    "HeadsAblated",
    "HeadsGlanced",
    "HeadsMatched",
    "HeadsMeasured",
    "HeadsPruned",
    "HeadsShown",
    "PositionsDrawn",
    "Predicted",
    "Stretched",
    "ablate_heads",
    "evaluate",
    "glance_heads",
    "glance_over",
    "head_stats",
    "match_heads",
    "next_command",
    "predict",
    "prune_heads",
    "read_evaluation",
    "show_head",
    "show_heads",
    "show_positions",
    "stretch",
    "train",
    "verify",
]
