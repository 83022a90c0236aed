"""Report a training to a tracker: TensorBoard, MLflow or Weights & Biases, each in a folder of its own inside the run.

TensorBoard is used whenever it is installed. The others are used if they are named, and are imported only then. All of
them write files only and send nothing: MLflow into a file store, Weights & Biases in its offline mode. The other files
of a run do not depend on trackers. A tracker that fails is switched off with one warning, and the training goes on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from headcount.errors import InputError
from headcount.runs.config import RunConfig
from headcount.runs.folder import RunFolder, digest
from headcount.suggestions import suggestion

if TYPE_CHECKING:
    from headcount.training.loop import Listener, StepScores

Warn = Callable[[str], None]
Scalars = dict[str, float]


class Tracker(Protocol):
    """The interface of a tracker, which records the losses and accuracies of a training."""

    def write(self, step: int, scalars: Scalars) -> None:
        """Record the numbers of one training step, by name."""

    def close(self, *, is_done: bool) -> None:
        """End the tracker's recording; `is_done` is whether the training reached its end."""


@dataclass(frozen=True)
class Client:
    """A kind of tracker, such as MLflow: the package that it needs, and the function that starts it."""

    title: str
    module: str
    """The module that must be installed."""
    install: str
    """The command that installs the package."""
    start: Callable[[RunFolder, RunConfig, int], Tracker]
    """A function of (run folder, settings, training step) that starts the tracker, or continues what it recorded
    before."""


def tracker_names(names: str | Sequence[str]) -> list[str]:
    """Return the names of trackers without repeats; a name may be a list that is separated by commas.

    >>> tracker_names(["mlflow,wandb", "mlflow"]), tracker_names("")
    (['mlflow', 'wandb'], [])
    """
    parts = [names] if isinstance(names, str) else names
    chosen = list(dict.fromkeys(name.strip() for part in parts for name in part.split(",") if name.strip()))
    for name in chosen:
        if name not in CLIENTS:
            raise InputError(f"headcount supports no experiment tracker {name!r}", suggestion(name, tuple(CLIENTS)))
    return chosen


def require_trackers(names: Sequence[str]) -> None:
    """Raise an error if the package of a tracker is not installed."""
    for name in names:
        client = CLIENTS[name]
        if not _is_installed(client.module):
            what = f"--tracker {name} needs {client.title}, which is not installed"
            raise InputError(
                what,
                f"install it: {client.install}",
                "or leave the flag out: the training's folder holds every number, too",
            )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # a module without a spec is there already
        return True


@dataclass
class Tracking:
    """All trackers of one training, as listeners of the training loop."""

    listeners: list[Listener] = field(default_factory=list)
    is_done: bool = False
    """Whether the training has reached its end; set it before the trackers are closed."""


@contextmanager
def tracking(names: Sequence[str], folder: RunFolder, config: RunConfig, step: int, warn: Warn) -> Iterator[Tracking]:
    """Start the named trackers, and TensorBoard if it is installed, for a `with` block; close them at its end."""
    everyone = list(dict.fromkeys([*(["tensorboard"] if _has_tensorboard(folder.path) else []), *names]))
    reports = []
    for name in everyone:
        report = Report(CLIENTS[name].title, warn)
        report.start(lambda client=CLIENTS[name]: client.start(folder, config, step))  # type: ignore[misc]
        reports.append(report)
    state = Tracking([*reports])
    try:
        yield state
    finally:
        for report in reports:
            report.close(is_done=state.is_done)


