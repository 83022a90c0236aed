"""Compare runs with published figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headcount.api.comparing import run_folders
from headcount.describing.blocks import Section
from headcount.describing.published import PUBLISHED
from headcount.errors import InputError
from headcount.results import Result
from headcount.runs.folder import RunFolder


@dataclass(frozen=True)
class ComparedWithPublished:
    """Published figures beside those of some runs: as data, and described."""

    name: str
    """Name of the collection of figures."""
    result: Result
    section: Section


def compare_published(runs: Sequence[str | Path]) -> tuple[ComparedWithPublished, ...]:
    """Compare runs with the published figures that are known; raise an error if no run is like a published model.

    `runs` are as in `compare_runs`. Nothing is measured.
    """
    compared = published_beside(run_folders(runs))
    if not compared:
        what = "no published figures are known for these runs"
        raise InputError(what, "the study with published figures is: headcount study reports")
    return compared


def published_beside(folders: Sequence[RunFolder]) -> tuple[ComparedWithPublished, ...]:
    """Return each collection of published figures that has something to compare with these runs."""
    compared = []
    for name in PUBLISHED.names():
        part = PUBLISHED.get(name)
        if (result := part.compare(folders)) is not None:
            compared.append(ComparedWithPublished(name, result, part.describe(result)))
    return tuple(compared)
