"""A run of a study without torch: it trains nothing, but writes, checkpoints and resumes as a training does.

The environment variable QUICK_RUN names a folder with orders. `runs` has the planned runs by name, pickled. `seconds`
is the duration of one step. If there is a file `NAME.crash`, the run NAME ends with an error. `NAME.murder` lets the
run kill the process that has started it. `NAME.wait` lets the run wait after its last step for as long as the file is
there. A line of `started` is written for each process of a run.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headcount.files import open_in_place, write_atomically
from headcount.runs.folder import RunFolder
from headcount.studies.plan import PlannedRun
from headcount.studies.running import complete

CHECKPOINT_EVERY = 2
stop_signals: list[int] = []


def orders(name: str) -> Path:
    return Path(os.environ["QUICK_RUN"]) / name


def main(arguments: Sequence[str]) -> int:
    words = list(arguments)
    name = words[words.index("--run") + 1]
    run: PlannedRun = pickle.loads(orders("runs").read_bytes())[name]  # reading the study would import torch
    with orders("started").open("a") as started:
        started.write(f"{name} {os.getpid()} {os.getppid()}\n")
    if orders(f"{name}.murder").exists():
        os.kill(os.getppid(), signal.SIGKILL)
    if orders(f"{name}.crash").exists():
        say("error: ordered to crash")
        return 3
    signal.signal(signal.SIGTERM, lambda number, frame: stop_signals.append(number))
    try:
        return complete(run, lambda command: (measure(run, command), None))
    except OSError as error:
        say(f"error: {error}")
        return 2


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def measure(run: PlannedRun, command: Sequence[str]) -> int:
    folder = RunFolder(run.folder)
    if command[0] == "train":
        return train(run, folder)
    write_atomically(folder.result_file(command[0]), json.dumps({"type": "Quick", "of": digest(weights(run))}).encode())
    return 0


def train(run: PlannedRun, folder: RunFolder) -> int:
    with folder.locked():
        if folder.is_finished:
            return 0
        write_atomically(folder.config_file, json.dumps({"task_name": run.task, "seed": run.seed}).encode())
        folder.write_json(folder.environment_file, {})
        state: dict[str, Any] = json.loads(folder.read_checkpoint() or b'{"step": 0, "log_bytes": 0}')
        folder.cut_log(state["log_bytes"])
        pace = orders("seconds")
        seconds = float(pace.read_text()) if pace.exists() else 0.0
        for step in range(state["step"] + 1, run.n_training_steps + 1):
            append(folder.log_file, json.dumps({"step": step, "loss": 1 / (step + run.seed)}) + "\n")
            time.sleep(seconds)  # this is how long a step takes
            if stop_signals or step % CHECKPOINT_EVERY == 0:
                saved = {"step": step, "log_bytes": folder.log_file.stat().st_size}
                folder.write_checkpoint(step, json.dumps(saved).encode())
            if stop_signals:
                break
        while orders(f"{run.name}.wait").exists() and not stop_signals:
            time.sleep(0.02)
        if stop_signals:
            say("error: stopped")
            return 143
        say(f"trained {run.name}")
        write_atomically(folder.weights_file, weights(run))
        folder.write_manifest({"steps": run.n_training_steps})
        folder.remove_checkpoints()
    return 0


def append(log: Path, line: str) -> None:
    handle = open_in_place(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, line.encode())
    os.close(handle)


def weights(run: PlannedRun) -> bytes:
    return f"weights of {run.name} {run.n_training_steps} ".encode() * 50


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.orig_argv))
