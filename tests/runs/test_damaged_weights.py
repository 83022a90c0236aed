"""Weights that are not finite, or do not fit, raise an error on loading that names them."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from headcount.cli import main
from headcount.errors import CheckFailed, HeadcountError, RunError
from headcount.runs.config import RunConfig
from headcount.runs.folder import RunFolder, TrainingRecord, digest
from headcount.runs.run import Run, load
from headcount.runs.train import train_run


@pytest.fixture
def rewritten(tiny_run: Run, tmp_path: Path) -> Callable[[dict[str, Tensor]], Path]:
    """The tiny run with some other tensors, and a manifest that says it is right."""

    def rewrite(changed: dict[str, Tensor]) -> Path:
        folder = Path(shutil.copytree(tiny_run.folder.path, tmp_path / "run"))
        data = save(load_file(folder / "model.safetensors") | changed)
        (folder / "model.safetensors").write_bytes(data)
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["files"]["model.safetensors"] = digest(data)
        (folder / "manifest.json").write_text(json.dumps(manifest))
        return folder

    return rewrite


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_one_weight_that_is_no_number_is_told_by_its_name(
    tiny_run: Run, rewritten: Callable[[dict[str, Tensor]], Path], number: float, capsys: pytest.CaptureFixture[str]
) -> None:
    name = next(name for name in tiny_run.model.state_dict() if name.endswith("bias"))
    broken = tiny_run.model.state_dict()[name].clone()
    broken.view(-1)[-1] = number
    folder = rewritten({name: broken})
    for verb in (["predict", str(folder), "3+4"], ["evaluate", str(folder)], ["ablate", str(folder)]):
        assert main([*verb, "--json"]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert f"{name} holds numbers that are not finite (1 of {broken.numel()}" in printed.err


def test_weights_of_another_shape_are_refused(tiny_run: Run, rewritten: Callable[[dict[str, Tensor]], Path]) -> None:
    name = next(iter(tiny_run.model.state_dict()))
    with pytest.raises(HeadcountError, match=r"does not fit the settings in config\.json"):
        load(rewritten({name: torch.zeros(3)}))


def test_an_output_that_is_no_number_is_no_answer(
    tiny_run: Run, rewritten: Callable[[dict[str, Tensor]], Path]
) -> None:
    """The weights are finite, but so large that the output overflows."""
    huge = {name: torch.full_like(each, 3e38) for name, each in tiny_run.model.state_dict().items()}
    run = load(rewritten(huge))
    with pytest.raises(CheckFailed, match=r"output on 3\+4 holds NaN"):
        run.predict_one("3+4")
    assert main(["evaluate", str(run.folder.path)]) == 1
    assert main(["heads", str(run.folder.path), "--stats", "--quiet"]) == 1


@pytest.mark.parametrize("line", ["null", "0", "[]", "{}", '{"step": 1, "loss": null}', '{"step": "1"}', "[" * 50_000])
def test_a_damaged_log_is_told(tiny_run: Run, tmp_path: Path, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(shutil.copytree(tiny_run.folder.path, tmp_path / "run"))
    with (folder / "log.jsonl").open("a") as log:
        log.write(f"{line}\n")
    assert main(["train", "addition", "-o", str(folder), "--resume", "--quiet"]) == 2
    assert "log.jsonl differs from the file that this run wrote" in capsys.readouterr().err
    (folder / "manifest.json").unlink()  # an unfinished run has no digest of its log
    with pytest.raises(RunError, match=r"log\.jsonl is damaged"):
        RunFolder(folder).read_log()


@pytest.mark.parametrize("damage", ["null", '{"step": Infinity, "seconds": 1}', "[" * 50_000, None])
def test_damaged_timings_are_nobodys_loss(tiny_run: Run, tmp_path: Path, damage: str | None) -> None:
    folder = RunFolder(Path(shutil.copytree(tiny_run.folder.path, tmp_path / "run")))
    folder.timings_file.unlink()
    if damage is None:
        os.mkfifo(folder.timings_file)
    else:
        folder.timings_file.write_text(damage)
    assert folder.read_timings() == []


def test_a_folder_records_how_its_training_ended(tiny_run: Run, tmp_path: Path) -> None:
    folder = RunFolder(Path(shutil.copytree(tiny_run.folder.path, tmp_path / "run")))
    log, record = folder.read_log(), folder.read_training()
    losses = [line["loss"] for line in log if "loss" in line]
    assert record.steps == len(losses)
    assert record.training_loss == pytest.approx(sum(losses[-50:]) / len(losses[-50:]))
    assert record.validation_loss == [line["validation_loss"] for line in log if "n" in line][-1]
    assert record.seconds == folder.read_timings()[-1]["seconds"]
    assert re.fullmatch(r"cpu \(.+\)", record.device)
    for file in (folder.timings_file, folder.environment_file, folder.manifest_file):  # as a run that is not finished
        file.unlink()
    folder.log_file.write_text('{"step": 1, "loss": 2.5}\n{"step": 1, "n": 20, "accuracy": 0.5}\n')
    assert folder.read_training() == TrainingRecord(1, 2.5, None, None, "")
    folder.log_file.write_text("")
    assert folder.read_training() == TrainingRecord(None, None, None, None, "")


@pytest.mark.parametrize("device", ["", 0, [], "gpu"])
def test_a_damaged_device_is_told(tiny: dict[str, Any], tmp_path: Path, device: Any) -> None:
    with pytest.raises(RuntimeError, match="crash"):
        train_run(RunConfig.build("addition", **tiny), tmp_path / "run", listeners=[Crash()])
    (tmp_path / "run" / "environment.json").write_text(json.dumps({"device": device}))
    with pytest.raises(HeadcountError, match="is not a device"):
        train_run(RunConfig.build("addition", **tiny), tmp_path / "run", resume=True)


class Crash:
    def on_steps(self, *_: Any) -> None:
        raise RuntimeError("crash")

    def on_evaluation(self, *_: Any) -> None: ...
