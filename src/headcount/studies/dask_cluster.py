"""Run the processes of a study on the workers of a Dask cluster.

    launcher                                    task on a worker
    lock the run folder, send its files ------> write them into a temporary folder; start the process of the run
    show the progress <------------------------ report the training steps that are done
    write the files into the run folder <------ send all files back when the process has ended

Workers and launcher need no common disk. A task that takes longer than `SLICE` during a training stops it, sends the
folder back with its checkpoint, and is submitted again: a worker that dies takes at most that much work along. This is
the only module that imports distributed.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from concurrent.futures import Future as Fetching
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import IO, Any, cast

import distributed
from distributed import Client, LocalCluster, WorkerPlugin, get_worker

from headcount.errors import InputError, RunError, argument
from headcount.files import friendly_os_errors, open_in_place, read_bytes
from headcount.limits import PATIENCE
from headcount.runs.folder import RunFolder
from headcount.studies.file import study_path
from headcount.studies.plan import Plan, PlannedRun, training_progress
from headcount.studies.running import AGAIN, BUSY, LOST, STUDY_LOCK, environment, n_cores, take_lock
from headcount.studies.transfer import read_folder, receive, write_folder

LOCAL = "dask"
"""Name of a cluster that is started on this machine and ends with the launcher."""
CONNECTING = 10.0
"""Seconds until a scheduler must have answered the first time."""
ANSWERING = 30.0
"""Seconds until a scheduler that does not answer counts as gone."""
LOOK = 1.0
"""Seconds between two checks of the scheduler: whether it answers, and how many threads its workers have."""
SLICE = 600.0
"""Seconds after which a training is interrupted, so that its checkpoint comes back to the launcher."""
TICK = 0.1
"""Seconds between two checks of a worker whether the process of its run has ended."""
REPORT_EVERY = 2.0
"""Seconds between two reports of a worker on the progress of its run."""
STOPPING = 20.0
"""Seconds that a process has to save its state, before a worker kills it."""
MOST_LOG = 2**20
"""Number of bytes at the end of a run's log that a worker sends back."""
VERSIONS = """{
    "headcount": getattr(__import__("headcount"), "__version__", "")
        if __import__("importlib.util").util.find_spec("headcount") else "",
    "torch": next((each.version for each in __import__("importlib.metadata").metadata.distributions(name="torch")), ""),
    "Python": ".".join(__import__("platform").python_version_tuple()[:2]),
}"""
"""A Python expression that returns the versions of packages that must be equal on all machines; "" if one is missing.

Workers evaluate it as text, because a function of headcount cannot arrive where headcount is missing. Python's third
number is left out, because it changes no result.
"""
RUN = f"""
__import__("headcount.studies.dask_cluster", fromlist=["run_on_worker"]).run_on_worker(task)
    if (versions := {VERSIONS}) == own_versions
    else {{**versions, "worker": __import__("distributed").get_worker().address}}
"""
"""A Python expression that runs a task on a worker; a worker with other versions returns its versions instead."""


# --- on a worker ------------------------------------------------------------------------------------------------------

_stopped = set[str]()
"""Names of the launchers (processes that run a study) that have been interrupted."""


def stop_launcher(launcher: str) -> None:
    """Let the runs of a launcher (a process that runs a study) on this worker save their state and return."""
    _stopped.add(launcher)


