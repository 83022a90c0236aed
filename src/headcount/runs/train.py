"""Train a run in its folder; a training that is killed at any moment can be resumed with --resume."""

from __future__ import annotations

import json
import os
import platform
import signal
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch

from headcount import __version__
from headcount.errors import InputError, Interrupted, RunError, Terminated, argument
from headcount.files import friendly_os_errors, open_in_place, write_atomically
from headcount.limits import require_room, require_room_for
from headcount.models.transformer import Classifier, Model
from headcount.runs.config import RunConfig
from headcount.runs.folder import RunFolder
from headcount.runs.run import Run, build, load
from headcount.runs.trackers import Warn, require_trackers, tracking
from headcount.tasks import TASKS
from headcount.tasks.base import SPLIT_SIZES
from headcount.training.contexts import ContextShape, Undecidable
from headcount.training.device import choose_device, hardware, n_threads
from headcount.training.loop import (
    Listener,
    StepScores,
    TrainingState,
    averaged,
    diverged,
    fit,
    new_state,
    pack,
    unpack,
)


def train_run(
    config: RunConfig,
    path: Path,
    *,
    resume: bool = False,
    listeners: Sequence[Listener] = (),
    trackers: Sequence[str] = (),
    warn: Warn = warnings.warn,
) -> Run:
    """Train a new run in `path`, or resume the run that is there.

    `trackers` are the names of experiment trackers to use beside TensorBoard; `warn` is called when one of them fails.
    """
    require_trackers(trackers)
    folder = RunFolder(path)
    _require_room(config)
    if config.training.until_proved:
        _require_contexts(config)
    if not (resume and folder.holds_a_run):
        # Before locking, because the lock creates the folder.
        folder.require_free()
        choose_device(config.training.device)
    with (
        stop_on_interrupt() as asked_to_stop,
        folder.locked(),
        torch.random.fork_rng(),
        n_threads(config.training.threads),
    ):
        if resume and folder.holds_a_run:
            if differences := folder.read_config().differences(config):
                raise RunError(
                    f"{folder.path} holds a run with other settings",
                    *differences,
                    "leave the flags of these settings out to resume it, or choose another folder with -o",
                )
        else:
            folder.require_free()
        if not folder.is_finished:
            _train(folder, config, listeners, asked_to_stop, trackers, warn)
        folder.remove_checkpoints()
    return load(path)


def _require_room(config: RunConfig) -> None:
    """Raise an error if what training needs (weights, optimizer state, batch, examples) does not fit into memory."""
    task = TASKS.get(config.task_name)(config.task)
    sizes = {f"--{name.replace('_', '-')}": getattr(config.task, name, 0) for name in SPLIT_SIZES}
    flags = ", ".join(flag for flag, size in sizes.items() if size)
    require_room_for(sum(sizes.values()), task.longest, f"lower the number of examples: {flags}")
    if choose_device(config.training.device).type != "cpu":
        return  # the memory of other devices is not known here
    weights = 5 * config.model.weight_bytes(len(task.tokens))
    rows = config.training.batch_size * config.model.row_bytes(task.longest)
    require_room(weights, "training a model of this size", "lower --d-model, --d-ff or the number of layers")
    require_room(weights + rows, f"a batch of {config.training.batch_size:,}", "lower --batch-size")


def _require_contexts(config: RunConfig) -> None:
    """Raise an error if a model with these settings cannot be proved right by enumerating the contexts that it sees."""
    task, model = build(config)
    try:
        ContextShape.on_task(model, task)
        if cast(Classifier, model).pooling.combines != "max":
            raise Undecidable("the model's pooling does not compute a score for each position")
    except Undecidable as reason:
        presets = [name for name, preset in task.presets.items() if "until-proved" in preset.help]
        advice = f"use the preset {presets[0]}" if presets else "leave --until-proved out"
        raise InputError(
            "--until-proved trains until the model is proved right on every sequence, but this model cannot be "
            f"proved: {reason}",
            advice,
        ) from reason


def _train(
    folder: RunFolder,
    config: RunConfig,
    listeners: Sequence[Listener],
    asked_to_stop: StopRequest,
    trackers: Sequence[str],
    warn: Warn,
) -> None:
    """Train from the last checkpoint, or from the start, and write weights and manifest."""
    if folder.environment_file.exists():  # a resumed run keeps its device
        device = choose_device(str(folder.read_environment().get("device", config.training.device)))
    else:
        device = choose_device(config.training.device)
        write_atomically(folder.config_file, config.to_json().encode())
        folder.write_json(folder.environment_file, environment(device))
    task, model = build(config)
    state = new_state(model.to(device), config.training)
    header: dict[str, Any] = {}
    if (checkpoint := folder.read_checkpoint()) is not None:
        header = unpack(checkpoint, state)
    folder.cut_log(header.get("log_bytes", 0))
    with Log(folder) as log, tracking(trackers, folder, config, state.step, warn) as reports:
        clock = Timings(folder, state.step, header.get("seconds", 0.0))
        reports.is_done = done = fit(
            state,
            task,
            config.training,
            config.seed,
            listeners=[log, clock, *listeners, *reports.listeners],
            save=lambda state: folder.write_checkpoint(
                state.step, pack(state, {"log_bytes": log.flush(), "seconds": clock.seconds})
            ),
            keep=lambda state: write_atomically(folder.snapshot_file(state.step), _trained_weights(state)),
            asked_to_stop=asked_to_stop,
        )
    if not done:
        flags = "".join(f" --tracker {name}" for name in trackers)
        raise Interrupted(
            f"stopped at step {state.step:,}; everything is saved in {folder.path}",
            f"resume with: headcount train {config.task_name} -o {argument(folder.path)} --resume" + flags,
            signal=asked_to_stop.signal,
        )
    write_atomically(folder.weights_file, _trained_weights(state))
    kept = tuple(step for step in config.training.snapshots if step <= state.step)
    folder.write_manifest({"steps": state.step}, snapshots=kept)


