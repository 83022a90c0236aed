"""Snapshots of a training: weights at chosen steps, which every verb opens as `RUN@STEP`."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from crashing import Crash, CrashAt

from headcount.api import evaluate, open_model, prune_heads, report
from headcount.cli import main
from headcount.errors import ConfigError, InputError, RunError
from headcount.runs.config import RunConfig
from headcount.runs.folder import RunFolder
from headcount.runs.run import Run, build, load, locate
from headcount.runs.train import train_run
from headcount.training import loop

STEPS = (0, 4, 7, 12)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory, tiny_run: Run) -> Path:
    """The folder of a tiny run with snapshots."""
    path = tmp_path_factory.mktemp("snapshots") / "run"
    train_run(RunConfig.build("addition", base=tiny_run.config, snapshots=STEPS), path)
    return path


@pytest.fixture(scope="module")
def kept_sorter(tmp_path_factory: pytest.TempPathFactory, tiny_sorter: Run) -> Path:
    """The folder of a tiny sorter with a snapshot of step 4."""
    path = tmp_path_factory.mktemp("snapshots") / "sorter"
    train_run(RunConfig.build("sortedness", base=tiny_sorter.config, snapshots=(4,)), path)
    return path


# --- training ---------------------------------------------------------------------------------------------------------


def test_snapshots_do_not_change_the_training(kept: Path, tiny_run: Run) -> None:
    run = load(kept)
    assert run.weights_sha256 == tiny_run.weights_sha256
    assert run.folder.log_file.read_bytes() == tiny_run.folder.log_file.read_bytes()
    names = sorted(file.name for file in (kept / "snapshots").iterdir() if file.is_file())
    assert names == [f"{step:09d}.safetensors" for step in STEPS]
    assert [name for name in run.folder.read_manifest()["files"] if "/" in name] == [f"snapshots/{n}" for n in names]


def test_the_last_snapshot_is_the_trained_model_and_the_first_is_untrained(kept: Path) -> None:
    last = load(f"{kept}@12")
    assert last.weights_sha256 == load(kept).weights_sha256
    assert [last.predict(f"{a}+7") for a in range(10)] == [load(kept).predict(f"{a}+7") for a in range(10)]
    first = load(f"{kept}@0")
    assert first.weights_sha256 != last.weights_sha256
    initial = build(first.config)[1].state_dict()
    assert all(tensor.equal(initial[name]) for name, tensor in first.model.state_dict().items())


def test_a_snapshot_has_the_weights_of_a_training_that_ends_there(tiny: dict[str, Any], tmp_path: Path) -> None:
    """With a constant learning rate, step 7 does not depend on the number of steps that follow."""
    settings = tiny | {"schedule": "constant", "averaging": 0.9}
    longer = train_run(RunConfig.build("addition", **settings, snapshots="7"), tmp_path / "longer")
    shorter = train_run(RunConfig.build("addition", **settings | {"steps": 7}), tmp_path / "shorter")
    snapshot = load(f"{longer.name}@7")
    assert snapshot.weights_sha256 == shorter.weights_sha256 != longer.weights_sha256
    steps = [line["step"] for line in snapshot.folder.read_log()]
    assert steps == [line["step"] for line in shorter.folder.read_log() if line["step"] < 7 or "loss" in line]
    assert snapshot.folder.read_training().steps == 7
    assert snapshot.folder.read_training().training_loss == shorter.folder.read_training().training_loss


@pytest.mark.parametrize("crash", [1, 3, 5, 8, 11])
def test_a_crashed_training_resumes_to_the_same_snapshots(
    kept: Path, tiny: dict[str, Any], tmp_path: Path, crash: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "REPORT_EVERY", 1)
    config = RunConfig.build("addition", **tiny, snapshots=STEPS)
    with pytest.raises(Crash):
        train_run(config, tmp_path / "run", listeners=[CrashAt(crash)])
    train_run(config, tmp_path / "run", resume=True)
    for file in ("manifest.json", "config.json", *(f"snapshots/{step:09d}.safetensors" for step in STEPS)):
        assert (tmp_path / "run" / file).read_bytes() == (kept / file).read_bytes(), file


def test_a_training_that_ends_early_keeps_the_snapshots_so_far(tiny: dict[str, Any], tmp_path: Path) -> None:
    settings = tiny | {"target": 0.0, "target_evaluations": 1}
    run = train_run(RunConfig.build("addition", **settings, snapshots=(2, 4, 8)), tmp_path / "run")
    assert run.folder.read_manifest()["steps"] == 4
    assert load(f"{run.name}@4").weights_sha256 == run.weights_sha256
    with pytest.raises(RunError, match=r"no snapshot of step 8(.|\n)*there are snapshots of the steps 2, 4"):
        load(f"{run.name}@8")


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", ["7,0,4,12", " 0, 4,7,12,", [12, 4, 0, 7], (0, 4, 7, 12)])
def test_steps_are_listed_in_any_order(steps: Any) -> None:
    config = RunConfig.build("addition", snapshots=steps)
    assert config.training.snapshots == STEPS
    assert RunConfig.from_dict(json.loads(config.to_json())) == config


@pytest.mark.parametrize("nothing", ["", "none", [], ()])
def test_without_snapshots_the_settings_are_written_as_before(nothing: Any) -> None:
    plain = RunConfig.build("addition")
    assert RunConfig.build("addition", base=RunConfig.build("addition", snapshots="5"), snapshots=nothing) == plain
    assert "snapshots" not in plain.to_json()


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ("5,13,20", r"no step 13, 20: training ends at step 12"),
        ("4,5,4", r"4 is listed more than once"),
        ("-1", r"greater than or equal to 0"),
        ("a,5", r"valid integer"),
        (5, r"valid tuple"),
    ],
)
def test_steps_that_training_does_not_have_are_refused(steps: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"training\.snapshots(.|\n)*{why}"):
        RunConfig.build("addition", steps=12, snapshots=steps)


def test_until_proved_may_take_three_times_the_steps() -> None:
    assert RunConfig.build("sortedness", preset="far", steps=10, until_proved=True, snapshots="30").training.snapshots


# --- names ------------------------------------------------------------------------------------------------------------


def test_a_step_without_a_snapshot_lists_those_there_are(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["heads", f"{kept}@5"]) == 2
    error = capsys.readouterr().err
    assert f"no snapshot of step 5 in {kept}" in error
    assert "there are snapshots of the steps 0, 4, 7, 12" in error


@pytest.mark.parametrize("name", ["sample:addition@5", "sample:sortedness@0"])
def test_samples_have_no_snapshots(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["heads", name]) == 2
    error = capsys.readouterr().err
    assert "no snapshot of step" in error
    assert "--snapshots" in error


def test_names_that_are_no_snapshots(kept: Path, tmp_path: Path) -> None:
    for name in ("nowhere@5", f"{kept}@last", f"{kept}@", f"{kept}@-1"):
        with pytest.raises(InputError, match="there is no model in"):
            open_model(name)
    with pytest.raises(InputError, match="no trained model with the name"):
        locate("sample:none@5")
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(InputError, match="there is no model in"):
        open_model(f"{tmp_path / 'hub'}@5")


def test_a_folder_of_that_name_is_meant(kept: Path, tiny: dict[str, Any], tmp_path: Path) -> None:
    shutil.copytree(kept, tmp_path / "mine@3")
    assert load(tmp_path / "mine@3").weights_sha256 == load(kept).weights_sha256
    assert load(f"{tmp_path / 'mine@3'}@4").weights_sha256 == load(f"{kept}@4").weights_sha256
    with pytest.raises(RunError, match="it means the weights of a run after a training step"):
        train_run(RunConfig.build("addition", **tiny), Path(f"{kept}@4"))


def test_a_changed_snapshot_is_noticed(kept: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(kept, tmp_path / "copy"))
    RunFolder(copy).snapshot_file(4).write_bytes(RunFolder(copy).snapshot_file(7).read_bytes())
    with pytest.raises(RunError, match="differs from the file that this run wrote"):
        load(f"{copy}@4")
    assert load(f"{copy}@7")


def test_an_unfinished_run_has_to_be_finished_first(tiny: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(Crash):
        train_run(RunConfig.build("addition", **tiny, snapshots=STEPS), tmp_path / "run", listeners=[CrashAt(8)])
    with pytest.raises(RunError, match=r"not finished(.|\n)*--resume") as error:
        load(f"{tmp_path / 'run'}@4")
    assert f"-o {tmp_path / 'run'} " in str(error.value)


# --- verbs ------------------------------------------------------------------------------------------------------------

VERBS = {
    "ablate": "ablate {run}@4 --n 4 --replacements zero --quiet",
    "audit": "audit {run}@4 --n 20 --quiet --only HC101",
    "claim": "claim {run}@4 D0 prunable-together --n 30 --anyway",
    "evaluate": "evaluate {run}@4",
    "heads": "heads {run}@4",
    "heads --on": "heads {run}@4 --on 3+4",
    "heads --match": "heads {run}@4 --stats --match {run}@12",
    "patch": "patch {run}@4 3+4 8+4 --heads E0H1",
    "positions": "positions {sorter}@4 --n 4",
    "predict": "predict {run}@4 3+4 --without E0H1",
    "prune": "prune {run}@4 --n 4 --orders 2 --quiet",
    "report": "report {run}@4 {run}@12 --stored --examples 2 -o page.html --quiet",
    "routes": "routes {run}@4 --n 20 --quiet",
    "stretch": "stretch {sorter}@4 --lengths 4 --n 4 --negatives shuffle --quiet",
    "verify": "verify {run}@4 --quiet",
    "weights": "weights {run}@4 --n 64 --quiet",
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.slow
@pytest.mark.usefixtures("little_work")
def test_every_verb_opens_a_snapshot(
    verb: str, kept: Path, kept_sorter: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, folder in (("run", kept), ("sorter", kept_sorter)):
        shutil.copytree(folder, in_tmp / name)
    own = [*(in_tmp / "run").rglob("*.json"), *(in_tmp / "sorter").rglob("*.json")]
    assert main(VERBS[verb].format(run="run", sorter="sorter").split()) in (0, 1), capsys.readouterr().err
    results = [file for file in in_tmp.rglob("*.json") if file not in own]
    homes = {in_tmp / name / "snapshots" / step / "results" for name in ("run", "sorter") for step in ("4", "12")}
    assert {file.parent for file in results} <= homes, "the results of a snapshot are not those of the run"


def test_results_of_a_snapshot_have_its_weights(kept: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(kept, tmp_path / "copy"))
    result = evaluate(f"{copy}@4", save=True)
    assert result.weights_sha256 == load(f"{copy}@4").weights_sha256 != load(copy).weights_sha256
    assert (copy / "snapshots" / "4" / "results" / "evaluation-test.json").exists()
    assert not (copy / "results").exists()


def test_a_pruned_snapshot_is_a_run_of_its_own(kept: Path, in_tmp: Path) -> None:
    prune_heads(f"{kept}@4", heads=["E0H1"], out="small", fine_tune=3, quiet=True)
    small = load("small")
    assert small.folder.read_manifest()["pruned_from"] == load(f"{kept}@4").weights_sha256
    assert small.folder.read_manifest()["steps"] == 7
    assert [line["step"] for line in small.folder.read_log() if "loss" in line] == list(range(1, 8))
    with pytest.raises(RunError, match="this run has none"):
        load("small@4")


def test_descriptions_tell_snapshots_from_the_trained_model(kept_sorter: Path, tiny_sorter: Run) -> None:
    whole, early = open_model(kept_sorter).description, open_model(f"{kept_sorter}@4").description
    assert whole.digest == open_model(tiny_sorter).description.digest != early.digest
    assert early.label == f"{whole.label}, step 4"


def test_the_report_has_the_command_that_trains_a_snapshot(kept: Path, in_tmp: Path) -> None:
    shutil.copytree(kept, in_tmp / "run")
    report("run@4", out="page.html", stored=True, n_examples=2, quiet=True)
    page = (in_tmp / "page.html").read_text()
    assert "--snapshots 4 -o run" in page
    assert "This model is the snapshot after 4 steps." in page
