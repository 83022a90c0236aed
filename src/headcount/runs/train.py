"""Train into a run folder, so that a kill at any moment loses nothing that --resume does not make again."""

from __future__ import annotations

import json
import os
import platform
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from headcount import __version__
from headcount.errors import Interrupted, RunError, Terminated, argument
from headcount.files import friendly_os_errors, open_in_place, write_atomically
from headcount.limits import require_room, require_room_for
from headcount.models.transformer import Model
from headcount.runs.config import RunConfig
from headcount.runs.folder import RunFolder
from headcount.runs.run import Run, build, load
from headcount.tasks import TASKS
from headcount.tasks.base import SPLIT_SIZES
from headcount.training.device import choose_device, hardware, n_threads
from headcount.training.loop import Listener, StepScores, averaged, diverged, fit, new_state, pack, unpack


def train_run(config: RunConfig, path: Path, *, resume: bool = False, listeners: Sequence[Listener] = ()) -> Run:
    """Train a new run in `path`, or go on with the one that is there."""
    folder = RunFolder(path)
    _require_room(config)
    if not (resume and folder.holds_a_run):
        # Before the lock, which would make the folder.
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
                    "leave those flags out to go on with it, or choose another folder with -o",
                )
        else:
            folder.require_free()
        if not folder.is_finished:
            _train(folder, config, listeners, asked_to_stop)
        folder.remove_checkpoints()
    return load(path)


def _require_room(config: RunConfig) -> None:
    """Before anything is made: weights with their gradients, moments and average, a batch, and the examples."""
    task = TASKS.get(config.task_name)(config.task)
    sizes = {f"--{name.replace('_', '-')}": getattr(config.task, name, 0) for name in SPLIT_SIZES}
    flags = ", ".join(flag for flag, size in sizes.items() if size)
    require_room_for(sum(sizes.values()), task.longest, f"lower the number of examples: {flags}")
    if choose_device(config.training.device).type != "cpu":
        return  # what another device has room for, it says itself
    weights = 5 * config.model.weight_bytes(len(task.tokens))
    rows = config.training.batch_size * config.model.row_bytes(task.longest)
    require_room(weights, "training a model of this size", "lower --d-model, --d-ff or the number of layers")
    require_room(weights + rows, f"a batch of {config.training.batch_size:,}", "lower --batch-size")


def _train(folder: RunFolder, config: RunConfig, listeners: Sequence[Listener], asked_to_stop: StopRequest) -> None:
    if folder.environment_file.exists():  # a resumed run keeps the device it began with
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
    clock = Timings(folder, state.step, header.get("seconds", 0.0))
    with Log(folder) as log, tensorboard_listeners(folder.path, state.step) as boards:
        done = fit(
            state,
            task,
            config.training,
            config.seed,
            listeners=[log, clock, *listeners, *boards],
            save=lambda state: folder.write_checkpoint(
                state.step, pack(state, {"log_bytes": log.flush(), "seconds": clock.seconds})
            ),
            asked_to_stop=asked_to_stop,
        )
    if not done:
        raise Interrupted(
            f"stopped at step {state.step:,}; everything is saved in {folder.path}",
            f"go on with: headcount train {config.task_name} -o {argument(folder.path)} --resume",
            signal=asked_to_stop.signal,
        )
    with averaged(state):
        data = weights_of(state.model, state.step)
    write_atomically(folder.weights_file, data)
    folder.write_manifest({"steps": state.step})


def weights_of(model: Model, step: int) -> bytes:
    """The bytes of `model.safetensors` after this many steps; an error if they are no numbers."""
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    if not all(tensor.isfinite().all() for tensor in weights.values()):
        raise diverged(step)
    return safetensors.torch.save(weights)


def environment(device: torch.device) -> dict[str, str]:
    """What a run is made with."""
    return {
        "headcount": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "hardware": hardware(device),
        "device": str(device),
    }


