"""A listener of training that ends it as a bug would."""

from __future__ import annotations

from typing import Any


class Crash(Exception):
    """The planted bug."""


class CrashAt:
    """Raise `Crash` at a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_steps(self, last_step: int, losses: Any, rates: Any) -> None:
        if last_step >= self.step:
            raise Crash

    def on_evaluation(self, step: int, scores: Any) -> None: ...
