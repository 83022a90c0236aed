"""Compare the results of runs with results that others have published, such as accuracies."""

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
    """Published results beside the results of some runs, as data and as a section of a report."""

    name: str
    """Name of the collection of published results."""
    result: Result
    section: Section


def compare_published(runs: Sequence[str | Path]) -> tuple[ComparedWithPublished, ...]:
    """Compare runs with the published results that headcount has; raise an error if no run is like a published model.

    `runs` are as in `compare_runs`. Nothing is measured.
    """
    compared = published_beside(run_folders(runs))
    if not compared:
        what = "headcount has no published results to compare with these models"
        raise InputError(what, "train models of which results were published: headcount study reports")
    return compared


def published_beside(folders: Sequence[RunFolder]) -> tuple[ComparedWithPublished, ...]:
    """Return a comparison for each collection of published results that has models like some of these runs."""
    compared = []
    for name in PUBLISHED.names():
        part = PUBLISHED.get(name)
        if (result := part.compare(folders)) is not None:
            compared.append(ComparedWithPublished(name, result, part.describe(result)))
    return tuple(compared)
