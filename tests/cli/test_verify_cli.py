"""`headcount verify`: the first line is the verdict, the exit code repeats it, and `predict` shows the mistake."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from headcount.cli import main
from headcount.runs.config import RunConfig
from headcount.runs.run import Run
from headcount.runs.train import train_run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("in_tmp", "little_work")]  # whole sequences of 4,096 numbers


def lines_of(capsys: pytest.CaptureFixture[str], *arguments: str, code: int) -> list[str]:
    assert main([*arguments, "--quiet"]) == code
    return [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]


def require_shown(capsys: pytest.CaptureFixture[str], lines: list[str]) -> None:
    """The printed command shows an answer that is wrong."""
    command = next(line for line in lines if line.startswith("headcount predict"))
    assert main([*shlex.split(command)[1:], "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["predicted"] != shown["right"]


def test_a_proved_model(proved_sorter: Run, capsys: pytest.CaptureFixture[str]) -> None:
    name = str(proved_sorter.folder.path)
    first, *others = lines_of(capsys, "verify", name, code=0)
    assert " ".join([first, *others]).startswith(
        f"Proved: {name} is right on every sequence of numbers from 0 to 5, of every length."
    )
    assert main(["verify", name, "--quiet", "--json"]) == 0
    outcome = json.loads(capsys.readouterr().out)
    assert (outcome["type"], outcome["verdict"], outcome["wrong"]) == ("ContextCertificate", "proved", [])
    stored = json.loads(Path(name, "results", "certificate.json").read_text())
    assert stored["verdict"] == "proved"
    assert stored["n_contexts"] == outcome["n_contexts"] == 294


def test_a_model_that_is_searched(tiny_sorter: Run, capsys: pytest.CaptureFixture[str]) -> None:
    name = str(tiny_sorter.folder.path)
    lines = lines_of(capsys, "verify", name, "--seconds", "1", code=1)
    assert lines[0].startswith(f"Refuted: {name} calls ")
    assert "This is a search, not a proof. The model has no attention window" in " ".join(lines)
    require_shown(capsys, lines)


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"until_proved": False, "steps": 5}, "ContextCertificate", "possible contexts were checked"),
        ({"until_proved": False, "steps": 5, "pooling": "mean"}, "WorstMargins", "wrong"),
        ({"until_proved": False, "steps": 5, "pooling": "max"}, "CounterexampleSearch", "exact decision is known"),
    ],
    ids=["contexts", "mean", "max"],
)
def test_untrained_models_are_refuted_in_the_strongest_way(
    provable: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    kind: str,
    words: str,
) -> None:
    train_run(RunConfig.build("sortedness", preset="far", **provable | changes), tmp_path / "run")
    lines = lines_of(capsys, "verify", str(tmp_path / "run"), "--seconds", "1", code=1)
    assert lines[0].startswith("Refuted: ")
    assert words in " ".join(lines)
    require_shown(capsys, lines)
    assert main(["verify", str(tmp_path / "run"), "--seconds", "1", "--quiet", "--json"]) == 1
    outcome = json.loads(capsys.readouterr().out)
    assert (outcome["type"], outcome["verdict"]) == (kind, "refuted")
    assert outcome["wrong"]


def test_training_until_a_proof_ends_with_it(
    provable: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [
        part
        for name, value in provable.items()
        if name != "until_proved"
        for part in (f"--{name.replace('_', '-')}", str(value))
    ]
    command = ["train", "sortedness", "--preset", "far", "--until-proved", *flags, "-o", "proved"]
    lines = lines_of(capsys, *command, code=0)
    assert lines[0].startswith("Proved: proved is right on every sequence of numbers from 0 to 5")
    assert json.loads(Path("proved/results/certificate.json").read_text())["verdict"] == "proved"
    short = [*command[:-1], "short", "--steps", "5", "--eval-every", "5"]
    lines = lines_of(capsys, *short, code=1)
    assert lines[0].startswith("Refuted: short calls ")


@pytest.mark.parametrize("seconds", ["0", "-1", "nan"])
def test_a_search_needs_time(tiny_sorter: Run, capsys: pytest.CaptureFixture[str], seconds: str) -> None:
    assert main(["verify", str(tiny_sorter.folder.path), "--seconds", seconds]) == 2
    assert "--seconds must be above 0" in capsys.readouterr().err
