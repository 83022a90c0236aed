"""Compare headcount with other ways to do the same, side by side in one run: `make bench`, `python -m benchmarks NAME`.

Every benchmark is a module with a function `measure`, which yields rows of one table.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Ratio:
    """One row of the table: headcount's figure, the figure that it is compared with, and what headcount promises."""

    question: str
    ours: str
    other: str
    ratio: float
    promise: str
    kept: bool

    @classmethod
    def at_most(cls, question: str, ours: str, other: str, ratio: float, most: float) -> Ratio:
        """Return a row that promises a ratio of at most `most`."""
        return cls(question, ours, other, ratio, f"at most {most:g}", ratio <= most)

    @classmethod
    def at_least(cls, question: str, ours: str, other: str, ratio: float, least: float, *, valid: bool = True) -> Ratio:
        """Return a row that promises a ratio of at least `least`; it is kept only if the comparison is valid."""
        return cls(question, ours, other, ratio, f"at least {least:g}", ratio >= least and valid)


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """Run a function, and return its result and its processor time in seconds."""
    started = time.process_time()
    return work(), time.process_time() - started
