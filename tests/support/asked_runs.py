"""Analyses that take any model, asked about a run."""

from __future__ import annotations

from typing import Any

from headcount.analysis import exhaustive_check, length_generalisation
from headcount.analysis.exhaustive_check import Certificate
from headcount.analysis.length_generalisation import Stretch
from headcount.experiments.models import RunModel
from headcount.runs.run import Run


def verify(run: Run, **asked: Any) -> Certificate:
    return exhaustive_check.check_every_example(RunModel.of(run), **asked)


def stretch(run: Run, *asked: Any, **settings: Any) -> Stretch:
    return length_generalisation.stretch(RunModel.of(run), *asked, **settings)
