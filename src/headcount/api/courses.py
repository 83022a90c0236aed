"""A course: several models, each opened and measured in a process of its own, so that none can spoil the others.

A submission may change the working directory, patch torch, print, hang, use up the memory or end its process: its own
row says so, and the other rows stay as they are. A process protects from accidents and not from malice: a submission
runs with the rights of whoever measures it.

    parent                                      child, one for each model
    start (fork, or a new interpreter) -------> session of its own, limits, standard streams into a pipe
    read the pipe, watch the clock              open the model, call the verb, write JSON into a file
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
"""Models that are measured at the same time, with one thread each."""
MOST_OUTPUT = 2_000
"""Characters kept of the beginning of what a submission prints, and as many of the end."""
MOST_MESSAGE = 500
"""Characters of each line of an error."""
MOST_RESULT = 2**28
"""Bytes of a result that are read."""
TICK = 0.05
"""Seconds between two looks at the clock."""
GPU_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Where CUDA's and ROCm's drivers are, and WSL's."""
FIRST_TO_GO = "800"
"""Of 1000: how readily the system ends a submission where memory runs out, before it ends the course."""
GRACE = 10
"""Seconds after the time limit until the system ends a process whose parent is gone."""


@dataclass(frozen=True)
class Submission(Generic[R]):
    """One model of a course: its result, or the error that stands in its place."""

    name: str
    """As it was named: `submissions/alice/adapter.py:Model`."""
    label: str
    """What tells it from the others: `alice`."""
    saved_or_error: Saved[R] | HeadcountError
    output: str = ""
    """What its code printed, shortened."""

    @property
    def saved(self) -> Saved[R] | None:
        """The result and its files; None if the submission is broken."""
        return self.saved_or_error if isinstance(self.saved_or_error, Saved) else None

    @property
    def error(self) -> HeadcountError | None:
        """What is wrong with a submission that is broken."""
        return self.saved_or_error if isinstance(self.saved_or_error, HeadcountError) else None

    @property
    def outcome(self) -> R | HeadcountError:
        """The result, or the error in its place."""
        return self.saved_or_error.result if isinstance(self.saved_or_error, Saved) else self.saved_or_error

    @property
    def result(self) -> R | None:
        """What was measured; None if the submission is broken."""
        return None if self.saved is None else self.saved.result


class CourseInterrupted(KeyboardInterrupt):
    """The user ended a course: `finished` holds the models that were measured before."""

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
    """Call `verb(model, **settings)` for each model in a process of its own, `at_once` of them at a time.

    `verb` is a function of a module, and `settings` are plain data. Each result is read from JSON as one of `types`;
    nothing that a process wrote is unpickled. A process that takes longer than `timeout` seconds is killed, with
    everything it started.
    """
    if os.name != "posix":
        raise InputError("several models are measured only on Linux and macOS", "name one model at a time")
    if not timeout > 0:
        raise InputError(f"--timeout must be above 0, got {timeout:g}", "it is seconds for each model")
    if n_adapters := sum(is_adapter_class(name) for name in models):
        announcer(quiet=False)(f"running the code of {n_adapters:,} submissions, each in a process of its own")
    labels, found = course_labels(models), dict[str, Submission[R]]()
    waiting, running = list(models), dict[str, _Process]()
    with tempfile.TemporaryDirectory(prefix="headcount-") as folder, counting(title, quiet=is_quiet) as progress:
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    name = waiting.pop(0)
                    how = {"run_adapter": run_adapter, "label": labels[name], "settings": settings}
                    job = {"model": name, "verb": f"{verb.__module__}:{verb.__qualname__}", "timeout": timeout, **how}
                    job["result"] = str(Path(folder) / f"{len(waiting)}.json")
                    running[name] = _Process.start(job, at_once)
                _read_all(running.values())
                for name, process in [each for each in running.items() if each[1].has_ended()]:
                    del running[name]
                    found[name] = Submission(name, labels[name], _outcome(process, types), process.text())
                    progress(len(found), len(models))
        except KeyboardInterrupt as stop:
            done = {name: found[name] for name in models if name in found}
            raise CourseInterrupted(done, getattr(stop, "exit_code", 130)) from stop
        finally:
            for process in running.values():
                process.kill()
    return {name: found[name] for name in models}