def run_on_worker(task: Mapping[str, Any]) -> dict[str, Any]:
    """Run the command of one run in a process of its own; return its exit code, its files and its log."""
    worker = get_worker()
    home = Path(tempfile.mkdtemp(prefix="headcount-", dir=worker.local_directory))
    try:
        folder, log = home / task["folder"], home / "log.txt"
        write_folder(home, task["companions"])
        write_folder(folder, task["files"])
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "headcount", *task["arguments"]],
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment(),
                start_new_session=True,
            )
            was_interrupted = _wait(process, task, folder)
        files = read_folder(folder) if folder.exists() else {}
        return {
            "code": process.returncode,
            "was_interrupted": was_interrupted,
            "files": files,
            "log": read_bytes(log)[-MOST_LOG:],
        }
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _wait(process: subprocess.Popen[bytes], task: Mapping[str, Any], folder: Path) -> bool:
    """Wait until a process has ended; return whether it was asked to end, so that the run must be continued."""
    worker, started = get_worker(), time.monotonic()
    reported = stopping = 0.0
    done = first = training_progress(folder, task["n_steps"])
    is_training = False
    while process.poll() is None:
        now = time.monotonic()
        if now - reported >= REPORT_EVERY:
            done, reported = training_progress(folder, task["n_steps"]), now
            worker.log_event(task["launcher"], {"task": task["key"], "worker": worker.address, "done": done})
            # A measurement would begin again if it was interrupted, and so would a training without a step.
            is_training = done > first and not RunFolder(folder).is_finished
        is_unwanted = task["launcher"] in _stopped or not _is_wanted(worker, task["key"])
        if not stopping and (is_unwanted or (is_training and now - started > task["slice"])):
            process.terminate()
            stopping = now
        if stopping and now - stopping > STOPPING:
            process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(TICK)
    return stopping > 0


def _is_wanted(worker: Any, key: str) -> bool:
    """Return whether the scheduler still waits for a task: not if it was cancelled, or if its launcher was killed."""
    state = worker.state.tasks.get(key)
    return state is not None and state.state != "cancelled"


class IgnoreInterrupts(WorkerPlugin):
    """A Dask plugin with which workers on this machine ignore Ctrl-C, because headcount stops them itself."""

    name = "headcount-ignore-interrupts"

    def setup(self, worker: Any) -> None:
        """Ignore the signal; this runs in the main thread of a worker."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)


# --- the launcher -----------------------------------------------------------------------------------------------------


@dataclass
class EndedProcess:
    """Stands for a run that needs no process of its own: the run is done, or another process works on it."""

    code: int
    place = ""
    error = ""

    def exit_code(self) -> int:
        """Return the exit code."""
        return self.code

    def progress(self) -> None:
        """Return None, because there is no process whose progress could be known."""

    def stop(self) -> None:
        """Do nothing, because there is no process to end."""

    def kill(self) -> None:
        """Do nothing, because there is no process to end."""


@dataclass
class DaskProcess:
    """The process of a run on a worker of a Dask cluster; the run may still wait for a worker."""

    cluster: DaskCluster
    run: PlannedRun
    lock: IO[bytes]
    """The lock of the run folder, which this process holds until the worker has sent the run back."""
    key: str
    client: Client
    future: Any = None
    done: float | None = None
    """Fraction of the training steps that are done; None before the first report."""
    place: str = "its way to a worker"
    error: str = ""
    _fetching: Fetching[dict[str, Any]] | None = None

    def exit_code(self) -> int | None:
        """Return the exit code, or None until the worker has sent the run back; then, write it into its folder."""
        if self.lock.closed:
            return AGAIN
        if (code := self._exit_code()) is not None:
            self._let_go()
        return code

    def _exit_code(self) -> int | None:
        if self._fetching is None:
            if self.future.status == "pending":
                return None
            # Fetched in a thread: it takes a while if the folder is large, or if the worker dies just now.
            self._fetching = self.cluster.fetchers.submit(self.future.result)
        if not self._fetching.done():
            return None
        try:
            result = self._fetching.result()
        except CancelledError:  # the scheduler has gone, or someone has cancelled the task
            return AGAIN
        except distributed.KilledWorker as error:
            self.error = str(error)
            return LOST
        except ModuleNotFoundError as error:
            raise _other_versions(self.place, {"headcount": str(error)}) from error
        except Exception as error:
            if isinstance(error, OSError) or self.client.status != "running":  # the scheduler has gone
                return AGAIN
            self.error = f"the task failed on its worker: {error!r}"
            return 1
        return self._settle(result)

    def _settle(self, result: dict[str, Any]) -> int:
        """Write the files and the log of a run that a worker has sent back, and return its exit code."""
        if "code" not in result:
            raise _other_versions(result["worker"], result)
        with suppress(RunError):
            _append(self.cluster.plan.log_file(self.run), result["log"])
        try:
            receive(self.run.folder, result["files"])
        except RunError as error:
            self.error = f"error: {error}".replace("\n ", ";")
            return BUSY if "another process is training" in error.what else error.exit_code
        return AGAIN if result["was_interrupted"] else int(result["code"])

    def progress(self) -> float | None:
        """Return the fraction of the training steps that are done, as the worker has reported it."""
        return self.done

    def stop(self) -> None:
        """Let the worker save the run's state and send it back; cancel a run that no worker has started."""
        self.cluster.stop_all()
        if self.done is None:
            self.kill()

    def kill(self) -> None:
        """Cancel the run; the worker then kills its process."""
        with suppress(Exception):
            self.future.cancel(force=True)
        self._let_go()

    def _let_go(self) -> None:
        self.cluster.forget(self)
        with suppress(Exception):
            self.future.release()
        self.lock.close()


