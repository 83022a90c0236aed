"""Runs travel to workers of a Dask cluster and come back; killed workers, schedulers and launchers lose nothing.

Scheduler, workers and the processes of runs are real. The runs train nothing (tests/support/quick_runs): they write,
checkpoint and resume as a training does, without importing torch.
"""

from __future__ import annotations

import ast
import errno
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from headcount.api.studying import run_study
from headcount.cli import main
from headcount.errors import InputError, RunError
from headcount.runs.folder import RunFolder
from headcount.studies import dask_cluster, running
from headcount.studies.dask_cluster import cluster
from headcount.studies.file import read_study
from headcount.studies.plan import Plan, make_plan
from headcount.studies.running import LocalProcesses, Progress, execute, take_lock
from headcount.studies.transfer import read_folder, receive

pytestmark = pytest.mark.slow
QUICK = Path(__file__).parents[1] / "support" / "quick_runs"
STUDY = """
title = "Quick"
task = "sortedness"
seeds = {seeds}
[settings]
steps = 6
d_model = 16
n_layers = 1
[measure]
audit = true
"""


@dataclass
class Place:
    """A folder with a study, its plan, and the folder with the orders for its runs."""

    folder: Path
    plan: Plan
    orders: Path

    def order(self, name: str, text: str = "") -> None:
        (self.orders / name).write_text(text)

    def withdraw(self, name: str) -> None:
        (self.orders / name).unlink()

    @property
    def started(self) -> list[str]:
        """Names of the runs whose processes were started, in their order."""
        file = self.orders / "started"
        return [line.split()[0] for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def files(self) -> dict[str, bytes]:
        """All files of all runs."""
        return read_folder(self.folder / "runs" / "models")

    def checkpoints(self, name: str) -> list[str]:
        """Names of the checkpoints of a run, without their digests."""
        return sorted(file.name[:20] for file in self.plan.find(name).folder.glob("checkpoint-*"))


def make_place(folder: Path, orders: Path, monkeypatch: pytest.MonkeyPatch, seeds: int = 3) -> Place:
    """Make a study and enter its folder; processes of runs that are started from now on are quick."""
    folder.mkdir(exist_ok=True)
    monkeypatch.chdir(folder)
    Path("quick.toml").write_text(STUDY.format(seeds=seeds))
    place = Place(folder, make_plan(read_study("quick.toml"), Path("runs/quick")), orders)
    orders.mkdir(exist_ok=True)
    for file in orders.iterdir():
        file.unlink()
    (orders / "runs").write_bytes(pickle.dumps({run.name: run for run in place.plan.runs}))
    (orders / "plan").write_bytes(pickle.dumps(place.plan))
    for name, value in environment(orders).items():
        monkeypatch.setenv(name, value)
    return place


def environment(orders: Path) -> dict[str, str]:
    """Return the environment in which the processes of runs are quick."""
    source = Path(running.__file__).parents[2]
    return {"PYTHONPATH": os.pathsep.join(map(str, (QUICK, source))), "QUICK_RUN": str(orders)}


@dataclass
class Processes:
    """A scheduler and workers in processes of their own; the scheduler's address does not change."""

    folder: Path
    orders: Path
    port: int
    scheduler: subprocess.Popen[bytes] | None = None
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def start_scheduler(self) -> None:
        words = ["scheduler", "--host", "127.0.0.1", "--port", str(self.port)]
        self.scheduler = self._start(*words, "--no-dashboard")

    def start_workers(self, n: int = 1, path: Path | None = None) -> None:
        """Start n workers with a nanny, which starts a worker that has died again."""
        words = ["worker", self.address, "--nworkers", str(n), "--nthreads", "1", "--memory-limit", "0"]
        first = {} if path is None else {"PYTHONPATH": f"{path}{os.pathsep}{environment(self.orders)['PYTHONPATH']}"}
        self.workers.append(self._start(*words, "--no-dashboard", "--local-directory", str(self.folder), **first))

    def _start(self, *words: str, **variables: str) -> subprocess.Popen[bytes]:
        # Two deaths of workers make a task suspicious; Dask's own limit is four.
        own = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1", **environment(self.orders), **variables}
        with (self.folder / f"{words[0]}.log").open("ab") as log:
            command = [sys.executable, "-m", "dask", *words]
            return subprocess.Popen(command, env={**os.environ, **own}, stdout=log, stderr=log)

    def kill_all(self) -> None:
        """Kill scheduler and workers for good; a worker ends with its nanny."""
        for process in [*self.workers, *([self.scheduler] if self.scheduler else [])]:
            process.kill()
            process.wait()
        self.workers.clear()


def start_processes(folder: Path) -> Processes:
    """Start a scheduler without workers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        processes = Processes(folder, folder / "orders", free.getsockname()[1])
    processes.start_scheduler()
    return processes


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """A scheduler with two workers."""
    processes = start_processes(tmp_path_factory.mktemp("dask"))
    processes.start_workers(2)
    yield processes
    processes.kill_all()


@pytest.fixture
def place(tmp_path: Path, shared: Processes, monkeypatch: pytest.MonkeyPatch) -> Place:
    return make_place(tmp_path / "here", shared.orders, monkeypatch)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a study of three seeds that ran on this machine, without Dask, and undisturbed."""
    folder = tmp_path_factory.mktemp("calm")
    with pytest.MonkeyPatch.context() as patch:
        place = make_place(folder, folder / "orders", patch)
        assert not execute(place.plan, LocalProcesses(2)).of("failed")
        return place.files


def once(condition: Callable[[Progress], bool], act: Callable[[], None]) -> Callable[[Progress], None]:
    """Return a listener of `execute` that acts when a condition holds for the first time."""
    acted = list[bool]()

    def on_change(progress: Progress) -> None:
        if not acted and condition(progress):
            acted.append(True)
            act()

    return on_change


def has_trained(name: str) -> Callable[[Progress], bool]:
    """Return a condition: whether a worker has reported that the run of this name has done all its steps."""
    return lambda progress: any(
        state.run.name == name and state.process is not None and state.progress() == 1 for state in progress.states
    )


def interrupt() -> None:
    raise KeyboardInterrupt


def states(progress: Progress) -> list[str]:
    return [state.state for state in progress.states]


def worker_of(place: Place, name: str) -> int:
    """Return the process id of the worker that has started a run last."""
    lines = [line.split() for line in (place.orders / "started").read_text().splitlines()]
    return int(next(parent for run, _, parent in reversed(lines) if run == name))


def test_runs_travel_and_come_back(place: Place, shared: Processes, undisturbed: dict[str, bytes]) -> None:
    """A run that was begun here is continued there; the folders are those of a study without Dask."""
    place.order("seed=0.wait")
    with pytest.raises(KeyboardInterrupt):
        execute(place.plan, LocalProcesses(1), on_change=once(lambda _: bool(place.checkpoints("seed=0")), interrupt))
    place.withdraw("seed=0.wait")
    assert place.checkpoints("seed=0")
    with cluster(place.plan, shared.address, None) as workers:
        progress = execute(place.plan, workers)
    assert states(progress) == ["done"] * 3
    assert place.files == undisturbed
    assert sorted(place.started) == ["seed=0", "seed=0", "seed=1", "seed=2"]
    assert "trained seed=2" in place.plan.log_file(place.plan.runs[2]).read_text()
    assert not list(shared.folder.rglob("model.safetensors"))  # workers keep nothing
    assert {path.name for path in place.plan.runs[0].folder.glob(".*")} == {".lock", ".study-lock"}


def test_a_worker_that_dies_loses_nothing(
    place: Place, shared: Processes, undisturbed: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint comes back after each slice of a training; a dead worker is no crash of its run."""
    monkeypatch.setattr(dask_cluster, "SLICE", 0.0)
    place.order("seed=1.wait")

    checkpoints = list[list[str]]()

    def kill_worker() -> None:
        checkpoints.append(place.checkpoints("seed=1")[-1:])
        os.kill(worker_of(place, "seed=1"), signal.SIGKILL)
        place.withdraw("seed=1.wait")

    with cluster(place.plan, shared.address, 2) as workers:
        continues = once(lambda _: place.started.count("seed=1") == 2, kill_worker)
        progress = execute(place.plan, workers, retries=0, on_change=continues)
    assert states(progress) == ["done"] * 3
    assert place.started.count("seed=1") == 3
    assert checkpoints == [["checkpoint-000000006"]]
    assert place.files == undisturbed


def test_a_run_that_kills_its_workers_fails_and_the_others_are_done(
    place: Place, shared: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "MOST_LOST", 1)
    place.order("seed=0.murder")
    with cluster(place.plan, shared.address, 2) as workers:
        progress = execute(place.plan, workers)
    assert states(progress) == ["failed", "done", "done"]
    assert progress.states[0].error.startswith("its workers died")
    assert place.started.count("seed=0") == 4, "two deaths in company make it a suspect, and two alone decide"


def test_a_run_that_always_crashes_fails_with_the_error_of_its_log(place: Place, shared: Processes) -> None:
    place.order("seed=2.crash")
    with cluster(place.plan, shared.address, 2) as workers:
        progress = execute(place.plan, workers, retries=1)
    assert states(progress) == ["done", "done", "failed"]
    assert progress.states[2].error == "error: ordered to crash"
    assert place.started.count("seed=2") == 2


def test_ctrl_c_brings_the_checkpoints_back(place: Place, shared: Processes, undisturbed: dict[str, bytes]) -> None:
    place.order("seed=0.wait")
    with cluster(place.plan, shared.address, 1) as workers, pytest.raises(KeyboardInterrupt):
        execute(place.plan, workers, on_change=once(has_trained("seed=0"), interrupt))
    assert place.checkpoints("seed=0")
    place.withdraw("seed=0.wait")
    assert states(execute(place.plan, LocalProcesses(2))) == ["done"] * 3  # continued on this machine
    assert place.files == undisturbed


def test_ctrl_c_in_a_terminal_reaches_the_launcher_alone(place: Place) -> None:
    """The workers of a local cluster belong to the terminal, too, and go on, so that their checkpoints come back."""
    place.order("seed=0.wait")
    command = [sys.executable, str(QUICK / "quick_launch.py"), "dask", "1", "seed=0"]
    launcher = subprocess.run(command, start_new_session=True, stderr=subprocess.PIPE, check=False, text=True)
    assert launcher.returncode == -signal.SIGINT
    assert launcher.stderr.splitlines()[-1] == "KeyboardInterrupt"
    assert "checkpoint-000000006" in place.checkpoints("seed=0")


def test_two_launchers_share_the_work_and_a_killed_one_leaves_no_process_behind(
    place: Place, shared: Processes, undisturbed: dict[str, bytes]
) -> None:
    place.order("seed=0.wait")
    command = [sys.executable, str(QUICK / "quick_launch.py"), shared.address, "1"]
    first = subprocess.Popen(command)

    def kill_first() -> None:
        first.kill()
        first.wait()
        place.withdraw("seed=0.wait")

    wait_until(lambda: "seed=0" in place.started)
    first_run = int((place.orders / "started").read_text().split()[1])
    with cluster(place.plan, shared.address, 1) as workers:
        progress = execute(
            place.plan, workers, on_change=once(lambda progress: len(progress.of("done")) == 2, kill_first)
        )
    assert states(progress) == ["done"] * 3
    assert not progress.states[1].is_reused
    assert place.started.count("seed=1") == place.started.count("seed=2") == 1
    assert place.files == undisturbed
    wait_until(lambda: not Path(f"/proc/{first_run}").exists())


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_scheduler_that_goes_away_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, bytes]
) -> None:
    processes = start_processes(tmp_path)
    place = make_place(tmp_path / "here", processes.orders, monkeypatch)
    place.order("seed=0.wait")
    acts: list[tuple[Callable[[Progress], bool], Callable[[], None]]] = [
        (has_trained("seed=0"), processes.kill_all),
        (lambda progress: "does not answer" in progress.notice, processes.start_scheduler),
        (lambda progress: "has no workers" in progress.notice, processes.start_workers),
        (has_trained("seed=0"), lambda: place.withdraw("seed=0.wait")),
        (lambda progress: len(progress.of("done")) == 1, processes.kill_all),
    ]

    def run_on_cluster() -> None:
        with cluster(place.plan, processes.address, 1, patience=60) as workers:

            def on_change(progress: Progress) -> None:
                if acts and acts[0][0](progress):
                    acts.pop(0)[1]()
                workers.patience = 60 if acts else 0.01

            execute(place.plan, workers, retries=0, on_change=on_change)

    monkeypatch.setattr(dask_cluster, "LOOK", 0.1)
    try:
        processes.start_workers()
        with pytest.raises(RunError, match=r"has not answered for 0 s") as caught:
            run_on_cluster()
    finally:
        processes.kill_all()
    assert "continue on this machine: headcount study quick.toml -o runs/quick" in str(caught.value)
    progress = execute(place.plan, LocalProcesses(2))
    assert progress.states[0].is_reused
    assert place.files == undisturbed


def test_a_worker_with_another_torch_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processes = start_processes(tmp_path)
    place = make_place(tmp_path / "here", processes.orders, monkeypatch)
    other = tmp_path / "other" / "torch-1.0.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.0\n")

    def join() -> None:
        processes.start_workers(path=other.parent)

    def run_on_cluster() -> None:
        with cluster(place.plan, processes.address, None) as workers:
            execute(place.plan, workers, on_change=once(lambda progress: "has no workers" in progress.notice, join))

    try:
        with pytest.raises(InputError, match=r"torch: 1\.0, not "):
            run_on_cluster()  # the worker joins while the study runs
        monkeypatch.setattr(dask_cluster.DaskCluster, "start", None)
        with pytest.raises(InputError, match=r"torch: 1\.0, not "):
            run_on_cluster()  # the worker is there before the study starts
    finally:
        processes.kill_all()
    assert not place.started


# --- without a cluster ------------------------------------------------------------------------------------------------


def test_what_is_missing_on_a_worker_is_found_without_importing_it() -> None:
    """`-S` hides the packages that are installed."""
    code = f"print(eval({dask_cluster.VERSIONS!r}))"
    isolated = [sys.executable, "-I", "-S", "-c", code]
    versions = ast.literal_eval(subprocess.run(isolated, capture_output=True, text=True, check=True).stdout)
    assert (versions["headcount"], versions["torch"]) == ("", "")
    assert "headcount: missing, not" in str(dask_cluster._other_versions("tcp://w", versions))
    assert dask_cluster.own_versions()["torch"] == torch.__version__


def test_an_address_without_a_scheduler_and_a_wrong_word_are_errors(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_cluster, "CONNECTING", 0.2)
    with pytest.raises(InputError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:9"):
        run_study(place.plan, on="tcp://127.0.0.1:9", quiet=True)
    with pytest.raises(InputError, match="--on must be dask or the address"):
        run_study(place.plan, on="desk", quiet=True)


def test_without_distributed_the_error_says_how_to_install_it(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "headcount.studies.dask_cluster")
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert main(["study", "quick.toml", "--on", "dask"]) == 2
    assert "pip install 'headcount[dask]'" in capsys.readouterr().err


def test_help_imports_neither_distributed_nor_torch() -> None:
    code = "import sys; from headcount.cli import main\ntry: main(['study', '--help'])\nexcept SystemExit: pass\n"
    code += "sys.exit(bool({'distributed', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0


def test_a_file_that_workers_cannot_get_is_an_error_before_runs_start(
    place: Place, shared: Processes, tmp_path: Path
) -> None:
    (tmp_path / "claims.toml").write_text("")
    Path("near.toml").write_text("near")
    text = STUDY.format(seeds=1) + "claims = [{ file = 'near.toml' }, { file = 'FILE' }]\n"
    Path("quick.toml").write_text(text.replace("FILE", str(tmp_path / "claims.toml")))
    with pytest.raises(InputError, match=r"claims\.toml, which is not inside the working directory"):
        run_study("quick.toml", on=shared.address, quiet=True)
    Path("quick.toml").write_text(text.replace("FILE", "near.toml"))
    with cluster(make_plan(read_study("quick.toml"), Path("runs/quick")), shared.address, None) as workers:
        assert workers.companions["near.toml"] == b"near"


def test_a_run_that_another_process_holds_is_not_sent(place: Place, shared: Processes) -> None:
    run = place.plan.runs[0]
    with cluster(place.plan, shared.address, 1) as workers:
        lock = take_lock(run.folder / running.STUDY_LOCK)
        assert lock is not None
        assert workers.start(place.plan, run).exit_code() == running.BUSY
        lock.close()
        with RunFolder(run.folder).locked():
            assert workers.start(place.plan, run).exit_code() == running.BUSY
    assert not place.started


def test_a_finished_run_is_never_replaced(tmp_path: Path) -> None:
    finished = {"config.json": b"{}", "model.safetensors": b"mine", "manifest.json": b'{"steps": 1}'}
    receive(tmp_path, finished)
    for other in ({**finished, "manifest.json": b'{"steps": 2}'}, {"config.json": b"{}"}):
        with pytest.raises(
            RunError, match="was changed on this machine while its training was continued on another machine"
        ):
            receive(tmp_path, other)
    assert read_folder(tmp_path) == finished
    receive(tmp_path, finished | {"results/audit.json": b"{}"})
    assert (tmp_path / "results/audit.json").read_bytes() == b"{}"


@pytest.mark.parametrize("name", ["../x", "/tmp/x", ".study-lock", "a/../../x", ""])
def test_a_file_outside_of_the_run_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunError, match="outside of the run's folder"):
        receive(tmp_path / "run", {"config.json": b"{}", name: b""})
    assert read_folder(tmp_path / "run") == {}


def test_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {"config.json": b"{}", "log.jsonl": b"1", f"checkpoint-000000002-{'0' * 16}.safetensors": b"old"}
    after = {"config.json": b"{}", "log.jsonl": b"12", f"checkpoint-000000004-{'1' * 16}.safetensors": b"new"}
    receive(tmp_path, before)
    n_written = list[int]()

    def full(handle: int) -> None:
        n_written.append(handle)
        if len(n_written) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="the disk is full"):
        receive(tmp_path, after)
    assert read_folder(tmp_path) == before
    receive(tmp_path, after)
    assert read_folder(tmp_path) == after
    assert not (tmp_path / ".incoming").exists()