def course_labels(models: Sequence[str]) -> dict[str, str]:
    """Name each model by what tells it from the others: its folder; where that is one for all, its file or class.

    >>> course_labels(["hand-in/alice/adapter.py:Model", "hand-in/bob/adapter.py:Model"])
    {'hand-in/alice/adapter.py:Model': 'alice', 'hand-in/bob/adapter.py:Model': 'bob'}
    >>> list(course_labels(["sums.py:A", "sums.py:B", "sample:addition"]).values())
    ['A', 'B', 'sample-addition']
    """
    parts = [_parts(name) for name in models]
    folders = {folder for folder, _, _ in parts}
    has_folders = len(folders) > 1 or (len(models) == 1 and all(folders))
    choices: tuple[tuple[int, ...], ...] = ((0,), (0, 2), (0, 1), (0, 1, 2)) if has_folders else ((1,), (2,), (1, 2))
    for choice in choices:
        labels = ["-".join(dict.fromkeys(part[i] for i in choice if part[i])) for part in parts]
        if all(labels) and len(set(labels)) == len(labels):
            return dict(zip(models, labels, strict=True))
    return {name: f"{i + 1}-{_file_name(name)}" for i, name in enumerate(models)}


def _parts(name: str) -> tuple[str, str, str]:
    """Return the folder, file and class of an adapter; of any other model, three times its last part."""
    path, colon, class_name = name.rpartition(":")
    if not (colon and path.endswith(".py")):
        last = _file_name(name.rstrip("/").rpartition("/")[2])
        return last, last, last
    return _file_name(Path(path).parent.name), _file_name(Path(path).stem), class_name


def _file_name(text: str) -> str:
    """Replace what a file's name should not hold."""
    return re.sub(r"[^\w.+=-]+", "-", text).strip("-.")


# --- the parent's side ------------------------------------------------------------------------------------------------