@dataclass
class DaskCluster:
    """A Dask cluster whose workers execute the runs of a study."""

    plan: Plan
    address: str
    processes: int | None
    """Largest number of runs at a time; None for one per thread of all workers."""
    patience: float
    client: Client | None
    fetchers: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(8))
    launcher: str = field(default_factory=lambda: f"headcount-{uuid.uuid4().hex[:12]}")
    """Name of this launcher (the process that runs the study), under which workers report their progress."""
    n_threads: int = 0
    """Total number of threads of all workers."""
    _processes: dict[str, DaskProcess] = field(default_factory=dict)
    _looked: float = 0.0
    _away_since: float | None = None
    _is_stopping: bool = False

    def __post_init__(self) -> None:
        """Read the files that workers need besides the run folders, and check the versions on all workers."""
        self.companions = {self._study_file: read_bytes(study_path(self.plan.study.source)), **self._other_files()}
        self._subscribe()
        self.require_versions()

    # --- what travels -------------------------------------------------------------------------------------------------

    @property
    def _study_file(self) -> str:
        return f"{self.plan.study.name}.toml"

    @cached_property
    def _out(self) -> Path:
        """The path of the study's folder on a worker, the same as here, for results name the path of their run."""
        out = self.plan.folder
        return Path("runs") / out.name if out.is_absolute() or ".." in out.parts else out

    def _other_files(self) -> dict[str, bytes]:
        """Return the files that the study's flags name; raise an error for a file that cannot be sent to workers."""
        words = {word for run in self.plan.runs for step in run.steps for word in step.arguments}
        named = sorted(word for word in words if not word.startswith("-") and _is_file(word))
        for word in named:
            if Path(word).is_absolute() or ".." in Path(word).parts:
                what = (
                    f"the study names {word}, which is not inside the working directory and cannot be sent to workers"
                )
                raise InputError(what, "copy it into the working directory, and name it by its relative path")
        return {Path(word).as_posix(): read_bytes(Path(word)) for word in named}

    # --- the cluster --------------------------------------------------------------------------------------------------

    @property
    def n_slots(self) -> int:
        """Number of runs at a time: `processes`, or one per thread; 0 while the scheduler does not answer."""
        if self._away_since is not None:
            return 0
        return max(1, self.n_threads) if self.processes is None else self.processes

    def check(self) -> str:
        """Return a notice about the cluster for the user, or ""; raise an error if the scheduler has gone for long."""
        now = time.monotonic()
        if now - self._looked >= LOOK:
            self._looked = now
            try:
                client = self._connected_client()
                scheduler: Any = client.scheduler
                answer = client.sync(scheduler.identity, n_workers=0, callback_timeout=ANSWERING)
                self.n_threads, self._away_since = answer["total_threads"], None
            except OSError:
                self._wait_for_scheduler()
        if self._away_since is None:
            return "" if self.n_threads else f"the scheduler {self.address} has no workers; waiting for them"
        left = max(0.0, self.patience - (now - self._away_since))
        return f"the scheduler {self.address} does not answer; waiting for it, {left:.0f} s more at most"

    def _connected_client(self) -> Client:
        """Return the client; connect again if the scheduler has gone meanwhile, and check its workers."""
        if self.client is None or self.client.status != "running":
            _close(self.client)
            self.client = None
            self.client = _connect(self.address, timeout=2 * LOOK)
            self._subscribe()
            self.require_versions()
        return self.client

    def _wait_for_scheduler(self) -> None:
        """Record that the scheduler does not answer; raise an error if it has not answered for `patience` seconds."""
        _close(self.client)  # what is on workers is lost: a new scheduler does not know it
        self.client = None
        now = time.monotonic()
        self._away_since = self._away_since or now
        if now - self._away_since > self.patience:
            again = f"headcount study {argument(self.plan.study.source)} -o {argument(self.plan.folder)}"
            raise RunError(
                f"the scheduler {self.address} has not answered for {self.patience:.0f} s; finished runs are kept",
                f"continue on this machine: {again}",
                f"or on a cluster: {again} --on {self.address}",
            )

    def require_versions(self) -> None:
        """Raise an error if a worker has other versions of headcount, torch or Python."""
        assert self.client is not None
        for worker, versions in self.client.run(eval, VERSIONS, on_error="ignore").items():
            if versions != own_versions():
                raise _other_versions(worker, versions)

    def _subscribe(self) -> None:
        assert self.client is not None
        self.client.subscribe_topic(self.launcher, self._report)

    def _report(self, event: tuple[float, Mapping[str, Any]]) -> None:
        """Take the report of a worker about the progress of a run."""
        report = event[1]
        if (process := self._processes.get(report["task"])) is not None:
            process.done, process.place = float(report["done"]), str(report["worker"])

    # --- runs ---------------------------------------------------------------------------------------------------------

    def start(self, plan: Any, job: Any) -> DaskProcess | EndedProcess:
        """Lock the folder of a run, and send the run to a worker."""
        run = cast(PlannedRun, job)
        RunFolder(run.folder).require_name()
        if (lock := take_lock(run.folder / STUDY_LOCK)) is None:
            return EndedProcess(BUSY)
        try:
            if run.is_done:  # another launcher has ended it meanwhile
                lock.close()
                return EndedProcess(0)
            with RunFolder(run.folder).locked():  # nobody trains in it
                files = read_folder(run.folder)
        except RunError as error:
            lock.close()
            if "another process is training" in error.what:
                return EndedProcess(BUSY)
            raise
        try:
            assert self.client is not None
            key = f"{self.launcher}-{run.name}-{uuid.uuid4().hex[:8]}"
            process = self._processes[key] = DaskProcess(self, run, lock, key, self.client)
            process.future = self._submit(self.client, run, key, files)
        except BaseException:
            lock.close()
            raise
        return process

    def _submit(self, client: Client, run: PlannedRun, key: str, files: Mapping[str, bytes]) -> Any:
        out = self._out
        task = {
            "key": key,
            "launcher": self.launcher,
            "arguments": ["study", self._study_file, "--out", str(out), "--run", run.name],
            "companions": self.companions,
            "folder": (out.parent / run.folder.parent.name / run.folder.name).as_posix(),
            "files": files,
            "n_steps": run.n_training_steps,
            "slice": SLICE,
        }
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph")  # a run folder is sent once, with its task
            return client.submit(
                eval,
                RUN.replace("\n", " ").strip(),
                {"task": task, "own_versions": own_versions()},
                key=key,
                pure=False,
            )

    def forget(self, process: DaskProcess) -> None:
        """Stop receiving reports about the progress of a run."""
        self._processes.pop(process.key, None)

    def stop_all(self) -> None:
        """Let all workers save the state of this study's runs and send the runs back."""
        if not self._is_stopping and self.client is not None and self.client.status == "running":
            self._is_stopping = True
            with suppress(Exception):
                self.client.run(stop_launcher, self.launcher, on_error="ignore")

    def close(self) -> None:
        """Cancel all runs that are still on the cluster, and disconnect from it."""
        for process in list(self._processes.values()):
            process.kill()
        self.fetchers.shutdown(wait=False, cancel_futures=True)
        _close(self.client)


