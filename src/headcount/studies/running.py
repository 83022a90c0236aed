"""Run the plan of a study: each run in its own process, several at once, so that a crash takes down nothing else.

    launcher (headcount study FILE)             process of a job (headcount study FILE --run NAME)
    start it, with one thread ----------------> lock the run folder; exit with BUSY if another process has it
    show what runs, wait                        repeat every command that has no receipt; write the receipts
    read the exit code <----------------------- end

The run folders hold all results, and receipts say what is done. The launcher may therefore be killed and started again
at any time, and two launchers share the work: a run that another process holds is looked at again later.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from headcount.errors import InputError, RunError
from headcount.files import friendly_os_errors, open_in_place, read_bytes
from headcount.limits import MOST_LOST, RETRIES
from headcount.runs.folder import RunFolder
from headcount.studies.plan import PlannedRun, result_files

STUDY_LOCK = ".study-lock"
"""Name of the lock file, inside a run folder, that is locked while a process trains or measures the run."""
BUSY = 75
"""Exit code of a process that finds its run folder locked by another process (EX_TEMPFAIL of sysexits.h)."""
AGAIN, LOST = 1000, 1001
"""Exit codes of a process that did not crash, but was interrupted, or lost its worker: its work is continued."""
TICK = 0.05
"""Seconds between two checks of the running processes."""
BUSY_AFTER = 1.0
"""Seconds between two checks of a run that another process works on."""
STOPPING = 30.0
"""Seconds that processes have to save their state after an interrupt, before they are killed."""
TAIL = 2_000
"""Number of bytes at the end of a log in which the error of a failed run is looked for."""
THREADS = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"),
    "MPLBACKEND": "agg",
}
"""Environment variables of the process of a run, which must be set before it imports torch."""
LAUNCHER = "HEADCOUNT_LAUNCHER"
"""Environment variable with the process id of the launcher, whose end also ends the process of a run."""


class Job(Protocol):
    """Work that has a process of its own: a run of a study, or a part of the experiments of `headcount lab`."""

    @property
    def name(self) -> str:
        """Name of the job, which no other job of its plan has."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the jobs that must be done before this one starts."""

    @property
    def weight(self) -> float:
        """The duration of the job relative to the other jobs of its plan."""

    @property
    def is_done(self) -> bool:
        """Whether the job has nothing left to do."""

    def progress(self) -> float:
        """Return the fraction of the job's work that its running process has done, from 0 to 1."""


class JobPlan(Protocol):
    """Jobs, and how each of them is started."""

    @property
    def title(self) -> str:
        """A title of the jobs, which is shown above the table of their progress."""

    @property
    def jobs(self) -> Sequence[Job]:
        """All jobs, in the order in which they start."""

    def log_file(self, job: Job) -> Path:
        """Return the path of the file that gets all text that the process of a job prints."""

    def arguments(self, job: Any) -> list[str]:
        """Return the arguments of `headcount` with which the process of a job is started."""


@dataclass
class RunState:
    """What headcount knows about one run while a study runs: whether it waits, runs, is done or has failed."""

    run: Job
    state: str = "waiting"
    """One of `waiting`, `running`, `elsewhere` (another process works on it), `done` and `failed`."""
    n_crashes: int = 0
    is_suspect: bool = False
    """Whether a worker died while it had this run and perhaps others; the run is then started alone."""
    n_lost: int = 0
    """Number of times that this run lost its worker while no other run was started, since it last made progress."""
    process: Process | None = None
    """The process that works on the run; None unless the run is running."""
    seconds: float = 0.0
    """Duration of the run's last process in seconds; up to now, if it is still running."""
    started: float = 0.0
    is_reused: bool = False
    """Whether the run was done before the study started."""
    error: str = ""
    """Why a run failed: the last line of its log, as a rule."""

    def progress(self) -> float | None:
        """Return the fraction of the work that is done, or None if it is not known."""
        return self.run.progress() if self.process is None else self.process.progress()

    @property
    def place(self) -> str:
        """Where the process runs; empty for this machine."""
        return "" if self.process is None else self.process.place


class Process(Protocol):
    """The process of one run, on this machine or elsewhere."""

    @property
    def place(self) -> str:
        """Where the process runs; empty for this machine."""

    @property
    def error(self) -> str:
        """Why the process failed, if its log does not say so."""

    def exit_code(self) -> int | None:
        """Return the exit code, or None while the process runs; `BUSY`, `AGAIN` and `LOST` are not crashes."""

    def progress(self) -> float | None:
        """Return the fraction of the work that is done, or None if it is not known."""

    def stop(self) -> None:
        """Ask the process to save its state and to end."""

    def kill(self) -> None:
        """End the process now."""


class Backend(Protocol):
    """The interface of a place where runs are executed, such as this machine or a cluster."""

    @property
    def n_slots(self) -> int:
        """Number of runs that may be executed at the same time now."""

    def start(self, plan: JobPlan, job: Job) -> Process:
        """Start the process of a job."""

    def check(self) -> str:
        """Return a notice for the user, such as that there is no worker, or ""; raise an error if no run can start."""


