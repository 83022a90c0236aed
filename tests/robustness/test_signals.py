"""Trainings that are told to stop at many moments: nothing, or a run that --resume finishes to the same bytes."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headcount.cli import main

pytestmark = pytest.mark.slow  # each training is a process of its own
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
TRAIN = "train addition --digits 1 --d-model 8 --n-heads 2 --d-ff 8 --n-validation 10 --n-test 10 --n-encoder-layers 1"
TRAIN += " --n-decoder-layers 1 --batch-size 4 --steps 200 --checkpoint-every 20 --eval-every 50 --device cpu"
HIDE, SHOW = b"\x1b[?25l", b"\x1b[?25h"
IMPORTS = 2500
"""About how many modules are imported before a training begins."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The weights of a training that nobody disturbs."""
    path = tmp_path_factory.mktemp("signals") / "whole"
    assert _finish(path) == 0
    return (path / "model.safetensors").read_bytes()


def test_a_signal_at_any_moment_leaves_nothing_or_a_run_to_resume(
    tmp_path: Path, whole: bytes, seed: int, long: bool, count: Counter[str]
) -> None:
    """Moments are counted in lines: of Python telling what it imports, then of progress."""
    moments = range(0, IMPORTS + 200, 60) if long else (IMPORTS,)
    for number, moment in enumerate(moments):
        which, path = SIGNALS[(seed + number) % 3], tmp_path / f"at-{moment}"
        code = _stopped_after(moment, path, which)
        finished = (path / "manifest.json").exists()
        assert code != 0 or finished, (moment, which)
        count["whole" if finished else "to resume" if (path / "config.json").exists() else "nothing there"] += 1
        assert _finish(path) == 0, (moment, which)
        assert (path / "model.safetensors").read_bytes() == whole, (moment, which)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """As soon as the bar appears, which is before the first step, or when steps are being made."""
    if "moment" in metafunc.fixturenames:
        every = [(which, moment) for which in SIGNALS for moment in (HIDE, b"loss")]
        metafunc.parametrize(("which", "moment"), every if metafunc.config.getoption("--long") else every[0:4:3])


def test_on_a_terminal_the_run_is_saved_and_the_cursor_comes_back(
    tmp_path: Path, whole: bytes, which: signal.Signals, moment: bytes
) -> None:
    code, shown = _stopped_on_terminal(tmp_path / "run", which, moment)
    assert shown.rfind(SHOW) > shown.rfind(HIDE) > -1
    assert code == 128 + which, "it was killed, or it finished"
    assert moment == HIDE or b"--resume" in shown
    assert _finish(tmp_path / "run") == 0
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == whole


def _command(path: Path, *options: str) -> list[str]:
    return [sys.executable, *options, "-m", "headcount", *TRAIN.split(), "-o", str(path)]


def _default_signals() -> None:
    """As in a shell of one's own, whatever the tests were started by."""
    for which in SIGNALS:
        signal.signal(which, signal.default_int_handler if which == signal.SIGINT else signal.SIG_DFL)


def _finish(path: Path) -> int:
    """In this process, for another one would take seconds to begin."""
    return main([*TRAIN.split(), "-o", str(path), "--resume", "--quiet"])


def _stopped_after(n_lines: int, path: Path, which: signal.Signals) -> int:
    """Send a signal after so many lines on standard error, or after the last one."""
    command = [sys.executable, "-X", "importtime", *_command(path)[1:]]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=path.parent, preexec_fn=_default_signals, **pipes) as process:  # type: ignore[call-overload]
        for _ in range(n_lines):
            if not process.stderr.readline():
                break
        process.send_signal(which)
        process.communicate()
        return int(process.returncode)


def _stopped_on_terminal(path: Path, which: signal.Signals, moment: bytes) -> tuple[int, bytes]:
    """Send a signal as soon as something is shown; the exit code, and all that was shown."""
    ours, theirs = pty.openpty()
    streams: dict[str, Any] = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    settings = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100"}
    process = subprocess.Popen(_command(path), cwd=path.parent, env=settings, preexec_fn=_default_signals, **streams)
    os.close(theirs)
    shown, sent = b"", False
    while part := _read(ours):
        shown += part
        if not sent and moment in shown:
            process.send_signal(which)
            sent = True
    os.close(ours)
    return process.wait(), shown


def _read(terminal: int) -> bytes:
    """What is shown next; nothing when the other side is closed, which Linux calls an error."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""
