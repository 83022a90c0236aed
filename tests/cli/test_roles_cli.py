"""`headcount heads MODEL --stats` for models without a task: names, files, and errors that say what to do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import dataset_models as texts
import pytest

from headcount.analysis.matching import Effort
from headcount.cli import main

pytestmark = pytest.mark.slow  # models of others, or many processes


@pytest.fixture(autouse=True)
def _few_controls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headcount.api.heads.head_roles.__kwdefaults__", {**_defaults(), "n_controls": 2})


def _defaults() -> dict[str, Any]:
    from headcount.api.heads import head_roles

    return dict(head_roles.__kwdefaults__ or {})


@pytest.fixture
def model(in_tmp: Path) -> str:
    texts.classifier(max_position_embeddings=64).float().save_pretrained("model")
    texts.tokenizer().save_pretrained("model")
    return "model"


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--json", "--quiet"]) == 0
    return json.loads(capsys.readouterr().out)


def roles(found: Any, on: str) -> set[str]:
    return {each["role"] for each in found["heads"][0]["standings"] if each["on"] == on}


def test_what_heads_stand_out_for(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, *_ = texts.TEXTS
    found = run_json(capsys, "heads", model, "--stats")
    assert (found["type"], [each["on"] for each in found["inputs"]]) == ("HeadRoles", ["repeated tokens"])
    assert (found["n_controls"], found["controls"]) == (2, ["untrained", "shuffled"])
    assert {"induction", "duplicate", "previous"} <= roles(found, "repeated tokens")
    text = f"{first} {second} {first}"
    found = run_json(capsys, "heads", model, "--stats", "--on", text, "--on", first)
    assert [(each["on"], each["n_texts"]) for each in found["inputs"]] == [("texts", 2), ("repeated tokens", 8)]
    assert "duplicate" in roles(found, "texts")
    assert "matching" not in roles(found, "texts")
    parted = run_json(capsys, "heads", model, "--stats", "--on", text, "--separator", second.split()[0])
    assert {"matching", "separator"} <= roles(parted, "texts")
    assert parted["separators"] == [second.split()[0]]
    Path("data.txt").write_text(" ".join(texts.TEXTS * 12))
    read = run_json(capsys, "heads", model, "--stats", "--data", "data.txt")
    assert read["inputs"][0]["on"] == "texts"
    assert read["inputs"][0]["n_texts"] > 1
    data = {path for each in (found, parted, read) for path in each["files"]["data"]}
    assert len(data) == 3, "another question is another file"
    assert all(Path(path).exists() for each in (found, read) for files in each["files"].values() for path in files)


def test_for_people(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["heads", model, "--stats", "--quiet"]) == 0
    printed = capsys.readouterr().out
    assert "none of 12 heads stands out" in printed, "its weights are random"
    assert "On repeated tokens, no head stands out for first token, previous token" in printed
    assert "Induction: the token after an earlier copy" in printed
    assert "figure:  runs/model/figures/head-roles-controls2/layer-self.png" in printed


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--separator", ">"], "add --stats"),
        (["--data", "x.txt"], "add --stats"),
        (["--stats", "--all-test"], "cannot be combined with --all-test or --head"),
        (["--stats", "--head", "L0H1"], "cannot be combined with --all-test or --head"),
        (["--stats", "--length", "9"], "need a model with a task"),
        (["--stats", "--on", "a text", "--separator", "|"], "no text contains the separator token '|'"),
        (["--stats", "--data", "missing.txt"], "missing.txt"),
    ],
)
def test_faults_are_told(model: str, arguments: list[str], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["heads", model, *arguments]) == 2
    assert what in capsys.readouterr().err


def test_a_run_is_measured_over_its_own_task(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["heads", "sample:addition", "--stats", "--on", "1+1"]) == 2
    assert "leave --on, --data and --separator out" in capsys.readouterr().err


def test_two_models_without_a_task_are_matched_on_texts(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a model and its copy every head is its own partner."""
    monkeypatch.setattr(Effort.__init__, "__defaults__", (4, 9, 0, 0))
    shutil.copytree(model, "twin")
    on = [part for text in texts.TEXTS[:4] for part in ("--on", text)]
    found = run_json(capsys, "heads", model, "--stats", *on, "--match", "twin")
    assert found["type"] == "HeadRoles"
    (matching,) = found["matches"]
    assert (matching["name"], matching["other"], matching["n"]) == ("model", "twin", 4)
    assert matching["stand_ins"] == "untrained"
    pairs = [pair for kind in matching["kinds"] for pair in kind["pairs"]]
    assert all(pair["head"] == pair["partner"] and pair["attention"]["value"] > 0.999 for pair in pairs)
    assert main(["heads", model, "--stats", *on, "--match", "twin", "--quiet"]) == 0
    assert "model beside twin" in capsys.readouterr().out
    assert main(["heads", model, "--stats", "--match", "twin"]) == 2
    assert 'give texts: --on "a text", four or more, or --data FILE' in capsys.readouterr().err
    assert main(["heads", model, "--stats", *on[:4], "--match", "twin"]) == 2
    assert "2 inputs are too few to match heads" in capsys.readouterr().err
