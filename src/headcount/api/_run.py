"""What every function here begins with: a run, by name or ready."""

from __future__ import annotations

from pathlib import Path

from headcount.runs.run import Run, load

AnyRun = str | Path | Run


def loaded(run: AnyRun) -> Run:
    """The run itself, whatever was given."""
    return run if isinstance(run, Run) else load(run)
