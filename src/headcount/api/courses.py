"""Measure the models of a course, each in a separate process, so that no submission can affect the others.

A submission may change the working directory, patch torch, print, hang, use up the memory or end its process. Its own
row then shows an error, and the other rows are not affected. Processes protect from accidents, not from malice: a
submission runs with the rights of the user who measures it.

    parent                                      child, one per model
    start (fork, or a new interpreter) -------> new session, limits, standard streams into a pipe
    read the pipe, watch the time limit         open the model, call the verb, write JSON into a file
    read the JSON <---------------------------- end
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

import torch

from headcount.api.opening import open_on_task
from headcount.api.saving import Saved
from headcount.errors import HeadcountError, InputError, shortened
from headcount.external.models import is_adapter_class
from headcount.external.user_code import describe_failure
from headcount.files import parse_json, read_bytes
from headcount.limits import TIMEOUT, available_memory
from headcount.rendering.progress import announcer, counting
from headcount.results import Result

R = TypeVar("R", bound=Result)
AT_ONCE = 2
"""Number of models that are measured at the same time, with one thread each."""
MOST_OUTPUT = 2_000
"""Number of characters that are kept of a submission's output, from its beginning and from its end."""
MOST_MESSAGE = 500
"""Largest number of characters in a line of an error message."""
MOST_RESULT = 2**28
"""Largest size, in bytes, of the result file of a submission that is read."""
TICK = 0.05
"""Seconds between two checks of the time limits."""
GPU_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Device files that show that a GPU driver (CUDA, ROCm or WSL) is loaded."""
OOM_SCORE = "800"
"""Linux's `oom_score_adj` of a submission: if memory runs out, Linux kills submissions before the parent."""
GRACE = 10
"""A process whose parent has ended is killed by the operating system this many seconds after its time limit."""


@dataclass(frozen=True)
class Submission(Generic[R]):
    """One model of a course, with its result or the error that prevented it."""

    name: str
    """The model as the user named it, such as `submissions/alice/adapter.py:Model`."""
    label: str
    """A short name that no other submission of the course has, such as `alice`."""
    saved_or_error: Saved[R] | HeadcountError
    output: str = ""
    """Text that the submission's code printed, shortened."""

    @property
    def saved(self) -> Saved[R] | None:
        """The result and its files, or None if there was an error."""
        return self.saved_or_error if isinstance(self.saved_or_error, Saved) else None

    @property
    def error(self) -> HeadcountError | None:
        """The error that prevented a result, or None if there is a result."""
        return self.saved_or_error if isinstance(self.saved_or_error, HeadcountError) else None

    @property
    def outcome(self) -> R | HeadcountError:
        """The result, or the error if there is no result."""
        return self.saved_or_error.result if isinstance(self.saved_or_error, Saved) else self.saved_or_error

    @property
    def result(self) -> R | None:
        """The result, or None if there was an error."""
        return None if self.saved is None else self.saved.result


class CourseInterrupted(KeyboardInterrupt):
    """Raised if the user interrupts the measurement of several models; `finished` has the models measured before."""

    def __init__(self, finished: Mapping[str, Submission[Any]], exit_code: int) -> None:
        super().__init__(exit_code)
        self.finished, self.exit_code = dict(finished), exit_code


