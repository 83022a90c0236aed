"""What the command line does, as functions.

Each returns a typed result and leaves it, with its pictures, in the run folder.
"""

from __future__ import annotations

from headcount.api.ablating import HeadsAblated, ablate_heads
from headcount.api.looking import (
    HeadsGlanced,
    HeadsShown,
    PositionsDrawn,
    Stretched,
    glance_heads,
    show_heads,
    show_positions,
    stretch,
)
from headcount.api.pruning import HeadsPruned, prune_heads
from headcount.api.specialisation import HeadsMatched, HeadsMeasured, head_stats, match_heads
from headcount.api.training import evaluate, read_evaluation, train, verify

__all__ = [
    "HeadsAblated",
    "HeadsGlanced",
    "HeadsMatched",
    "HeadsMeasured",
    "HeadsPruned",
    "HeadsShown",
    "PositionsDrawn",
    "Stretched",
    "ablate_heads",
    "evaluate",
    "glance_heads",
    "head_stats",
    "match_heads",
    "prune_heads",
    "read_evaluation",
    "show_heads",
    "show_positions",
    "stretch",
    "train",
    "verify",
]