@dataclass
class Report:
    """A listener of the training loop that passes numbers on to a tracker, until the tracker fails."""

    title: str
    warn: Warn
    tracker: Tracker | None = None

    def start(self, make: Callable[[], Tracker]) -> None:
        """Start the tracker with the function `make`; if it fails, warn and train without it."""
        with self._guarded("start"):
            self.tracker = make()

    def on_steps(self, last_step: int, losses: Sequence[float], rates: Sequence[float]) -> None:
        """Write the mean loss since the last report, and the learning rate."""
        self._write(last_step, {"loss": sum(losses) / len(losses), "learning rate": rates[-1]})

    def on_evaluation(self, step: int, scores: StepScores) -> None:
        """Write the validation loss and all scores of an evaluation."""
        scalars = {"validation/loss": scores.validation_loss}
        for split, shares in (("validation", scores.validation), ("training", scores.training)):
            scalars |= {f"{split}/{name}": share.rate for name, share in shares.items()}
        self._write(step, scalars)

    def close(self, *, is_done: bool) -> None:
        """End the tracker's recording; `is_done` is whether the training reached its end."""
        if self.tracker is not None:
            with self._guarded("close"):
                self.tracker.close(is_done=is_done)

    def _write(self, step: int, scalars: Scalars) -> None:
        if self.tracker is not None:
            with self._guarded("write"):
                self.tracker.write(step, scalars)

    @contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        """Switch the tracker off if it fails; the training does not depend on it."""
        try:
            yield
        except Exception as error:  # whatever another package raises
            self.tracker = None
            self.warn(f"{self.title} could not {what} and is switched off; the training goes on: {error!r}"[:500])


# --- TensorBoard ------------------------------------------------------------------------------------------------------


def _has_tensorboard(path: Path) -> bool:
    """Return whether TensorBoard is installed and supports the folder's name."""
    return find_spec("tensorboard") is not None and str(path).encode(errors="ignore") == os.fsencode(path)


@dataclass
class TensorBoard:
    """A tracker that writes TensorBoard events into the folder `tensorboard` of a run.

    When a training is resumed from a checkpoint, events of later steps that were written before are hidden.
    """

    writer: Any

    @classmethod
    def start(cls, folder: RunFolder, config: RunConfig, step: int) -> TensorBoard:
        """Open the TensorBoard file of a run, and hide events after this training step."""
        from torch.utils.tensorboard import SummaryWriter

        return cls(SummaryWriter(str(folder.path / "tensorboard"), purge_step=step + 1))

    def write(self, step: int, scalars: Scalars) -> None:
        """Write one TensorBoard event for each number of this training step."""
        for name, value in scalars.items():
            self.writer.add_scalar(name, value, step)
        if "validation/loss" in scalars:
            self.writer.flush()

    def close(self, *, is_done: bool) -> None:
        """Close the TensorBoard file."""
        self.writer.close()


# --- MLflow -----------------------------------------------------------------------------------------------------------

EXPERIMENT = "headcount"
MLFLOW_FLAGS = ("MLFLOW_ALLOW_FILE_STORE", "MLFLOW_DISABLE_TELEMETRY")
"""Environment variables of newer versions of MLflow: allow a store of plain files, and send no reports on its use."""