@dataclass
class _Process:
    """A process that measures one model, as its parent sees it."""

    pid: int
    output: int
    """What it prints is read here."""
    result: Path
    """Where it writes its result."""
    timeout: float
    deadline: float
    popen: subprocess.Popen[bytes] | None = None
    """Of a new interpreter; None of a fork."""
    printed: bytearray = field(default_factory=bytearray)
    n_printed: int = 0
    code: int | None = None
    is_late: bool = False

    @classmethod
    def start(cls, job: Mapping[str, Any], at_once: int) -> _Process:
        """Fork this process, which has torch loaded; or begin a new interpreter where a fork is not safe."""
        memory = available_memory() if fork_is_safe() else None  # a GPU's driver maps more than there is
        job = {**job, "memory": None if memory is None else memory * 9 // (10 * at_once), "folder": str(Path.cwd())}
        output, entry = os.pipe()
        popen = None
        if fork_is_safe():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # threads of the parent do nothing in the child
                pid = os.fork()
            if pid == 0:
                _live(job, entry)
        else:
            popen = _new_interpreter(job, entry)
            pid = popen.pid
        os.close(entry)
        os.set_blocking(output, False)
        timeout = float(job["timeout"])
        return cls(pid, output, Path(job["result"]), timeout, time.monotonic() + timeout, popen)

    def has_ended(self) -> bool:
        """Whether it has ended; a process that is late is ended now, and so is whatever it leaves behind."""
        self._wait(os.WNOHANG)
        if self.code is None and time.monotonic() > self.deadline:
            self.is_late = True
        if self.code is not None or self.is_late:
            self.kill()
            return True
        return False

    def kill(self) -> None:
        """End it with every process of its session, and read the rest of what was printed."""
        for end in (os.killpg, *(() if self.code is not None else (os.kill,))):  # it may have no session yet
            with suppress(ProcessLookupError, PermissionError):
                end(self.pid, signal.SIGKILL)
        self._wait(0)
        self.read()
        os.close(self.output)

    def read(self) -> None:
        """Read what is there: the beginning and the end are kept."""
        with suppress(BlockingIOError):
            while piece := os.read(self.output, 2**16):
                self.n_printed += len(piece)
                self.printed += piece
                if len(self.printed) > 8 * MOST_OUTPUT:
                    del self.printed[4 * MOST_OUTPUT : -4 * MOST_OUTPUT]

    def text(self) -> str:
        """What was printed, shortened."""
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
    """Whether a child can use torch after a fork.

    It cannot where the parent may have asked for a GPU, nor on macOS, whose libraries forbid it.
    """
    has_gpu = any(Path(device).exists() for device in GPU_DRIVERS)
    return sys.platform == "linux" and not has_gpu and not torch.cuda.is_initialized()


def _new_interpreter(job: Mapping[str, Any], entry: int) -> subprocess.Popen[bytes]:
    """Begin a process that imports headcount anew, from where this one has it."""
    code = "import sys; sys.path[:] = __import__('json').loads(sys.argv[1]); import headcount.api.courses as courses; "
    code += "courses.live_in_new_interpreter(sys.argv[2])"
    how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": entry, "stderr": entry, "start_new_session": True}
    settings = {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    words = [sys.executable, "-c", code, json.dumps(sys.path), json.dumps(job)]
    return subprocess.Popen(words, env=os.environ | settings, **how)


def _read_all(processes: Collection[_Process]) -> None:
    """Wait a moment, or until one of them prints something or ends."""
    with selectors.DefaultSelector() as selector:
        for process in processes:
            selector.register(process.output, selectors.EVENT_READ, process)
        ready = selector.select(TICK)
    for key, _ in ready:
        key.data.read()
    if ready:
        time.sleep(TICK / 5)  # a pipe at its end is ready at once


def _outcome(process: _Process, types: Sequence[type[R]]) -> Saved[R] | HeadcountError:
    """Read what a process that has ended left, or say how it ended."""
    if process.is_late:
        return _ending(process)
    try:
        found = parse_json(read_bytes(process.result, MOST_RESULT), "its result")
        if "error" in found:
            what, *advice = (shortened(str(each), MOST_MESSAGE) for each in found["error"])
            return InputError(what, *advice)
        kind = next(kind for kind in types if kind.__name__ == found["type"])
        data, figures, others = (tuple(map(Path, found[key])) for key in ("data", "figures", "others"))
        return Saved(kind.from_json(found["result"]), data, figures, others)
    except (HeadcountError, KeyError, TypeError, ValueError, StopIteration):
        return _ending(process)  # no result, or one of whatever the submission put in json's place


def _ending(process: _Process) -> HeadcountError:
    """Say how a process ended that left no result."""
    if process.is_late:
        return InputError(
            f"it gave no result within {process.timeout:g} seconds and was stopped",
            "look for a loop that does not end; or give it more time: --timeout SECONDS",
        )
    if process.code is not None and process.code < 0:
        number = -process.code
        perhaps = ", perhaps because memory ran out" if number == signal.SIGKILL else ""
        name = signal.Signals(number).name if number in set(signal.Signals) else "no name"
        return InputError(f"its process was killed (signal {number}, {name}{perhaps})", "run it alone to see why")
    if process.result.exists():
        return InputError("it left a result that cannot be read", "its code changes Python's own json or files")
    return InputError(
        f"its code ended the process (exit code {process.code}) before there was a result",
        "take os._exit() and the like out of it: measuring code must return",
    )


# --- the child's side -------------------------------------------------------------------------------------------------


def live_in_new_interpreter(job: str) -> None:
    """Measure one model in an interpreter that was begun for it; its streams lead to the parent already."""
    _limit_and_measure(json.loads(job))


def _live(job: Mapping[str, Any], entry: int) -> NoReturn:
    """Measure one model in a fork of the parent, and end."""
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(entry, 1)
        os.dup2(entry, 2)
        # New objects: what the parent had printed but not yet flushed is the parent's to flush.
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = sys.__stdout__ = open(1, "w", 1, errors="replace", closefd=False)  # type: ignore[misc]  # noqa: SIM115
        sys.stderr = sys.__stderr__ = open(2, "w", 1, errors="replace", closefd=False)  # type: ignore[misc]  # noqa: SIM115
        _limit_and_measure(job)
    finally:
        os._exit(70)


def _limit_and_measure(job: Mapping[str, Any]) -> NoReturn:
    own = os.getpid()
    faulthandler.enable(2, all_threads=False)  # where a crash happened is printed, and captured
    torch.set_num_threads(1)
    _limit(job)
    found = _measure(job)
    if os.getpid() != own:
        os._exit(0)  # a fork that the submission made has come this far
    draft = Path(job["result"] + ".draft")
    draft.write_text(json.dumps(found))
    draft.replace(job["result"])
    with suppress(Exception):
        sys.stdout.flush()
    with suppress(Exception):
        sys.stderr.flush()
    os._exit(0)  # whatever threads are left, and without the parent's handlers of its own end


def _limit(job: Mapping[str, Any]) -> None:
    """Let the system refuse memory that the machine does not have, and end what outlives its parent."""
    import resource  # not on Windows, where the rest of this module must still be imported

    seconds = int(job["timeout"] + GRACE) * (os.cpu_count() or 1)
    limits = [(resource.RLIMIT_CPU, seconds), (resource.RLIMIT_CORE, 0)]
    if job["memory"] is not None and (statm := Path("/proc/self/statm")).exists():
        in_use = int(statm.read_text().split()[5]) * resource.getpagesize()
        limits.append((resource.RLIMIT_DATA, in_use + int(job["memory"])))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(FIRST_TO_GO)
    for kind, most in limits:
        with suppress(ValueError, OSError):  # a lower limit of the system's stays
            resource.setrlimit(kind, (most, most))


def _measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is sent to the parent: a result and its files, or what went wrong."""
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
    except BaseException as error:  # an interrupt, too: nobody but the submission can raise it here
        folder = Path(job["folder"]) / Path(job["model"].rpartition(":")[0]).parent
        what, place = describe_failure(error, folder)
        return {"error": [f"it {what}", place]}