@cache
def own_versions() -> dict[str, str]:
    """Return the versions of headcount, torch and Python here, which all workers must have as well."""
    return dict(eval(VERSIONS.replace("\n", " ").strip()))


def _other_versions(worker: str, versions: Mapping[str, str]) -> InputError:
    own = own_versions()
    faults = [
        f"{name}: {versions[name] or 'missing'}, not {own[name]}"
        for name in own
        if versions.get(name, own[name]) != own[name]
    ]
    return InputError(
        f"the worker {worker} has other versions of packages than the process that runs the study",
        *faults,
        "install the same versions on both machines",
    )


@contextmanager
def cluster(plan: Plan, on: str, processes: int | None, patience: float = PATIENCE) -> Iterator[DaskCluster]:
    """Yield the cluster on which a plan runs: one that is started here (`dask`), or that of a scheduler's address."""
    if on != LOCAL and "://" not in on:
        raise InputError(
            f"--on must be {LOCAL} or the address of a scheduler, got {on!r}",
            "give an address such as tcp://10.0.0.1:8786",
        )
    for name in (
        "distributed",
        *(f"distributed.{each}" for each in ("client", "worker", "scheduler", "nanny", "core")),
    ):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # this module says what the user should know
    if on != LOCAL:
        with _connected(plan, on, on, processes, patience, None) as connected:
            yield connected
        return
    n_workers = processes or n_cores()
    with (
        LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            processes=True,
            memory_limit=0,
            dashboard_address=None,
            silence_logs=logging.CRITICAL,
            host="127.0.0.1",
        ) as local,
        _connected(
            plan, local.scheduler_address, "on this machine", n_workers, patience, IgnoreInterrupts()
        ) as connected,
    ):
        yield connected


