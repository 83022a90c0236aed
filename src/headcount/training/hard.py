"""Hard training examples, found and fed back.

Once the model is mostly right, some fresh training examples are tried at each evaluation, and those it is least sure
of join a pool. A share of every later batch comes from the pool. Held-out examples are never drawn, so never tried.
"""

from __future__ import annotations

import numpy as np

from headcount.tasks.base import Examples, Task
from headcount.training.learners import Learner

MOSTLY_RIGHT = 0.9
"""Score from which on a search is worth its time; before, nearly everything is hard."""
TRIED = 4096
"""Fresh examples tried at each search."""
KEPT = 128
"""Of those, how many join the pool."""
POOL = 1024
"""Most examples in the pool; the oldest leave."""


def find_hard(learner: Learner, task: Task, rng: np.random.Generator, pool: Examples) -> Examples:
    """The pool after one more search."""
    tried = task.draw(rng, TRIED)
    hardest = tried[np.argsort(learner.margins(tried), kind="stable")[:KEPT]]
    return np.concatenate([pool, hardest])[-POOL:] if len(pool) else hardest
