"""Published figures that runs can be compared with; other packages bring them (entry points `headcount.published`)."""

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
    """One collection of published figures.

    `compare` compares the figures with what is stored in run folders, and returns None if no run is like a published
    model. `describe` turns what `compare` returns into a section.
    """

    compare: Callable[[Sequence[RunFolder]], Result | None]
    describe: Callable[[Any], Section]


PARTS: dict[str, PublishedFigures] = {}
