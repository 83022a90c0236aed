"""Command lines in a process of their own, one after another: a hang, a crash or a full memory is seen from outside."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

GRACE = 15
"""Seconds that code which does not return to Python has on top, before its process is killed."""
MEMORY = 8 << 30
"""Bytes that the process may address: what reads a device to its end fails instead of filling the machine."""


class Hang(BaseException):
    """Nobody catches this."""


@dataclass(frozen=True)
class Prediction:
    """What one command line did."""

    code: int | None
    out: str = ""
    err: str = ""
    raised: str = ""
    """A traceback, if something else than an exit came out of `main`."""
    written: tuple[str, ...] = ()
    """Every path that was opened for writing, made, or moved to."""

    @property
    def fault(self) -> str:
        """What no command line may do, whatever it says."""
        if self.raised:
            return self.raised
        predicted = [line for line in self.err.splitlines() if line.startswith(("error:", "usage"))]
        if self.code not in (0, 1, 2):
            return f"exit code {self.code}"
        if "Traceback (most recent call last)" in self.out + self.err:
            return f"a traceback was printed: {self.err}"
        if self.code == 0 and predicted:
            return f"exit code 0, but: {predicted[0]}"
        if self.code == 2 and not predicted:
            return f"exit code 2 without an error: {self.err!r}"
        return ""


class Worker:
    """Keeps one process; a new one takes its place when it had to be killed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exception: object) -> None:
        self._end()

    def run(self, argv: list[str], cwd: Path, seconds: float = 30) -> Prediction:
        """Call `headcount ARGV` in that folder."""
        process = self._process or self._start()
        assert process.stdin
        assert process.stdout
        process.stdin.write(json.dumps({"argv": argv, "cwd": str(cwd), "seconds": seconds}) + "\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], seconds + GRACE)
        line = process.stdout.readline() if ready else ""
        if line:
            told = json.loads(line)
            return Prediction(**told | {"written": tuple(told["written"])})
        self._end()
        return Prediction(
            None, raised=f"the process died ({process.returncode})" if ready else "it hangs in code that is not Python"
        )

    def _start(self) -> subprocess.Popen[str]:
        settings = {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg", "PYTHONUTF8": "1"}
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen([sys.executable, __file__], text=True, env=os.environ | settings, **pipes)
        return self._process

    def _end(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._process.communicate()
        self._process = None


# --- inside the process -----------------------------------------------------------------------------------------------


def serve() -> None:
    """Read command lines from standard input, answer on what was standard output."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # a library in Rust prints past Python on some damaged tokenizers
    signal.signal(signal.SIGALRM, _hang)
    written: list[str] = []
    sys.addaudithook(lambda event, arguments: _note(written, event, arguments))
    # The same two files for all, for libraries keep the streams that they find when they are imported.
    with _stream("strict") as sys.stdout, _stream("backslashreplace") as sys.stderr:
        _work_little()
        for line in sys.stdin:
            request = json.loads(line)
            os.chdir(request["cwd"])
            written.clear()
            code, raised = _call(request["argv"], request["seconds"])
            kept = [path for path in dict.fromkeys(written) if not path.startswith(("/dev/", "/proc/"))]
            told = {"code": code, "raised": raised, "out": _text(sys.stdout), "err": _text(sys.stderr), "written": kept}
            replies.write(json.dumps(told) + "\n")
            replies.flush()


def _call(argv: list[str], seconds: float) -> tuple[int | None, str]:
    from headcount.cli import main

    path, modules = list(sys.path), set(sys.modules)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return main(argv), ""
    except SystemExit as stopped:
        return (stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)), ""
    except Hang:
        return None, f"no end after {seconds} s\n{traceback.format_exc()}"
    except BaseException:
        return None, traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.path[:] = path
        # Adapters of one name in many folders: each is imported anew.
        for name in set(sys.modules) - modules:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(Path.cwd())):
                del sys.modules[name]


def _hang(number: int, frame: object) -> None:
    raise Hang


def _work_little() -> None:
    """Intervals, labels and matches are not what is tested here."""
    sys.path.append(str(Path(__file__).parents[1] / "support"))
    import pytest
    from little_work import work_little

    work_little(pytest.MonkeyPatch())


def _stream(errors: str) -> TextIO:
    return tempfile.TemporaryFile("w+", encoding="utf-8", errors=errors)


def _text(stream: TextIO) -> str:
    stream.flush()
    stream.seek(0)
    text = stream.read()
    stream.seek(0)
    stream.truncate()
    return text


def _note(written: list[str], event: str, arguments: tuple[Any, ...]) -> None:
    if (
        event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    ) or event == "os.mkdir":
        path = arguments[0]
    elif event == "os.rename":
        path = arguments[1]
    else:
        return
    if isinstance(path, (str, bytes, os.PathLike)):
        written.append(str(Path(os.fsdecode(path)).absolute()))


if __name__ == "__main__":
    serve()