@dataclass
class LocalProcess:
    """A process on this machine."""

    popen: subprocess.Popen[bytes]
    job: Job
    place = ""
    error = ""

    def exit_code(self) -> int | None:
        """Return the exit code, or None while the process runs; -N means that signal N ended it."""
        return self.popen.poll()

    def progress(self) -> float:
        """Return the fraction of the work that is done."""
        return self.job.progress()

    def stop(self) -> None:
        """Send SIGTERM: a training then saves a checkpoint and ends."""
        self.popen.terminate()

    def kill(self) -> None:
        """Kill the process and wait for its end."""
        self.popen.kill()
        self.popen.wait()


@dataclass(frozen=True)
class LocalProcesses:
    """Processes on this machine, with one thread each."""

    n_slots: int

    def start(self, plan: JobPlan, job: Job) -> LocalProcess:
        """Start the process of a job; its output goes to the log of the job."""
        log = plan.log_file(job)
        with friendly_os_errors(f"write {log}"):
            log.parent.mkdir(parents=True, exist_ok=True)
            handle = open_in_place(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            command = [sys.executable, "-m", "headcount", *plan.arguments(job)]
            # A session of its own: Ctrl-C in the terminal reaches the launcher alone, which then stops every process.
            return LocalProcess(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=handle,
                    stderr=handle,
                    env=environment(),
                    start_new_session=True,
                ),
                job,
            )
        finally:
            os.close(handle)

    def check(self) -> str:
        """Return an empty notice, because this machine is always available."""
        return ""


def environment() -> dict[str, str]:
    """Return the environment variables for the process of a run."""
    return {**os.environ, **THREADS, LAUNCHER: str(os.getpid())}


def n_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass
class Progress:
    """The state of a study while it runs."""

    plan: JobPlan
    states: list[RunState]
    n_slots: int
    notice: str = ""
    """A notice for the user about the place where runs are executed, such as that a cluster has no workers; or ""."""
    started: float = field(default_factory=time.monotonic)

    def of(self, state: str) -> list[RunState]:
        """Return the runs in this state, such as `waiting`."""
        return [each for each in self.states if each.state == state]

    def seconds_left(self) -> float | None:
        """Estimate the seconds until the end of the study from the runs that have ended; None before the first one."""
        ended = [each for each in self.states if each.state == "done" and not each.is_reused]
        if not ended:
            return None
        pace = sum(each.seconds for each in ended) / sum(each.run.weight for each in ended)
        left = pace * sum(each.run.weight for each in self.of("waiting"))
        left += sum(max(0.0, pace * each.run.weight - each.seconds) for each in self.of("running"))
        return left / max(1, self.n_slots)


