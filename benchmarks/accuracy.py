"""How much processor time does training need to reach 99.5 % free-running exact match on held-out sums?

Headcount's recipe is compared with that of the exercise's reports: post-LN, dropout 0.1, a fixed set of 10,000 sums
that is loaded item by item, Adam at 1e-3, batches of 64. The reports' recipe is also tried without dropout, which makes
it faster.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks import Ratio
from benchmarks.race import EVERY, compare, train_ours, train_theirs
from headcount.runs.config import RunConfig

GOAL, LONGEST = 0.995, 480.0
"""The exact match to reach, and the largest processor time in seconds."""
RECIPES: dict[str, dict[str, Any]] = {
    "ours": {},
    "the reports' recipe without its dropout": {"dropout": 0.0},
    "the reports' recipe": {},
}


def measure() -> Iterator[Ratio]:
    """Train two seeds with each recipe."""
    question = f"addition: processor time to {GOAL:.1%} free-running"
    return compare("benchmarks.accuracy", list(RECIPES), (0, 1), question, 6, "at least 6, aim 10")


def train(name: str, seed: int) -> None:
    """Train one model with one recipe, and print the report of its training."""
    if name == "ours":
        target = {"eval_every": EVERY, "target": GOAL, "target_evaluations": 1}
        train_ours(RunConfig.build("addition", seed=seed, **target), GOAL)
    else:
        config = RunConfig.build("addition", seed=seed, preset=["newer", "reports-recipe"], **RECIPES[name])
        train_theirs(config, ("source", "decoder_input", "labels"), GOAL, LONGEST)


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(sys.argv[1], int(sys.argv[2]))
