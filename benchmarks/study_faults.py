"""Does a study lose anything when runs, workers and launchers are killed, or when the disk is full?

    python -m benchmarks study_faults [local|dask|both] [N_RUNS] [N_KILLS]

Several studies of the same short trainings are made, in folders of their own:

1. one is undisturbed, on this machine;
2. in one, two launchers work at once, and random launchers, runs and (with Dask) workers are killed by SIGKILL;
3. one has too small a disk at first;
4. in one, a run always crashes: it must end as failed, the others as done, and the exit code must be 1.

All bytes in the run folders must be those of the undisturbed study, apart from times, and so must all rows. Kills are
spread over the study by the number of finished runs. With Dask, studies 2 to 4 run on a scheduler and two workers in
processes of their own, whose nanny starts a killed worker again. A killed launcher is started again, too.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from benchmarks import Ratio
from headcount.studies.transfer import read_folder

STUDY = """
title = "Many short trainings"
task = "sortedness"
seeds = {seeds}
[settings]
steps = 12
eval_every = 4
checkpoint_every = 3
batch_size = 8
n_values = 20
shortest = 3
longest = 6
n_validation = 20
n_test = 20
d_model = 8
n_heads = 2
n_layers = 1
d_ff = 16
threads = 1
device = "cpu"
"""
BY_CLOCK = re.compile(r"timings\.jsonl|events\.out\.")
"""Files that depend on the clock, and that no manifest has a digest of."""
MEASURED_BY_CLOCK = "seconds of training"
N_LAUNCHERS = N_WORKERS = 2
N_ON_DISK = 12
"""Number of runs of the study whose disk is full."""
SMALL, LARGE = 150, 1000
"""Sizes of a disk in kB per run: half of what a run takes, and more than that."""
TICK = 0.05
"""Seconds between two looks at the processes."""


def measure(where: str = "both", n_runs: str = "200", n_kills: str = "60") -> Iterator[Ratio]:
    """Disturb a study in several ways, and compare what is there in the end with an undisturbed study."""
    with tempfile.TemporaryDirectory(prefix="headcount-faults-") as folder:
        home, seeds = Path(folder), int(n_runs)
        calm = study_folder(home / "calm", seeds)
        run_launcher(calm)
        for place in ("local", "dask") if where == "both" else (where,):
            (home / place).mkdir()
            with _cluster(home / place, place) as (address, nannies):
                on = ["--on", address] if address else []
                yield _killed(study_folder(home / place / "killed", seeds), calm, on, nannies, int(n_kills))
                yield _disk_full(study_folder(home / place / "full", min(seeds, N_ON_DISK)), calm, on)
                yield _always_crashing(study_folder(home / place / "crashing", 3), on)


def _cluster(home: Path, place: str) -> AbstractContextManager[tuple[str, list[int]]]:
    """Return the processes of a Dask cluster, or nothing for a study on this machine."""
    return dask_processes(home) if place == "dask" else nullcontext(("", []))


def study_folder(folder: Path, seeds: int) -> Path:
    """Make a folder with a study of short trainings."""
    folder.mkdir()
    (folder / "faults.toml").write_text(STUDY.format(seeds=seeds))
    return folder


def launcher(on: Sequence[str] = (), retries: int = 1000) -> list[str]:
    """Return the command that runs the study of the working directory."""
    words = ["study", "faults.toml", "--processes", str(N_WORKERS), "--retries", str(retries), "--json", *on]
    return [sys.executable, "-m", "headcount", *words]


def run_launcher(folder: Path, on: Sequence[str] = (), retries: int = 1000, expected: Sequence[int] = (0,)) -> Any:
    """Run the study of a folder to its end, and return its JSON."""
    ended = subprocess.run(launcher(on, retries), cwd=folder, capture_output=True, text=True, check=False)
    if ended.returncode not in expected:
        raise RuntimeError(f"the study ended with code {ended.returncode}:\n{ended.stderr}")
    return json.loads(ended.stdout) if ended.stdout else None


def _killed(folder: Path, calm: Path, on: Sequence[str], nannies: Sequence[int], n_kills: int) -> Ratio:
    """Kill processes of the study of a folder, and let a last launcher end it."""
    n_runs = len(list((calm / "runs" / "models").iterdir()))
    log = (folder / "launchers.log").open("ab")

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(launcher(on), cwd=folder, stdout=subprocess.DEVNULL, stderr=log)

    def n_done() -> int:
        return len(list((folder / "runs" / "models").glob("*/manifest.json")))

    started = time.monotonic()
    with log:
        kills = disturb(start, n_done, n_runs, n_kills, random.Random(0), nannies)
    states = run_launcher(folder, on)["runs"]
    n_lost = sum(state["state"] != "done" for state in states)
    unequal = differences(folder, calm)
    counts = ", ".join(f"{n} {kind}s" for kind, n in sorted(kills.items()))
    print(
        f"  killed: {counts}; {time.monotonic() - started:.0f} s; unequal: {unequal[:5]}", file=sys.stderr, flush=True
    )
    place = "Dask" if on else "local processes"
    question = f"{n_runs} runs, {kills.total()} kills ({counts}), two launchers, {place}"
    kept = kills.total() == n_kills and not n_lost and not unequal
    return Ratio(question, f"{len(unequal)} unequal, {n_lost} lost", "undisturbed", len(unequal), "all equal", kept)


def disturb(
    start: Callable[[], subprocess.Popen[bytes]],
    n_done: Callable[[], int],
    n_runs: int,
    n_kills: int,
    rng: random.Random,
    nannies: Sequence[int] = (),
) -> Counter[str]:
    """Kill launchers, runs and workers, started again each time, until all kills are done and the launchers have ended.

    The i-th process is killed when i / (n_kills + 1) of the runs are finished. `nannies` are the processes that start
    workers. The numbers of killed processes are returned by kind.
    """
    kills = Counter[str]()
    launchers = [start() for _ in range(N_LAUNCHERS)]
    try:
        while kills.total() < n_kills:
            launchers = [each if each.poll() is None else start() for each in launchers]
            if n_done() * (n_kills + 1) >= (kills.total() + 1) * n_runs:
                kind = rng.choice(["run", "run", "launcher", *(["worker"] if nannies else [])])
                kills[kind] += _kill_one(kind, launchers, nannies, rng)
            time.sleep(TICK)
        for each in launchers:
            each.wait()
    finally:
        for each in launchers:
            each.kill()
            each.wait()
    return kills


def _kill_one(
    kind: str, launchers: Sequence[subprocess.Popen[bytes]], nannies: Sequence[int], rng: random.Random
) -> int:
    """Kill a random process of this kind; return the number of killed processes, 0 if there is none at present."""
    if kind == "launcher":
        victim = rng.choice(launchers)
        victim.kill()
        victim.wait()
        return 1
    parents = nannies or [each.pid for each in launchers]
    victims = []
    for parent in parents:
        with suppress(psutil.NoSuchProcess):
            for process in psutil.Process(parent).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    words = process.cmdline()
                    is_run, is_worker = "--run" in words, any("spawn_main" in word for word in words)
                    if is_run if kind == "run" else is_worker:
                        victims.append(process)
    if not victims:
        return 0
    with suppress(psutil.NoSuchProcess):
        rng.choice(victims).kill()
        return 1
    return 0


def differences(folder: Path, calm: Path) -> list[str]:
    """Return the files and rows of a study that are not those of the undisturbed one, which may have more runs."""
    ours, theirs = (read_folder(each / "runs" / "models") for each in (folder, calm))
    names = {name.partition("/")[0] for name in ours}
    files = {name for name in {*ours, *theirs} if not BY_CLOCK.search(name) and name.partition("/")[0] in names}
    unequal = sorted(name for name in files if ours.get(name) != theirs.get(name))
    return unequal + [str(row) for row in _different_rows(folder, calm)]


def _different_rows(folder: Path, calm: Path) -> list[Mapping[str, Any]]:
    """Return the rows that only one of two studies has, or that one of them has twice."""
    ours, theirs = (list(_rows(each)) for each in (folder, calm))
    runs = {row["run"] for row in ours}
    counts = Counter(json.dumps(row) for row in ours)
    counts.subtract(json.dumps(row) for row in theirs if row["run"] in runs)
    return [json.loads(row) for row, n in counts.items() if n]


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    file = folder / "runs" / "faults" / "rows.jsonl"
    for line in file.read_text().splitlines() if file.exists() else []:
        row = json.loads(line)
        if row["measure"] != MEASURED_BY_CLOCK:
            yield row


def _disk_full(folder: Path, calm: Path, on: Sequence[str]) -> Ratio:
    """Run a study on a disk that is too small, make the disk larger, and continue."""
    runs, n_runs = folder / "runs", (folder / "faults.toml").read_text().partition("seeds = ")[2].split()[0]
    runs.mkdir()
    small, large = (f"size={size * int(n_runs)}k" for size in (SMALL, LARGE))
    subprocess.run(["mount", "-t", "tmpfs", "-o", small, "tmpfs", str(runs)], check=True)
    try:
        run_launcher(folder, on, retries=0, expected=(1, 2))
        n_before = len(list((runs / "models").glob("*/manifest.json")))
        subprocess.run(["mount", "-o", f"remount,{large}", str(runs)], check=True)
        states = run_launcher(folder, on, retries=0)["runs"]
        unequal = differences(folder, calm)
        n_reused = sum(state["reused"] for state in states)
    finally:
        subprocess.run(["umount", str(runs)], check=True)
    print(
        f"  disk full: {n_before} runs before, {n_reused} reused; unequal: {unequal[:5]}", file=sys.stderr, flush=True
    )
    question = f"{len(states)} runs, the disk is full after {n_before} of them"
    kept = not unequal and 0 < n_before == n_reused < len(states)
    return Ratio(question, f"{len(unequal)} unequal", "undisturbed", len(unequal), "all equal", kept)


def _always_crashing(folder: Path, on: Sequence[str]) -> Ratio:
    """Run a study whose second run finds files of somebody else in its folder."""
    plan = subprocess.run([*launcher(), "--print-commands"], cwd=folder, capture_output=True, text=True, check=True)
    assert "seed=1" in plan.stdout
    run_folder = _folder_of(folder, "seed=1")
    run_folder.mkdir(parents=True)
    (run_folder / "notes.txt").write_text("of somebody else")
    states = {state["run"]: state["state"] for state in run_launcher(folder, on, retries=1, expected=(1,))["runs"]}
    kept = states == {"seed=0": "done", "seed=1": "failed", "seed=2": "done"}
    return Ratio("a run that always crashes", ", ".join(states.values()), "exit code 1", 0, "failed, exit 1", kept)


def _folder_of(folder: Path, name: str) -> Path:
    """Return the folder of a run of the study in a folder."""
    from headcount.studies.file import read_study
    from headcount.studies.plan import make_plan

    return folder / make_plan(read_study(folder / "faults.toml"), Path("runs") / "faults").find(name).folder


@contextmanager
def dask_processes(folder: Path) -> Iterator[tuple[str, list[int]]]:
    """Start a scheduler and workers; yield the scheduler's address and the process that starts workers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    scheduler = ["scheduler", "--host", "127.0.0.1", "--port", address.rpartition(":")[2], "--no-dashboard"]
    workers = ["worker", address, "--nworkers", str(N_WORKERS), "--nthreads", "1", "--memory-limit", "0"]
    workers += ["--no-dashboard", "--local-directory", str(folder)]
    processes = list[subprocess.Popen[bytes]]()
    with (folder / "dask.log").open("ab") as log:
        for words in (scheduler, workers):
            command = [sys.executable, "-m", "dask", *words]
            processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=dict(os.environ)))
    try:
        yield address, [processes[1].pid]
    finally:
        for process in reversed(processes):
            process.send_signal(signal.SIGKILL)
            process.wait()