def execute(
    plan: JobPlan,
    backend: Backend,
    *,
    retries: int = RETRIES,
    on_change: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Run all jobs of a plan that are not done, `backend.n_slots` at a time, and return the states of all jobs.

    A job that crashes is started again `retries` times; then it counts as failed, as do the jobs that need it, and the
    others go on. An interrupt stops all processes, which save their state first, and is raised again.

    If a worker dies, any of the runs that it had may be the cause. These runs are suspects: they wait for all others,
    and are then started one at a time. A run that loses its worker `MOST_LOST` times while it runs alone has failed.
    """
    progress = Progress(plan, [RunState(job) for job in plan.jobs], backend.n_slots)
    waiting, suspects, later = deque(progress.states), deque[RunState](), list[tuple[float, RunState]]()
    running = dict[int, tuple[RunState, Process]]()
    try:
        while waiting or suspects or running or later:
            progress.notice, progress.n_slots = backend.check(), backend.n_slots
            for due in [item for item in later if item[0] <= time.monotonic()]:
                later.remove(due)
                (suspects if due[1].is_suspect else waiting).append(due[1])
            while len(running) < progress.n_slots:
                if (state := _next(waiting, suspects, [each for each, _ in running.values()], progress)) is None:
                    break
                if state.run.is_done:
                    state.is_reused = state.state == "waiting" and not state.n_crashes
                    state.state = "done"
                    continue
                state.state, state.started = "running", time.monotonic()
                state.process = backend.start(plan, state.run)
                running[id(state)] = (state, state.process)
            for key, (state, process) in list(running.items()):
                state.seconds = time.monotonic() - state.started
                if (code := process.exit_code()) is None:
                    continue
                del running[key]
                state.process = None
                _settle(plan, state, code, process.error, retries)
                if state.state == "elsewhere":
                    later.append((time.monotonic() + BUSY_AFTER, state))
                elif state.state == "waiting" and state.is_suspect:
                    suspects.append(state)
                elif state.state == "waiting":
                    waiting.appendleft(state) if code == AGAIN else waiting.append(state)
            on_change(progress)
            if waiting or suspects or running or later:
                time.sleep(TICK)
    except BaseException:
        _stop([process for _, process in running.values()])
        raise
    on_change(progress)
    return progress


def _next(
    waiting: deque[RunState], suspects: deque[RunState], running: Sequence[RunState], progress: Progress
) -> RunState | None:
    """Take the first waiting job that can start, or return None; a job that needs a failed one fails.

    A suspect starts only if nothing runs and no other job can start, and nothing starts beside it.
    """
    if any(state.is_suspect for state in running):
        return None
    if waiting and not waiting[0].run.needs:
        return waiting.popleft()
    for state in list(waiting):
        needed = [each for each in progress.states if each.run.name in state.run.needs]
        if failed := [each.run.name for each in needed if each.state == "failed"]:
            waiting.remove(state)
            state.state, state.error = "failed", f"it needs {failed[0]}, which failed"
        elif all(each.state == "done" for each in needed):
            waiting.remove(state)
            return state
    return suspects.popleft() if suspects and not running else None


def _settle(plan: JobPlan, state: RunState, code: int, error: str, retries: int) -> None:
    """Set the new state of a run whose process has ended, from its exit code and its error."""
    if code == BUSY:
        state.state = "elsewhere"
    elif code in (0, AGAIN) and state.run.is_done:
        state.state, state.error = "done", ""
    elif code == AGAIN:
        state.state, state.n_lost, state.is_suspect = "waiting", 0, False
    elif code == LOST and not state.is_suspect:
        state.state, state.is_suspect = "waiting", True
    elif code == LOST:
        state.n_lost += 1
        state.error = f"its workers died whenever they had this run, and no other one was started: {error}"
        state.state = "failed" if state.n_lost >= MOST_LOST else "waiting"
    else:
        state.n_crashes += 1
        state.error = error or last_line(plan.log_file(state.run)) or _ending(code)
        state.state = "failed" if state.n_crashes > retries else "waiting"


def _ending(code: int) -> str:
    return f"its process was killed by signal {-code}" if code < 0 else f"its process ended with code {code}"


def last_line(log: Path) -> str:
    """Return the last line of a log that begins with `error:`, or else its last line; "" for an empty log."""
    try:
        lines = read_bytes(log)[-TAIL:].decode(errors="replace").splitlines()
    except RunError:
        return ""
    lines = [line.strip() for line in lines if line.strip()]
    errors = [line for line in lines if line.startswith("error:")]
    return (errors or lines or [""])[-1]


def _stop(processes: Sequence[Process]) -> None:
    """Stop processes: ask each to save its state, and kill those that take too long."""
    for process in processes:
        process.stop()
    deadline = time.monotonic() + STOPPING
    try:
        while time.monotonic() < deadline and any(process.exit_code() is None for process in processes):
            time.sleep(TICK)
    finally:
        for process in processes:
            if process.exit_code() is None:
                process.kill()


# --- the process of one run -------------------------------------------------------------------------------------------

Measure = Callable[[Sequence[str]], tuple[int, Any]]
"""A function that runs `headcount` with these arguments, and returns the exit code and, for some verbs, its output."""
CHECKS = ("train", "audit", "verify", "claims")
"""Verbs whose exit code 1 reports a finding about the model, not a failure, so that their result is stored."""


def complete(run: PlannedRun, measure: Measure) -> int:
    """Run every command of a run that has no receipt (is not done); return 0, the exit code of a failure, or BUSY."""
    RunFolder(run.folder).require_name()
    with exclusively(run.folder / STUDY_LOCK) as is_ours:
        if not is_ours:
            return BUSY
        for step in run.open_steps():
            # A training that was killed after its last file has written all that is there.
            before = {} if step.verb == "train" else result_files(run.folder)
            code, output = measure(run.command(step))
            if code != 0 and not (code == 1 and step.verb in CHECKS):
                return code
            after = result_files(run.folder)
            run.write_receipt(step, code, output, [file for file in after if after[file] != before.get(file)])
    return 0


@contextmanager
def exclusively(file: Path) -> Iterator[bool]:
    """Lock a file while a `with` block runs and yield True; yield False if another process has the lock.

    The system releases the lock when this process ends, however it ends. This process also ends when its launcher,
    which started it, ends.
    """
    end_with_launcher()
    lock = take_lock(file)
    if lock is None:
        yield False
        return
    with lock:
        yield True


def take_lock(file: Path) -> IO[bytes] | None:
    """Lock a file and return it open, or return None if another process has the lock; closing it ends the lock."""
    with friendly_os_errors(f"lock {file}"):
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = os.fdopen(open_in_place(file, os.O_RDWR | os.O_CREAT), "r+b")
    try:
        import fcntl

        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError as error:
        lock.close()
        raise InputError("studies need a system with file locks: Linux or macOS") from error
    except BlockingIOError:
        lock.close()
        return None
    return lock


def end_with_launcher() -> None:
    """Ask Linux to send this process SIGTERM when its launcher ends, even if the launcher is killed."""
    launcher = os.environ.pop(LAUNCHER, "")
    if not launcher:
        return
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            import ctypes

            set_death_signal = 1
            ctypes.CDLL(None).prctl(set_death_signal, 15)
    if os.getppid() != int(launcher):  # it ended before this line
        raise RunError(
            "this training was stopped, because the headcount process that started it has ended",
            "start the study again",
        )