def _trained_weights(state: TrainingState) -> bytes:
    """Return the bytes of the average weights, which are the trained model at this step."""
    with averaged(state):
        return weights_of(state.model, state.step)


def weights_of(model: Model, step: int) -> bytes:
    """Return the bytes of `model.safetensors` after this many steps; raise an error if weights are not finite."""
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    if not all(tensor.isfinite().all() for tensor in weights.values()):
        raise diverged(step)
    return safetensors.torch.save(weights)


def environment(device: torch.device) -> dict[str, str]:
    """Return the versions of headcount, PyTorch and Python, and the machine that a run is trained on."""
    return {
        "headcount": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "hardware": hardware(device),
        "device": str(device),
    }


class Log:
    """A listener of the training loop that writes `log.jsonl`, a line for each step and each evaluation."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def __enter__(self) -> Log:
        with friendly_os_errors(f"open {self._folder.log_file}"):
            handle = open_in_place(self._folder.log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            self._file = os.fdopen(handle, "ab")
        return self

    def __exit__(self, *exception: object) -> None:
        with friendly_os_errors(f"write {self._folder.log_file}"):
            self._file.close()

    def on_steps(self, last_step: int, losses: Sequence[float], rates: Sequence[float]) -> None:
        """Write the loss and the learning rate of each step as a line of `log.jsonl`."""
        first = last_step - len(losses) + 1
        for step, (loss, rate) in enumerate(zip(losses, rates, strict=True), start=first):
            self._write({"step": step, "loss": loss, "learning_rate": rate})

    def on_evaluation(self, step: int, scores: StepScores) -> None:
        """Write the losses and scores of an evaluation as a line of `log.jsonl`."""
        self._write({"step": step, **scores.to_dict()})

    def flush(self) -> int:
        """Flush the log to the disk and return its length in bytes."""
        with friendly_os_errors(f"write {self._folder.log_file}"):
            self._file.flush()
            os.fsync(self._file.fileno())
        return self._file.tell()

    def _write(self, line: dict[str, Any]) -> None:
        with friendly_os_errors(f"write {self._folder.log_file}"):
            self._file.write(json.dumps(line).encode() + b"\n")


@dataclass
class StopRequest:
    """A request to stop training; `signal` is the number of the received signal, or 0 if there was none."""

    signal: int = 0

    def __call__(self) -> bool:
        """Return whether a signal has requested a stop."""
        return self.signal > 0


@contextmanager
def stop_on_interrupt() -> Iterator[StopRequest]:
    """Let the first Ctrl-C, SIGTERM or SIGHUP stop training after its step; a second signal stops it immediately."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]

    def handle(number: int, frame: object) -> None:
        if request():
            raise Terminated(number)
        request.signal = number

    # Signals that are ignored, as under nohup, stay ignored.
    before = {number: signal.signal(number, handle) for number in numbers if signal.getsignal(number) != signal.SIG_IGN}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Timings:
    """A listener that writes `timings.jsonl`: the step and the seconds of training at each evaluation.

    Timings are not part of the log, whose bytes do not depend on the machine. A resumed training continues from the
    `seconds` of its checkpoint; time lost in a crash does not count.
    """

    def __init__(self, folder: RunFolder, step: int = 0, seconds: float = 0.0) -> None:
        self._file, self._before, self._started = folder.timings_file, seconds, time.monotonic()
        self._lines = [line for line in folder.read_timings() if line["step"] <= step] if step else []

    @property
    def seconds(self) -> float:
        """The seconds of training so far, including those before a resume."""
        return round(self._before + time.monotonic() - self._started, 3)

    def on_steps(self, last_step: int, losses: Sequence[float], rates: Sequence[float]) -> None:
        """Do nothing: `log.jsonl` has a line for each step already."""

    def on_evaluation(self, step: int, scores: StepScores) -> None:
        """Write `timings.jsonl` again, with one more line for this evaluation."""
        self._lines.append({"step": step, "seconds": self.seconds})
        write_atomically(self._file, b"".join(json.dumps(line).encode() + b"\n" for line in self._lines))