def run_course(
    models: Sequence[str],
    verb: Callable[..., Any],
    types: Sequence[type[R]],
    *,
    title: str,
    timeout: float = TIMEOUT,
    at_once: int = AT_ONCE,
    is_quiet: bool = False,
    run_adapter: bool = False,
    **settings: Any,
) -> dict[str, Submission[R]]:
    """Call `verb(model, **settings)` for each model in a process of its own; return the submissions by model name.

    `verb` is a module-level function, and `settings` can be written as JSON. Each result is read from JSON as one of
    `types`; nothing is unpickled. At most `at_once` processes run at a time. A process that takes longer than
    `timeout` seconds is killed together with all processes that it started.
    """
    if os.name != "posix":
        raise InputError(
            "several models can be measured in one call only on Linux and macOS", "name one model at a time"
        )
    if not timeout > 0:
        raise InputError(f"--timeout must be above 0, got {timeout:g}", "it is the number of seconds per model")
    if n_adapters := sum(is_adapter_class(name) for name in models):
        announcer(quiet=False)(f"running the code of {n_adapters:,} submissions, each in a separate process")
    labels, submissions = course_labels(models), dict[str, Submission[R]]()
    waiting, running = list(models), dict[str, _Process]()
    with tempfile.TemporaryDirectory(prefix="headcount-") as folder, counting(title, quiet=is_quiet) as progress:
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    name = waiting.pop(0)
                    job = {
                        "model": name,
                        "label": labels[name],
                        "verb": f"{verb.__module__}:{verb.__qualname__}",
                        "settings": settings,
                        "run_adapter": run_adapter,
                        "timeout": timeout,
                        "result": str(Path(folder) / f"{len(waiting)}.json"),
                    }
                    running[name] = _Process.start(job, at_once)
                _read_all(running.values())
                for name, process in [item for item in running.items() if item[1].has_ended()]:
                    del running[name]
                    submissions[name] = Submission(name, labels[name], _outcome(process, types), process.text())
                    progress(len(submissions), len(models))
        except KeyboardInterrupt as stop:
            done = {name: submissions[name] for name in models if name in submissions}
            raise CourseInterrupted(done, getattr(stop, "exit_code", 130)) from stop
        finally:
            for process in running.values():
                process.kill()
    return {name: submissions[name] for name in models}


def course_labels(models: Sequence[str]) -> dict[str, str]:
    """Return a short unique label for each model. For adapters, it is the first part of their paths that differs.

    >>> course_labels(["hand-in/alice/adapter.py:Model", "hand-in/bob/adapter.py:Model"])
    {'hand-in/alice/adapter.py:Model': 'alice', 'hand-in/bob/adapter.py:Model': 'bob'}
    >>> list(course_labels(["sums.py:A", "sums.py:B", "sample:addition"]).values())
    ['A', 'B', 'sample-addition']
    """
    adapters = {name: _path_parts(name) for name in models if is_adapter_class(name)}
    others = {name: _file_name(name.rstrip("/").rpartition("/")[2]) for name in models if name not in adapters}
    columns = list(zip_longest(*adapters.values(), fillvalue=""))
    differing = [column for column in columns if len(set(column)) > 1] or columns[-3:-1]
    choices = [[column] for column in differing] + [differing[:n] for n in range(2, len(differing) + 1)]
    for choice in choices or [[]]:
        labels = ["-".join(filter(None, parts)) for parts in zip(*choice, strict=True)]
        by_name = dict(zip(adapters, labels, strict=True)) | others
        if all(by_name.values()) and len(set(by_name.values())) == len(models):
            return {name: by_name[name] for name in models}
    return {name: f"{i + 1}-{_file_name(name)}" for i, name in enumerate(models)}


def _path_parts(name: str) -> list[str]:
    """Return the folders, the file and the class in an adapter's name, as parts of file names."""
    path, _, class_name = name.rpartition(":")
    return [*map(_file_name, Path(path).with_suffix("").parts), class_name]


def _file_name(text: str) -> str:
    """Return a text in which hyphens replace the characters that should not be in a file name."""
    return re.sub(r"[^\w.+=-]+", "-", text).strip("-.")


# --- the parent's side ------------------------------------------------------------------------------------------------


