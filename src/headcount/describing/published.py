"""Published numbers with which runs can be compared; packages provide them by entry points `headcount.published`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headcount.describing.blocks import Section
from headcount.registry import Registry

if TYPE_CHECKING:
    from headcount.results import Result
    from headcount.runs.folder import RunFolder

PUBLISHED = Registry("headcount.describing.published")


@dataclass(frozen=True)
class PublishedFigures:
    """One collection of published numbers, given by two functions.

    `compare` compares the numbers with results in run folders, and returns None if no run resembles a published model.
    `describe` turns the result of `compare` into a section of a report.
    """

    compare: Callable[[Sequence[RunFolder]], Result | None]
    describe: Callable[[Any], Section]


PARTS: dict[str, PublishedFigures] = {}
