"""Trackers of a study are passed on to its trainings, and change neither folders nor receipts."""

from __future__ import annotations

from pathlib import Path

import pytest

from headcount.errors import ConfigError
from headcount.studies.file import read_study
from headcount.studies.plan import make_plan

FILE = 'task = "addition"\nseeds = 2\n[settings]\nsteps = 10\n'


def written(path: Path, more: str) -> Path:
    path.write_text(FILE + more)
    return path


def test_trackers_are_flags_of_the_training_alone(tmp_path: Path) -> None:
    plain = make_plan(read_study(written(tmp_path / "plain.toml", "")), tmp_path / "runs" / "plain")
    study = read_study(written(tmp_path / "tracked.toml", 'tracker = ["mlflow", "wandb"]\n'))
    tracked = make_plan(study, tmp_path / "runs" / "tracked")
    assert [run.folder for run in tracked.runs] == [run.folder for run in plain.runs]
    assert [run.steps for run in tracked.runs] == [run.steps for run in plain.runs], "receipts stay valid"
    run = tracked.runs[0]
    assert run.command(run.steps[0])[-4:] == ["--tracker", "mlflow", "--tracker", "wandb"]
    assert "--tracker" not in plain.runs[0].command(plain.runs[0].steps[0])


@pytest.mark.parametrize(("given", "message"), [('"mlflw"', "did you mean 'mlflow'"), ("3", "give names")])
def test_faults_name_the_tracker(tmp_path: Path, given: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"settings.tracker(.|\n)*{message}"):
        read_study(written(tmp_path / "study.toml", f"tracker = {given}\n"))