@contextmanager
def _connected(
    plan: Plan, address: str, name: str, processes: int | None, patience: float, plugin: WorkerPlugin | None
) -> Iterator[DaskCluster]:
    try:
        client = _connect(address, CONNECTING)
    except (OSError, ValueError) as error:
        what = f"no Dask scheduler answers at {address}: {str(error).splitlines()[0]}"
        raise InputError(
            what, "start one: dask scheduler", "then its workers: dask worker tcp://HOST:8786 --nthreads 1"
        ) from error
    connected: DaskCluster | None = None
    try:
        if plugin is not None:
            client.register_plugin(plugin)
        connected = DaskCluster(plan, address, processes, patience, client)
        yield connected
    finally:
        if connected is not None:
            connected.close()
        _close(client)


def _connect(address: str, timeout: float) -> Client:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other versions of what headcount does not use
        return Client(address, timeout=timeout, set_as_default=False)


def _close(client: Client | None) -> None:
    """Close a client, whose scheduler may be gone."""
    if client is not None:
        with suppress(Exception):
            client.close(timeout=2)


def _is_file(word: str) -> bool:
    try:
        return Path(word).is_file()
    except (OSError, ValueError):
        return False


def _append(log: Path, data: bytes) -> None:
    with friendly_os_errors(f"write {log}"):
        log.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(open_in_place(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as file:
            file.write(data)
