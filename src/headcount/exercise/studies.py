"""The studies of the exercise: the models of five published reports rebuilt with their faults, and `headcount lab`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headcount.studies.file import VerbStudy

if TYPE_CHECKING:
    from headcount.exercise.lab import LabPlan

REPORTS = Path(__file__).parent / "reports.toml"


def _lab_plan(out: Path) -> LabPlan:
    from headcount.exercise.lab import LabPlan  # imports torch, which a list of studies does not need

    return LabPlan(out)


LAB = VerbStudy("Both experiments of the exercise, with one report", "lab", _lab_plan, "addition")
