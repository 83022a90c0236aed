"""Trackers get the numbers of a training, continue after an interruption, and never stop or change it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

import headcount
from headcount.errors import InputError, Interrupted
from headcount.runs.config import RunConfig
from headcount.runs.trackers import CLIENTS, MLFLOW_FLAGS, flat_settings, require_trackers, tracker_names
from headcount.runs.train import train_run

TINY: dict[str, Any] = {
    **{"d_model": 8, "n_heads": 2, "d_ff": 16, "n_encoder_layers": 1, "n_decoder_layers": 1, "digits": 2},
    **{"steps": 12, "batch_size": 8, "eval_every": 4, "checkpoint_every": 4, "n_validation": 20, "n_test": 20},
    **{"threads": 1, "device": "cpu"},
}


class CrashAt:
    """A listener that ends the training as a crash would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_steps(self, last_step: int, losses: Any, rates: Any) -> None:
        pass

    def on_evaluation(self, step: int, scores: Any) -> None:
        if step >= self.step:
            raise KeyError("crash")


class FakeClient:
    """The part of `mlflow.tracking.MlflowClient` that is used; runs live in a class variable, by their store."""

    stores: ClassVar[dict[str, dict[str, Any]]] = {}

    def __init__(self, tracking_uri: str) -> None:
        assert tracking_uri.startswith("file://")
        assert all(os.environ.get(flag) == "true" for flag in MLFLOW_FLAGS)
        self.store = self.stores.setdefault(tracking_uri, {"experiments": {}, "runs": {}})

    def get_experiment_by_name(self, name: str) -> Any:
        known = self.store["experiments"].get(name)
        return known and SimpleNamespace(experiment_id=known)

    def create_experiment(self, name: str) -> str:
        return str(self.store["experiments"].setdefault(name, "17"))

    def create_run(self, experiment_id: str, run_name: str | None = None) -> Any:
        assert experiment_id == "17"
        run_id = f"run{len(self.store['runs'])}"
        self.store["runs"][run_id] = {"name": run_name, "status": "RUNNING", "metrics": [], "params": {}}
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id))

    def search_runs(self, experiment_ids: list[str], max_results: int = 1000) -> list[Any]:
        return [
            SimpleNamespace(
                info=SimpleNamespace(run_id=run_id),
                data=SimpleNamespace(metrics={metric.key: metric.value for metric in run["metrics"]}),
            )
            for run_id, run in self.store["runs"].items()
        ][:max_results]

    def get_metric_history(self, run_id: str, key: str) -> list[Any]:
        return [metric for metric in self.store["runs"][run_id]["metrics"] if metric.key == key]

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = (), tags: Any = ()) -> None:
        self.store["runs"][run_id]["metrics"] += list(metrics)
        self.store["runs"][run_id]["params"] |= {each.key: each.value for each in params}

    def update_run(self, run_id: str, status: str | None = None, name: str | None = None) -> None:
        self.store["runs"][run_id]["status"] = status

    def set_terminated(self, run_id: str, status: str | None = None, end_time: int | None = None) -> None:
        self.store["runs"][run_id]["status"] = status

    def delete_run(self, run_id: str) -> None:
        del self.store["runs"][run_id]


def metric(key: str, value: float, timestamp: int, step: int) -> Any:
    """Make what `mlflow.entities.Metric` is."""
    return SimpleNamespace(key=key, value=value, timestamp=timestamp, step=step)