class Log:
    """Writes `log.jsonl`."""

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
        """One line a step."""
        first = last_step - len(losses) + 1
        for step, (loss, rate) in enumerate(zip(losses, rates, strict=True), start=first):
            self._write({"step": step, "loss": loss, "learning_rate": rate})

    def on_evaluation(self, step: int, scores: StepScores) -> None:
        """One line an evaluation."""
        self._write({"step": step, **scores.to_dict()})

    def flush(self) -> int:
        """Everything onto the disk; returns how long the log is."""
        with friendly_os_errors(f"write {self._folder.log_file}"):
            self._file.flush()
            os.fsync(self._file.fileno())
        return self._file.tell()

    def _write(self, line: dict[str, Any]) -> None:
        with friendly_os_errors(f"write {self._folder.log_file}"):
            self._file.write(json.dumps(line).encode() + b"\n")


@dataclass
class StopRequest:
    """Whether a signal asked to stop, and which."""

    signal: int = 0

    def __call__(self) -> bool:
        """Whether to stop."""
        return self.signal > 0


@contextmanager
def stop_on_interrupt() -> Iterator[StopRequest]:
    """Inside, the first Ctrl-C, SIGTERM or SIGHUP asks training to stop after its step; a second one stops at once."""
    asked = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]

    def note(number: int, frame: object) -> None:
        if asked():
            raise Terminated(number)
        asked.signal = number

    # One that is ignored, as under nohup, stays so.
    before = {number: signal.signal(number, note) for number in numbers if signal.getsignal(number) != signal.SIG_IGN}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Timings:
    """Writes to `timings.jsonl`, one line an evaluation, the step and the seconds of training until then.

    It is apart from the log, whose bytes do not depend on the machine.
    A training that goes on counts on from the `seconds` of its checkpoint; what was lost in a crash does not count.
    """

    def __init__(self, folder: RunFolder, step: int = 0, seconds: float = 0.0) -> None:
        self._file, self._before, self._started = folder.timings_file, seconds, time.monotonic()
        self._lines = [line for line in folder.read_timings() if line["step"] <= step] if step else []

    @property
    def seconds(self) -> float:
        """Of training so far, resumes included."""
        return round(self._before + time.monotonic() - self._started, 3)

    def on_steps(self, last_step: int, losses: Sequence[float], rates: Sequence[float]) -> None:
        """The log has the steps."""

    def on_evaluation(self, step: int, scores: StepScores) -> None:
        """One line more; whole or not at all, for the file is small."""
        line: dict[str, Any] = {"step": step, "seconds": self.seconds}
        self._lines.append(line)
        write_atomically(self._file, b"".join(json.dumps(each).encode() + b"\n" for each in self._lines))


@contextmanager
def tensorboard_listeners(path: Path, step: int) -> Iterator[list[Listener]]:
    """One listener, or none where the extra headcount[tensorboard] is missing or cannot spell the folder's name.

    What an earlier training wrote after `step` is hidden.
    """
    if find_spec("tensorboard") is None or str(path).encode(errors="ignore") != os.fsencode(path):
        yield []
        return
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(path / "tensorboard"), purge_step=step + 1) as writer:
        yield [TensorBoard(writer)]


@dataclass
class TensorBoard:
    """Writes events."""

    writer: Any

    def on_steps(self, last_step: int, losses: Sequence[float], rates: Sequence[float]) -> None:
        """Mean loss since the last report, and the learning rate; `log.jsonl` has every step's."""
        self.writer.add_scalar("loss", sum(losses) / len(losses), last_step)
        self.writer.add_scalar("learning rate", rates[-1], last_step)

    def on_evaluation(self, step: int, scores: StepScores) -> None:
        """Every score."""
        self.writer.add_scalar("validation/loss", scores.validation_loss, step)
        for split, shares in (("validation", scores.validation), ("training", scores.training)):
            for name, share in shares.items():
                self.writer.add_scalar(f"{split}/{name}", share.rate, step)
        self.writer.flush()
