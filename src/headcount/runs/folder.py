"""The files of a run folder.

    config.json         the settings; written first
    environment.json    versions and device
    log.jsonl           the loss of every step, and every evaluation
    timings.jsonl       the seconds of training at each evaluation; machine-dependent, so without a digest
    checkpoint-*        the last two states of an unfinished training; the digest is part of the name
    model.safetensors   the trained weights
    snapshots/          the weights at steps that the user chose, such as 000000500.safetensors; their results: 500/
    results/*.json      the results of analyses, each with the digest of the weights
    figures/*.png
    tensorboard/        the log for TensorBoard, if it is installed
    manifest.json       digests of the files above; written last, so a folder with a manifest is complete

All files are written atomically, and nothing is ever unpickled.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from headcount.errors import CheckpointError, ConfigError, ResultError, RunError, argument, shortened
from headcount.files import (
    MOST_JSON,
    create_once,
    friendly_os_errors,
    open_in_place,
    parse_json,
    read_bytes,
    read_json,
    require_writable,
    staged_folder,
    write_atomically,
)
from headcount.results import Count, Result, Size
from headcount.runs.config import RunConfig

SAMPLE = "sample:"
"""The prefix of the names of runs that come with the package, such as `sample:addition`."""
MOST_NUMBERED = 100
"""Largest number at the end of folder names such as `alice-2`; further folders of the same title get a digest."""
KEPT_CHECKPOINTS = 2
MOST_RESULT = 2**30
"""Largest size of a result file in bytes; a list of 810,000 wrong sums takes a tenth of this size."""
_CHECKPOINT = re.compile(r"checkpoint-\d{9,}-[0-9a-f]{16}\.safetensors")
_RESTORE = "restore it, or start again in another folder"
FINAL_STEPS = 50
"""The final training loss is the mean over this many last steps, because the loss of one batch is noisy."""
_SNAPSHOT = re.compile(r"(?P<run>.+)@(?P<step>[0-9]{1,12})", re.DOTALL)
"""Matches the name of a snapshot, `RUN@STEP`: a run, and the training step after which the weights were kept."""
R = TypeVar("R", bound=Result)


@dataclass(frozen=True)
class TrainingRecord:
    """The number of steps, the duration and the final losses of a training; None for values that are not recorded."""

    steps: Count | None
    training_loss: Size | None
    """The mean cross-entropy of the last `FINAL_STEPS` steps, in nats."""
    validation_loss: Size | None
    """The cross-entropy on the validation set at the last evaluation, in nats."""
    seconds: Size | None
    """The wall-clock time of training in seconds, including evaluations."""
    device: str
    """The device and processor, such as `cpu (AMD EPYC 7B13)`; empty if not recorded."""


class RunFolder:
    """The folder of one run: it knows the paths of the run's files, and reads and writes them, without torch."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.json"
        self.environment_file = path / "environment.json"
        self.log_file = path / "log.jsonl"
        self.timings_file = path / "timings.jsonl"
        self.weights_file = path / "model.safetensors"
        self.manifest_file = path / "manifest.json"

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def holds_a_run(self) -> bool:
        """Whether a run was started in this folder."""
        return self.config_file.exists()

    @property
    def is_finished(self) -> bool:
        """Whether the folder holds a finished run."""
        return self.manifest_file.exists()

    def require_name(self) -> None:
        """Raise an error if the folder's name means a packaged run (`sample:NAME`) or a snapshot (`RUN@STEP`)."""
        if str(self.path).startswith(SAMPLE):
            raise RunError(
                f"{str(self.path)!r} cannot be a folder's name: it means a trained model that comes with headcount",
                "choose another name with -o",
            )
        if isinstance(snapshot := folder_of(self.path), Snapshot) and snapshot.holds_a_run:
            raise RunError(
                f"{str(self.path)!r} cannot be a folder's name: it means the weights of a run after a training step "
                "(a snapshot)",
                "choose another name with -o",
            )

    def require_free(self) -> None:
        """Raise an error if a new run cannot be written here: the folder is not empty, or its name has another meaning.

        Names such as `sample:NAME` (a packaged run) and `RUN@STEP` (a snapshot) have another meaning.
        """
        self.require_name()
        if self.is_finished:
            raise RunError(f"{self.path} already holds a finished run", "choose another folder with -o, or delete it")
        if self.holds_a_run:
            raise RunError(
                f"{self.path} already holds an unfinished run",
                "resume it with --resume, or choose another folder with -o",
            )
        with friendly_os_errors(f"look into {self.path}"):
            others = [p.name for p in self.path.iterdir() if p.name[0] != "."] if self.path.exists() else []
        if others:
            raise RunError(
                f"{self.path} is not empty, and holds no training that could be resumed (it has "
                f"{', '.join(sorted(others)[:3])})",
                "choose another folder with -o",
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Return a context in which no other process can train in this folder.

        The operating system releases the lock when this process ends.
        """
        with friendly_os_errors(f"make the folder {self.path}"):
            self.path.mkdir(parents=True, exist_ok=True)
        with friendly_os_errors(f"lock {self.path / '.lock'}"):
            lock = os.fdopen(open_in_place(self.path / ".lock", os.O_RDWR | os.O_CREAT), "r+b")
        with lock:
            try:
                import fcntl

                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except ImportError:
                pass  # Windows has no such lock
            except BlockingIOError as error:
                raise RunError(f"another process is training in {self.path}", "wait for it, or stop it") from error
            yield

    # --- config, results, manifest ------------------------------------------------------------------------------------

    def read_config(self) -> RunConfig:
        """Return the validated settings in `config.json`; raise an error if no run was started in this folder."""
        if not self.holds_a_run:
            raise RunError(
                f"no run in {self.path}",
                "train one: headcount train addition",
                "or use the trained model that comes with headcount: sample:addition",
            )
        return read_config(self.config_file)

    def read_environment(self) -> dict[str, Any]:
        """Return the versions (headcount, PyTorch, Python) and the device with which the run was trained, by name."""
        return _read_json(self.environment_file)

    def write_json(self, file: Path, data: Any) -> None:
        """Write `data` as JSON into a file; after an interruption, the file is either the old or the new one."""
        write_atomically(file, (json.dumps(data, indent=1) + "\n").encode())

    def result_file(self, name: str) -> Path:
        """Return the path of a result in this folder: `results/NAME.json`."""
        return self.path / "results" / f"{name}.json"

    def write_result(self, name: str, result: Result) -> Path:
        """Write a result as JSON into `results/`, and return the path of the file."""
        file = self.result_file(name)
        write_atomically(file, result.to_json().encode())
        return file

    def read_result(self, name: str, result_type: type[R]) -> R:
        """Return the stored result `results/NAME.json`; raise an error if it is damaged, changed or inconsistent."""
        file = self.result_file(name)
        try:
            return result_type.from_json(read_bytes(file, MOST_RESULT).decode(), file)
        except UnicodeDecodeError as error:
            raise ResultError(f"{file} is damaged: {error}", f"delete {file} to measure it again") from error

    def figure_file(self, name: str) -> Path:
        """Return the path of a figure in this folder: `figures/NAME`."""
        return self.path / "figures" / name

    def write_figure(self, name: str, png: bytes) -> Path:
        """Write the bytes of an image into `figures/`, and return the path of the file."""
        file = self.figure_file(name)
        write_atomically(file, png)
        return file

    def require_writable(self) -> None:
        """Raise an error if results cannot be written into this folder; call this before a long computation."""
        require_writable(self.path / "results")

    def snapshot_file(self, step: int) -> Path:
        """Return the path of the file with the weights that the run kept after this training step."""
        return self.path / "snapshots" / f"{step:09d}.safetensors"

    def write_manifest(self, summary: dict[str, Any], snapshots: Sequence[int] = ()) -> None:
        """Write the manifest, which lists the run's files with their digests and marks the run as finished.

        `summary` are further entries, and `snapshots` the training steps whose weights were kept.
        """
        files = [self.config_file, self.environment_file, self.log_file, self.weights_file]
        files += [self.snapshot_file(step) for step in snapshots]
        digests = {file.relative_to(self.path).as_posix(): digest(read_bytes(file)) for file in files}
        self.write_json(self.manifest_file, {"schema": 1, **summary, "files": digests})

    def read_manifest(self) -> dict[str, Any]:
        """Return the manifest of a finished run, which holds the digests of its files."""
        if not self.is_finished:
            raise RunError(
                f"the run in {self.path} is not finished",
                f"resume it: headcount train {self.read_config().task_name} -o {argument(self.path)} --resume",
            )
        manifest = _read_json(self.manifest_file)
        files, steps = manifest.get("files"), manifest.get("steps")
        if not isinstance(files, dict) or not isinstance(steps, int) or isinstance(steps, bool) or steps < 0:
            raise RunError(f"{self.manifest_file} is damaged: 'files' or 'steps' is missing or invalid", _RESTORE)
        return manifest

    def read_weights(self) -> tuple[bytes, str]:
        """Return the trained weights and their digest; raise an error if weights or config differ from the manifest."""
        self._read_unchanged(self.config_file)
        data = self._read_unchanged(self.weights_file)
        return data, digest(data)

    def _read_unchanged(self, file: Path) -> bytes:
        """Return the contents of a file of a finished run; raise an error if its digest is not that of the manifest."""
        data = read_bytes(file)
        name = file.relative_to(self.config_file.parent).as_posix()
        if digest(data) != self.read_manifest()["files"].get(name):
            raise RunError(
                f"{file} differs from the file that this run wrote",
                "the file is damaged or was changed: restore it, or train again in another folder",
            )
        return data

    # --- log ----------------------------------------------------------------------------------------------------------

    def log_bytes(self) -> bytes:
        """Return the log as bytes; raise an error if the log of a finished run differs from the manifest."""
        return self._read_unchanged(self.log_file) if self.is_finished else read_bytes(self.log_file)

    def read_log(self) -> list[dict[str, Any]]:
        """Return all lines of the log; raise an error if the log of a finished run differs from the manifest."""
        lines = [parse_json(line, self.log_file) for line in self.log_bytes().splitlines()]
        if invalid := [line for line in lines if not _is_log_line(line)]:
            raise RunError(
                f"{self.log_file} is damaged: {shortened(str(invalid[0]))} is not a valid line of a training log",
                _RESTORE,
            )
        return lines

    def read_timings(self) -> list[dict[str, Any]]:
        """Return the training step and the seconds so far of each evaluation; empty if the file cannot be read."""
        try:
            data = read_bytes(self.timings_file, MOST_JSON)
            lines = [parse_json(line, self.timings_file) for line in data.splitlines()]
        except RunError:
            return []
        return lines if all(_is_log_line(line) and "seconds" in line for line in lines) else []

    def read_training(self) -> TrainingRecord:
        """Return the number of steps, the duration and the final losses of the training."""
        log, timings = self.read_log(), self.read_timings()
        losses = [line["loss"] for line in log if "loss" in line]
        evaluations = [line for line in log if "n" in line]
        try:
            environment = self.read_environment()
        except RunError:
            environment = {}
        processor = environment.get("hardware") or environment.get("machine")
        return TrainingRecord(
            steps=int(log[-1]["step"]) if log else None,
            training_loss=fmean(losses[-FINAL_STEPS:]) if losses else None,
            validation_loss=evaluations[-1].get("validation_loss") if evaluations else None,
            seconds=timings[-1]["seconds"] if timings else None,
            device=f"{environment['device']} ({processor})" if "device" in environment else "",
        )

    def cut_log(self, n_bytes: int) -> None:
        """Truncate the log to `n_bytes`, its length at the checkpoint from which training resumes."""
        with friendly_os_errors(f"cut {self.log_file}"):
            size = self.log_file.stat().st_size if self.log_file.exists() else 0
            if size < n_bytes:
                raise CheckpointError(
                    f"{self.log_file} is shorter than when the checkpoint was saved ({size:,} of {n_bytes:,} bytes)",
                    "the log was changed by another program: start again in another folder with -o",
                )
            if size > n_bytes:
                with os.fdopen(open_in_place(self.log_file, os.O_RDWR), "r+b") as file:
                    file.truncate(n_bytes)

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def checkpoints(self) -> list[Path]:
        """Return the paths of all checkpoints in the folder, the oldest first."""
        return sorted(file for file in self.path.glob("checkpoint-*") if _CHECKPOINT.fullmatch(file.name))

    def write_checkpoint(self, step: int, data: bytes) -> None:
        """Write the checkpoint of a training step, and remove all checkpoints but the last two."""
        write_atomically(self.path / f"checkpoint-{step:09d}-{digest(data)[:16]}.safetensors", data)
        for old in self.checkpoints()[:-KEPT_CHECKPOINTS]:
            old.unlink()

    def read_checkpoint(self) -> bytes | None:
        """Return the contents of the newest checkpoint, or None if there is none; raise an error if it is damaged."""
        if not (checkpoints := self.checkpoints()):
            return None
        newest = checkpoints[-1]
        data = read_bytes(newest)
        if digest(data)[:16] != newest.stem.rpartition("-")[2]:
            start = f"from {checkpoints[-2].name}" if checkpoints[:-1] else "from the beginning"
            raise CheckpointError(
                f"{newest} is damaged or cut short", f"delete that file; --resume then starts {start}"
            )
        return data

    def remove_checkpoints(self) -> None:
        """Remove all checkpoints, which a finished run does not need."""
        for file in self.checkpoints():
            file.unlink()


class Snapshot(RunFolder):
    """The weights that a run kept after one training step, used like a run whose training ended there.

    The settings are those of the run, and the log is the run's log up to this step. Results and figures are stored in
    `path`, which is `RUN/snapshots/STEP`.
    """

    def __init__(self, run: Path, step: int) -> None:
        super().__init__(run)
        self.run, self.step = RunFolder(run), step
        self.path = run / "snapshots" / str(step)
        self.weights_file = self.run.snapshot_file(step)

    def require_step(self) -> None:
        """Raise an error if the run has no snapshot of this step; the error lists the snapshots that there are."""
        names = map(Path, self.run.read_manifest()["files"])
        steps = sorted(int(name.stem) for name in names if name.parent.name == "snapshots" and name.stem.isdecimal())
        if self.step not in steps:
            raise RunError(
                f"no snapshot of step {self.step} in {self.run.path}",
                f"there are snapshots of the steps {', '.join(map(str, steps))}"
                if steps
                else "this run has none: train it again with --snapshots 0,100,500",
            )

    def read_manifest(self) -> dict[str, Any]:
        """Return the manifest of the run, in which the number of steps is replaced by that of this snapshot."""
        return {**self.run.read_manifest(), "steps": self.step}

    def read_weights(self) -> tuple[bytes, str]:
        """Return the weights after this step and their digest; if there are none, the error lists all snapshots."""
        self.require_step()
        return super().read_weights()

    def log_bytes(self) -> bytes:
        """Return the part of the run's log up to the step of this snapshot, as bytes."""
        lines = self.run.log_bytes().splitlines(keepends=True)
        return b"".join(line for line in lines if _step_of(parse_json(line, self.log_file)) <= self.step)

    def read_timings(self) -> list[dict[str, Any]]:
        """Return the training step and the seconds so far of each evaluation up to the step of this snapshot."""
        return [line for line in super().read_timings() if line["step"] <= self.step]


def folder_of(path: Path) -> RunFolder:
    """Return the folder of a run or, for a path such as `RUN@STEP` that is no folder, the snapshot of this step."""
    match = None if os.path.lexists(path) else _SNAPSHOT.fullmatch(str(path))
    return Snapshot(Path(match["run"]), int(match["step"])) if match else RunFolder(path)


def _step_of(line: object) -> float:
    """Return the training step of a line of the log; 0 for a damaged line, so that it is kept and reported later."""
    return line["step"] if isinstance(line, dict) and _is_log_line(line) else 0


def claimed_folder(stem: str, origin: str, weights: str, root: Path = Path("runs"), *, is_title: bool = False) -> Path:
    """Return the folder for the results of one model: `root/STEM`, or `root/STEM-8f3a...` if the first one is taken.

    A file in the folder marks it as belonging to the model, which `origin` and `weights` identify. If the stem is a
    title, such as a student's name, a number replaces the digest: `alice-2`. Otherwise, a folder that already belongs
    to the model is used again.
    """
    mark = {"schema": 1, "name": origin, "weights": weights}
    short, long = root / stem, root / f"{stem}-{digest(os.fsencode(f'{origin}{weights}'))[:8]}"
    own = [] if is_title else [file.parent for file in sorted(root.glob("*/model.json")) if _is_marked(file, mark)]
    numbered = [root / f"{stem}-{i}" for i in range(2, MOST_NUMBERED)] if is_title else []
    for path in (*([] if short in own else own[:1]), short, *numbered, long):
        if _claim(path, mark):
            return path
    raise RunError(
        f"no folder is free for the results: {short} and {long} hold results of other models",
        f"move one of them away: {long}",
    )


def _claim(path: Path, mark: dict[str, Any]) -> bool:
    """Return whether a folder belongs to the model that `mark` describes; mark an empty folder as this model's."""
    if any((path / name).exists() for name in ("config.json", "manifest.json", "headcount.json")):
        return False  # the folder holds a run or a model
    marker = path / "model.json"  # names the model that the results in the folder belong to
    if not os.path.lexists(marker):
        with friendly_os_errors(f"look into {path}"):
            if path.exists() and any(file.suffix != ".draft" for file in path.iterdir()):
                return False  # the folder has files of unknown origin
        create_once(marker, (json.dumps(mark, indent=1) + "\n").encode())
    return _is_marked(marker, mark)


def _is_marked(marker: Path, mark: dict[str, Any]) -> bool:
    try:
        return bool(read_json(marker) == mark)
    except RunError:
        return False  # damaged


def digest(data: bytes) -> str:
    """Return the SHA-256 digest of bytes in hexadecimal, which identifies weights and files."""
    return hashlib.sha256(data).hexdigest()


def read_config(file: Path) -> RunConfig:
    """Return the validated settings in a `config.json`; an error names the file and lists all faults."""
    try:
        return RunConfig.from_dict(_read_json(file))
    except ConfigError as error:
        raise ConfigError(error.faults, f"in {file}") from error


def _read_json(file: Path) -> dict[str, Any]:
    data = read_json(file)
    if not isinstance(data, dict):
        raise RunError(f"{file} is damaged: it is not a JSON object", _RESTORE)
    return data


def _is_log_line(line: object) -> bool:
    if not (isinstance(line, dict) and "step" in line):
        return False
    return all(type(value) in (int, float) and math.isfinite(value) for value in line.values())  # excludes booleans


@contextmanager
def staged(path: Path) -> Iterator[Path]:
    """Yield a hidden folder that becomes `path` in one move at the end of the context.

    Raise an error if `path` holds a run or other files.
    """
    require_vacant(path)
    with staged_folder(path) as draft:
        yield draft


def require_vacant(path: Path) -> None:
    """Raise an error if `path` holds a run or other files, or is the working directory."""
    folder = RunFolder(path)
    if folder.holds_a_run and not folder.is_finished:
        raise RunError(
            f"{path} is not empty: it holds a model, or the unfinished training of one",
            "choose a folder that does not exist yet with -o",
        )
    folder.require_free()
    if path.exists() and (any(path.iterdir()) or path.samefile(Path.cwd())):
        raise RunError(
            f"the folder {path} already exists, and headcount writes only into new folders",
            "choose a folder that does not exist yet with -o",
        )