@dataclass
class MLflow:
    """A tracker that records an MLflow run in the folder `mlflow`; a resumed training continues the same MLflow run."""

    client: Any
    metric: Callable[..., Any]
    """MLflow's class of a recorded number, made from name, value, time in milliseconds and training step."""
    run_id: str
    last: dict[str, int]
    """For each name of a number, the last training step that was recorded before a resume; it is not recorded twice."""

    @classmethod
    def start(cls, folder: RunFolder, config: RunConfig, step: int) -> MLflow:
        """Create an MLflow run with all settings of the training or, if a training is resumed, find its MLflow run."""
        for flag in MLFLOW_FLAGS:
            os.environ.setdefault(flag, "true")
        tracking_module, entities = import_module("mlflow.tracking"), import_module("mlflow.entities")
        store = (folder.path / "mlflow").resolve()
        store.mkdir(parents=True, exist_ok=True)
        client = tracking_module.MlflowClient(tracking_uri=store.as_uri())
        experiment = client.get_experiment_by_name(EXPERIMENT)
        experiment_id = client.create_experiment(EXPERIMENT) if experiment is None else experiment.experiment_id
        runs = client.search_runs([experiment_id], max_results=1)
        if runs and step:
            run_id = runs[0].info.run_id
            client.update_run(run_id, status="RUNNING")
            last = {
                key: max((each.step for each in client.get_metric_history(run_id, key)), default=-1)
                for key in runs[0].data.metrics
            }
            return cls(client, entities.Metric, run_id, last)
        for run in runs:  # it belongs to a training that left no checkpoint and starts anew
            client.delete_run(run.info.run_id)
        run_id = client.create_run(experiment_id, run_name=folder.path.name).info.run_id
        parameters = [entities.Param(key, str(value)) for key, value in flat_settings(config).items()]
        client.log_batch(run_id, params=parameters)
        return cls(client, entities.Metric, run_id, {})

    def write(self, step: int, scalars: Scalars) -> None:
        """Record the numbers of one training step, by name, unless MLflow has them already."""
        now = int(1000 * time.time())
        metrics = [
            self.metric(key, value, now, step) for key, value in scalars.items() if step > self.last.get(key, -1)
        ]
        if metrics:
            self.client.log_batch(self.run_id, metrics=metrics)

    def close(self, *, is_done: bool) -> None:
        """End the MLflow run as finished or, if the training was stopped before its end, as killed (and resumable)."""
        self.client.set_terminated(self.run_id, status="FINISHED" if is_done else "KILLED")


# --- Weights & Biases -------------------------------------------------------------------------------------------------


@dataclass
class WeightsAndBiases:
    """A tracker that records an offline run of Weights & Biases in the folder `wandb`.

    Each start writes a folder of its own, all with the same id of the run, so that `wandb sync` makes one run of them.
    """

    run: Any

    @classmethod
    def start(cls, folder: RunFolder, config: RunConfig, step: int) -> WeightsAndBiases:
        """Start an offline run of Weights & Biases, whose id depends on the run folder's name and the settings."""
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        wandb = import_module("wandb")
        options = {"silent": True, "console": "off", "disable_git": True, "disable_code": True}
        run = wandb.init(
            project=EXPERIMENT,
            name=folder.path.name,
            id=run_id(folder, config),
            dir=str(folder.path),
            mode="offline",
            resume="allow" if step else None,
            config=flat_settings(config),
            reinit="create_new",
            settings=wandb.Settings(**options),
        )
        return cls(run)

    def write(self, step: int, scalars: Scalars) -> None:
        """Record the numbers of one training step, by name; numbers of the same step are joined."""
        self.run.log(scalars, step=step)

    def close(self, *, is_done: bool) -> None:
        """Write all remaining numbers to the disk, and end the run of Weights & Biases."""
        self.run.finish(exit_code=0 if is_done else 1)


def run_id(folder: RunFolder, config: RunConfig) -> str:
    """Return an id of a run, made from its folder's name and its settings; a resumed training has the same id."""
    return digest(f"{folder.path.name} {config.to_json()}".encode())[:12]


def flat_settings(config: RunConfig) -> dict[str, Any]:
    """Return all settings by name, as trackers show them: `task`, `seed`, `model.n_heads`, ..."""
    settings: dict[str, Any] = {}

    def add(prefix: str, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            if isinstance(value, Mapping):
                add(f"{prefix}{name}.", value)
            else:
                settings[f"{prefix}{name}"] = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value

    add("", config.to_dict())
    return settings


CLIENTS: dict[str, Client] = {
    "tensorboard": Client("TensorBoard", "tensorboard", "pip install tensorboard", TensorBoard.start),
    "mlflow": Client("MLflow", "mlflow", "pip install mlflow-skinny", MLflow.start),
    "wandb": Client("Weights & Biases", "wandb", "pip install wandb", WeightsAndBiases.start),
}
"""All trackers, by the name with which a user chooses them."""