class FakeRun:
    """The part of a `wandb.Run` that is used."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options, self.logged = options, list[tuple[int, dict[str, float]]]()
        self.exit_code: int | None = None

    def log(self, data: dict[str, float], step: int) -> None:
        assert not self.logged or step >= self.logged[-1][0], "W&B leaves out steps that go back"
        self.logged.append((step, data))

    def finish(self, exit_code: int | None = None) -> None:
        self.exit_code = exit_code


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Fake modules of MLflow and Weights & Biases; returns the stores of the one and the runs of the other."""
    runs = list[FakeRun]()

    def init(**options: Any) -> FakeRun:
        runs.append(FakeRun(options))
        return runs[-1]

    mlflow, tracking, entities, wandb = (ModuleType(name) for name in ("mlflow", "tracking", "entities", "wandb"))
    tracking.MlflowClient = FakeClient  # type: ignore[attr-defined]
    entities.Metric, entities.Param = metric, lambda key, value: SimpleNamespace(key=key, value=value)  # type: ignore[attr-defined]
    wandb.init, wandb.Settings = init, lambda **options: options  # type: ignore[attr-defined]
    for name, module in {
        "mlflow": mlflow,
        "mlflow.tracking": tracking,
        "mlflow.entities": entities,
        "wandb": wandb,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    for flag in (*MLFLOW_FLAGS, "WANDB_ERROR_REPORTING"):
        monkeypatch.delenv(flag, raising=False)
    monkeypatch.setattr(FakeClient, "stores", {})
    yield {"mlflow": FakeClient.stores, "wandb": runs}
    for flag in (*MLFLOW_FLAGS, "WANDB_ERROR_REPORTING"):
        os.environ.pop(flag, None)


def bytes_of(path: Path) -> dict[str, bytes]:
    """The files of a run without what trackers and clocks write."""
    return {
        file.name: file.read_bytes()
        for file in path.iterdir()
        if file.is_file() and file.name not in ("timings.jsonl", ".lock")
    }


def test_both_trackers_get_every_number_and_change_no_byte(clients: dict[str, Any], tmp_path: Path) -> None:
    config = RunConfig.build("addition", **TINY)
    plain = train_run(config, tmp_path / "plain")
    tracked = train_run(config, tmp_path / "tracked", trackers=["mlflow", "wandb"])
    assert bytes_of(tracked.folder.path) == bytes_of(plain.folder.path)
    (store,) = clients["mlflow"].values()
    ((_, run),) = store["runs"].items()
    losses = {line["step"]: line["validation_loss"] for line in tracked.folder.read_log() if "validation_loss" in line}
    logged = {each.step: each.value for each in run["metrics"] if each.key == "validation/loss"}
    assert logged == losses
    assert (run["status"], run["name"], run["params"]["model.n_heads"]) == ("FINISHED", "tracked", "2")
    (report,) = clients["wandb"]
    assert {step: data["validation/loss"] for step, data in report.logged if "validation/loss" in data} == losses
    assert (report.options["mode"], report.options["dir"], report.exit_code) == ("offline", str(tracked.folder.path), 0)
    assert report.options["config"]["training.steps"] == 12


def test_a_resumed_training_continues_the_same_run(clients: dict[str, Any], tmp_path: Path) -> None:
    config, names = RunConfig.build("addition", **TINY), ["mlflow", "wandb"]
    with pytest.raises(KeyError, match="crash"):
        train_run(config, tmp_path / "run", trackers=names, listeners=[CrashAt(8)])
    (store,) = clients["mlflow"].values()
    assert [run["status"] for run in store["runs"].values()] == ["KILLED"]
    train_run(config, tmp_path / "run", resume=True, trackers=names)
    (run,) = store["runs"].values()
    assert run["status"] == "FINISHED"
    steps = [each.step for each in run["metrics"] if each.key == "loss"]
    assert steps == sorted(set(steps)), "no step is written twice"
    assert [each.step for each in run["metrics"] if each.key == "validation/loss"] == [4, 8, 12]
    first, second = clients["wandb"]
    assert first.options["id"] == second.options["id"]
    assert (first.options["resume"], second.options["resume"]) == (None, "allow")
    assert (first.exit_code, second.exit_code) == (1, 0)


def test_a_training_that_starts_anew_has_a_new_run(clients: dict[str, Any], tmp_path: Path) -> None:
    config = RunConfig.build("addition", **TINY | {"checkpoint_every": 100})
    with pytest.raises(KeyError, match="crash"):
        train_run(config, tmp_path / "run", trackers=["mlflow"], listeners=[CrashAt(4)])
    train_run(config, tmp_path / "run", resume=True, trackers=["mlflow"])
    (store,) = clients["mlflow"].values()
    (run,) = store["runs"].values()
    assert [each.step for each in run["metrics"] if each.key == "validation/loss"] == [4, 8, 12]


@pytest.mark.parametrize("method", ["create_run", "log_batch", "set_terminated"])
def test_a_broken_tracker_warns_once_and_the_training_goes_on(
    clients: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(FakeClient, method, fail)
    warnings = list[str]()
    run = train_run(
        RunConfig.build("addition", **TINY), tmp_path / "run", trackers=["mlflow", "wandb"], warn=warnings.append
    )
    assert run.folder.is_finished
    (warning,) = warnings
    assert warning.startswith("MLflow could not")
    assert "no space left" in warning
    assert clients["wandb"][0].exit_code == 0, "the other tracker goes on"


def test_trackers_are_imported_only_if_they_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("mlflow", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)  # an import would fail
    assert train_run(RunConfig.build("addition", **TINY), tmp_path / "run").folder.is_finished


def test_a_missing_client_is_an_error_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("headcount.runs.trackers.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"needs MLflow, which is not installed(.|\n)*pip install mlflow-skinny"):
        headcount.train("addition", out=tmp_path / "run", tracker="mlflow", **TINY)
    assert not (tmp_path / "run").exists()


def test_names_of_trackers() -> None:
    assert tracker_names(["mlflow, wandb", "tensorboard"]) == ["mlflow", "wandb", "tensorboard"]
    with pytest.raises(InputError, match="did you mean 'wandb'"):
        tracker_names("wandbb")
    require_trackers(["tensorboard"])
    assert all(client.install.startswith("pip install ") for client in CLIENTS.values())


def test_settings_are_flat() -> None:
    flat = flat_settings(RunConfig.build("addition", **TINY))
    assert (flat["task_name"], flat["model.d_model"], flat["training.steps"]) == ("addition", 8, 12)
    assert not any(isinstance(value, dict | list | tuple) for value in flat.values())


def test_the_hint_after_an_interruption_names_the_trackers(clients: dict[str, Any], tmp_path: Path) -> None:
    stopping = SimpleNamespace(
        on_steps=lambda last_step, losses, rates: None,
        on_evaluation=lambda step, scores: signal.raise_signal(signal.SIGTERM) if step == 4 else None,
    )
    with pytest.raises(Interrupted, match="--resume --tracker wandb"):
        train_run(RunConfig.build("addition", **TINY), tmp_path / "run", trackers=["wandb"], listeners=[stopping])
    assert clients["wandb"][0].exit_code == 1