@dataclass
class _Process:
    """A process that measures one model, as the parent sees it."""

    pid: int
    output: int
    """File descriptor from which the parent reads what the process prints."""
    result: Path
    """File that the process writes its result to."""
    timeout: float
    deadline: float
    popen: subprocess.Popen[bytes] | None = None
    """Handle of the process if it is a new interpreter; None if it is a fork."""
    printed: bytearray = field(default_factory=bytearray)
    n_printed: int = 0
    code: int | None = None
    is_late: bool = False

    @classmethod
    def start(cls, job: Mapping[str, Any], at_once: int) -> _Process:
        """Fork this process, which has torch loaded, or start a new interpreter where a fork is not safe."""
        memory = available_memory() if fork_is_safe() else None  # a GPU's driver maps more memory than the machine has
        job = {**job, "memory": None if memory is None else memory * 9 // (10 * at_once), "folder": str(Path.cwd())}
        output, entry = os.pipe()
        popen = None
        if fork_is_safe():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # the parent's threads do not run in the child
                pid = os.fork()
            if pid == 0:
                _run_in_fork(job, entry)
        else:
            popen = _new_interpreter(job, entry)
            pid = popen.pid
        os.close(entry)
        os.set_blocking(output, False)
        timeout = float(job["timeout"])
        return cls(pid, output, Path(job["result"]), timeout, time.monotonic() + timeout, popen)

    def has_ended(self) -> bool:
        """Return whether the process has ended.

        A process past its deadline is killed first. Other processes that it started are killed as well.
        """
        self._wait(os.WNOHANG)
        if self.code is None and time.monotonic() > self.deadline:
            self.is_late = True
        if self.code is not None or self.is_late:
            self.kill()
            return True
        return False

    def kill(self) -> None:
        """Kill the process and all processes of its session, and read the rest of the output."""
        for end in (
            os.killpg,
            *(() if self.code is not None else (os.kill,)),
        ):  # it may have no session yet
            with suppress(ProcessLookupError, PermissionError):
                end(self.pid, signal.SIGKILL)
        self._wait(0)
        self.read()
        os.close(self.output)

    def read(self) -> None:
        """Read the output that is available now, and keep its beginning and its end."""
        with suppress(BlockingIOError):
            while piece := os.read(self.output, 2**16):
                self.n_printed += len(piece)
                self.printed += piece
                if len(self.printed) > 8 * MOST_OUTPUT:
                    del self.printed[4 * MOST_OUTPUT : -4 * MOST_OUTPUT]

    def text(self) -> str:
        """Return what the submission printed; if it is long, only the beginning and the end."""
        text = bytes(self.printed).decode(errors="replace").strip()
        if len(text) <= 2 * MOST_OUTPUT and len(self.printed) == self.n_printed:
            return text
        return f"{text[:MOST_OUTPUT]}\n... ({self.n_printed:,} bytes in all) ...\n{text[-MOST_OUTPUT:]}"

    def _wait(self, options: int) -> None:
        if self.code is not None:
            return
        if self.popen is not None:
            self.code = self.popen.poll() if options else self.popen.wait()
            return
        pid, status = os.waitpid(self.pid, options)
        self.code = os.waitstatus_to_exitcode(status) if pid else None


def fork_is_safe() -> bool:
    """Return whether a child process can use torch after a fork.

    It cannot if the parent may have used a GPU, nor on macOS, whose libraries forbid it.
    """
    has_gpu = any(Path(device).exists() for device in GPU_DRIVERS)
    return sys.platform == "linux" and not has_gpu and not torch.cuda.is_initialized()


def _new_interpreter(job: Mapping[str, Any], entry: int) -> subprocess.Popen[bytes]:
    """Start a new Python interpreter that measures the model of a job, with the same import paths as this one."""
    code = "import sys; sys.path[:] = __import__('json').loads(sys.argv[1]); import headcount.api.courses as courses; "
    code += "courses.run_in_new_interpreter(sys.argv[2])"
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": entry, "stderr": entry, "start_new_session": True}
    variables = {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    command = [sys.executable, "-c", code, json.dumps(sys.path), json.dumps(job)]
    return subprocess.Popen(command, env=os.environ | variables, **streams)


def _read_all(processes: Collection[_Process]) -> None:
    """Wait until a process prints something or ends, for at most `TICK` seconds, and read the output."""
    with selectors.DefaultSelector() as selector:
        for process in processes:
            selector.register(process.output, selectors.EVENT_READ, process)
        ready = selector.select(TICK)
    for key, _ in ready:
        key.data.read()
    if ready:
        time.sleep(TICK / 5)  # a closed pipe is always ready


def _outcome(process: _Process, types: Sequence[type[R]]) -> Saved[R] | HeadcountError:
    """Return the result of a process that has ended, or an error that explains how it ended without one."""
    if process.is_late:
        return _ending(process)
    try:
        message = parse_json(read_bytes(process.result, MOST_RESULT), "its result")
        if "error" in message:
            what, *advice = (shortened(str(line), MOST_MESSAGE) for line in message["error"])
            return InputError(what, *advice)
        kind = next(kind for kind in types if kind.__name__ == message["type"])
        data, figures, others = (tuple(map(Path, message[key])) for key in ("data", "figures", "others"))
        return Saved(kind.from_json(message["result"]), data, figures, others)
    except (HeadcountError, KeyError, TypeError, ValueError, StopIteration):
        return _ending(process)  # no result, or a broken one because the submission replaced json


def _ending(process: _Process) -> HeadcountError:
    """Return an error that explains how a process ended without a result."""
    if process.is_late:
        return InputError(
            f"the submission gave no result within {process.timeout:g} seconds and was stopped",
            "look for a loop that does not end, or give it more time: --timeout SECONDS",
        )
    if process.code is not None and process.code < 0:
        number = -process.code
        perhaps = ", perhaps because memory ran out" if number == signal.SIGKILL else ""
        name = signal.Signals(number).name if number in set(signal.Signals) else "no name"
        return InputError(
            f"the submission's process was killed (signal {number}, {name}{perhaps})", "run this model alone to see why"
        )
    if process.result.exists():
        return InputError(
            "the submission left a result that cannot be read",
            "check that its code does not change Python's json module",
        )
    return InputError(
        f"the submission's code ended the process (exit code {process.code}) before there was a result",
        "take os._exit() and similar calls out of its code",
    )


# --- the child's side -------------------------------------------------------------------------------------------------


def run_in_new_interpreter(job: str) -> None:
    """Measure one model in this new interpreter, whose output already goes to the parent process."""
    _limit_and_measure(json.loads(job))


def _run_in_fork(job: Mapping[str, Any], entry: int) -> NoReturn:
    """Measure the model of a job in this process, which is a fork of the parent; then end the process."""
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(entry, 1)
        os.dup2(entry, 2)
        # New objects, so that the child does not flush text that the parent has buffered.
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = sys.__stdout__ = open(1, "w", 1, errors="replace", closefd=False)  # type: ignore[misc]  # noqa: SIM115
        sys.stderr = sys.__stderr__ = open(2, "w", 1, errors="replace", closefd=False)  # type: ignore[misc]  # noqa: SIM115
        _limit_and_measure(job)
    finally:
        os._exit(70)


def _limit_and_measure(job: Mapping[str, Any]) -> NoReturn:
    own = os.getpid()
    faulthandler.enable(2, all_threads=False)  # prints where a crash happened; the parent captures it
    torch.set_num_threads(1)
    _limit(job)
    message = _measure(job)
    if os.getpid() != own:
        os._exit(0)  # a fork that the submission itself made
    draft = Path(job["result"] + ".draft")
    draft.write_text(json.dumps(message))
    draft.replace(job["result"])
    with suppress(Exception):
        sys.stdout.flush()
    with suppress(Exception):
        sys.stderr.flush()
    os._exit(0)  # do not wait for threads, and skip the parent's exit handlers


def _limit(job: Mapping[str, Any]) -> None:
    """Set the system's limits on memory, processor time and core dumps for this process."""
    import resource  # Windows has no such module, and must still be able to import this one

    seconds = int(job["timeout"] + GRACE) * (os.cpu_count() or 1)
    limits = [(resource.RLIMIT_CPU, seconds), (resource.RLIMIT_CORE, 0)]
    if job["memory"] is not None and (statm := Path("/proc/self/statm")).exists():
        in_use = int(statm.read_text().split()[5]) * resource.getpagesize()
        limits.append((resource.RLIMIT_DATA, in_use + int(job["memory"])))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)
    for kind, most in limits:
        with suppress(ValueError, OSError):  # a lower limit of the system stays
            resource.setrlimit(kind, (most, most))


def _measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """Measure the model of a job; return a result and its files, or an error, as data for the parent."""
    try:
        module, _, function = job["verb"].partition(":")
        opened = open_on_task(job["model"], run_adapter=job["run_adapter"], label=job["label"])
        saved = getattr(import_module(module), function)(opened, **job["settings"])
        saved = saved if isinstance(saved, Saved) else Saved(saved)
        os.chdir(job["folder"])
        files = {key: list(map(str, getattr(saved, key))) for key in ("data", "figures", "others")}
        return {"type": type(saved.result).__name__, "result": saved.result.to_json(), **files}
    except HeadcountError as error:
        return {"error": [error.what, *error.advice]}
    except BaseException as error:  # also an interrupt: only the submission can raise it here
        folder = Path(job["folder"]) / Path(job["model"].rpartition(":")[0]).parent
        what, place = describe_failure(error, folder)
        return {"error": [f"it {what}", place]}
