"""A course of hostile submissions: each is told in its own row, and the sound ones beside them stay as they are.

What is out of scope is malice: a submission runs with the rights of whoever measures it, and may kill its parent, leave
its session, or write a result of its own. Accidents are not.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest

from headcount import api
from headcount.cli import main
from headcount.cli._command import all_models

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("in_tmp")]  # a process for each of two dozen models

HEAD = """
import builtins, ctypes, json, os, random, signal, subprocess, sys, threading, time
import numpy, torch
from headcount.limits import available_memory
from planted import PlantedAdder, SumModel
"""
FORWARD = "def forward(self, model, *inputs):\n    {}\n    return super().forward(model, *inputs)"
SOUND = ""
HOSTILE: dict[str, tuple[str, str, str]] = {
    # by name: what stands in the module, what stands in the class, and words of its row; none for a row that is right
    "allocates": ("", FORWARD.format("self.hog = numpy.empty(available_memory() * 19 // 20, numpy.uint8)"), "Memory"),
    "changes-directory": ("os.chdir('/')", "", SOUND),
    "clears-environment": ("os.environ.clear()", "", SOUND),
    "clears-modules": ("sys.modules.clear()", "", "broken"),
    "closes-streams": ("os.close(1); os.close(2); sys.stdout.close()", "", SOUND),
    "crashes": ("", FORWARD.format("ctypes.string_at(0)"), "signal 11"),
    "default-device": ("torch.set_default_device('meta')", "", "broken"),
    "default-type": ("torch.set_default_dtype(torch.float64)", "", SOUND),
    "endless-loop": ("", FORWARD.format("while True: time.sleep(0.01)"), "within 12 seconds"),
    "endless-sleep": ("signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(1000)", "", "within 12 seconds"),
    "exits": ("os._exit(0)", "", "ended the process (exit code 0)"),
    "fails-when-deleted": (
        "class Bad:\n    def __del__(self): raise ValueError('gone')\nbad = Bad()\ndel bad",
        "",
        SOUND,
    ),
    "floods": ("for _ in range(200): print('x' * 100_000)", "", SOUND),
    "forks": ("os.fork()", "", SOUND),
    "interrupts": ("", "def build(self):\n    raise KeyboardInterrupt", "KeyboardInterrupt"),
    "kills-its-group": ("", FORWARD.format("os.kill(0, signal.SIGKILL)"), "signal 9"),
    "leaves-a-process": ("subprocess.Popen(['sleep', '1000'])", "", SOUND),
    "no-numbers": (
        "",
        "def forward(self, model, *inputs):\n    return super().forward(model, *inputs) * float('nan')",
        "NaN",
    ),
    "patches-builtins": ("builtins.len = lambda _: 3", "", "broken"),
    "patches-json": ("json.dumps = lambda *_, **__: '{}'", "", "cannot be read"),
    "patches-torch": ("torch.Tensor.argmax = None", "", "TypeError"),
    "prints": ("print('{\"models\": []}')", FORWARD.format("print('forward')"), SOUND),
    "recurses": ("def again(): again()", FORWARD.format("again()"), "RecursionError"),
    "seeds": ("torch.manual_seed(9); random.seed(9); numpy.random.seed(9)", "", SOUND),
    "stops-the-program": ("", FORWARD.format("sys.exit(0)"), "SystemExit"),
    "threads": ("threading.Thread(target=lambda: time.sleep(1000)).start()", "", SOUND),
    "wrong-shape": (
        "",
        "def forward(self, model, *inputs):\n    return super().forward(model, *inputs)[:, 0]",
        "shape",
    ),
    "zoe": ("", "", SOUND),
}
COURSE = "submissions/*/adapter.py:Model"


def hand_in(folder: Path, name: str, module: str = "", body: str = "") -> None:
    """Write one submission."""
    (folder / name).mkdir(parents=True)
    model = f"class Model(PlantedAdder):\n{indent(dedent(body) or 'pass', '    ')}\n"
    (folder / name / "adapter.py").write_text(f"{HEAD}{module}\n\n\n{model}")


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    code = main([*arguments, "--json"])
    printed = capsys.readouterr()
    assert printed.out, printed.err
    return code, json.loads(printed.out)


def test_hostile_submissions_spoil_nothing_but_their_own_row(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, (module, body, _) in HOSTILE.items():
        hand_in(in_tmp / "submissions", name, module, body)
    before, environment = Path.cwd(), dict(os.environ)
    code, found = run_json(capsys, "evaluate", COURSE, "--timeout", "12")
    assert code == 1
    assert Path.cwd() == before
    assert environment.items() <= dict(os.environ).items()
    rows = {each["submission"]: each for each in found["models"]}
    assert list(rows) == sorted(HOSTILE)
    exact = {"rate": 1.0, "n": 400, "correct": 400}
    for name, (_, _, words) in HOSTILE.items():
        row = rows[name]
        if words == SOUND:
            assert row["error"] is None, f"{name}: {row['error']}"
            scores = row["evaluation"]["exact"]["free_running"]
            assert {key: scores[key] for key in exact} == exact, name
            assert list(Path(f"runs/{name}/results").glob("evaluation-test.json")), name
        else:
            assert row["evaluation"] is None, name
            assert words == "broken" or words in row["error"], f"{name}: {row['error']}"
    assert "line 11 in forward" in rows["crashes"]["output"]
    assert rows["prints"]["output"].startswith('{"models": []}\nforward')
    assert len(rows["floods"]["output"]) < 10_000
    assert "20,000,200 bytes in all" in rows["floods"]["output"]
    alone = run_json(capsys, "evaluate", "submissions/zoe/adapter.py:Model")[1]
    assert rows["zoe"]["evaluation"] == {key: alone[key] for key in rows["zoe"]["evaluation"]}


def test_ctrl_c_ends_a_course_and_shows_what_was_finished(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    started = in_tmp / "started"
    hand_in(in_tmp / "submissions", "alice")
    hand_in(in_tmp / "submissions", "bob", "time.sleep(1000)")
    # Carol's turn comes when Alice is finished.
    hand_in(in_tmp / "submissions", "carol", f"open({str(started)!r}, 'w').write(str(os.getpid()))\ntime.sleep(1000)")

    def interrupt() -> None:
        deadline = time.monotonic() + 100
        while not (started.exists() and started.read_text()) and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    watch = threading.Thread(target=interrupt)
    watch.start()
    try:
        code, found = run_json(capsys, "evaluate", COURSE)
    finally:
        watch.join()
        signal.signal(signal.SIGINT, before)
    assert code == 130
    assert [each["submission"] for each in found["models"]] == ["alice"]
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)


def test_a_broken_sorter_is_passed_over(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, module in (("alice", ""), ("bob", "import os; os._exit(0)\n"), ("carol", "")):
        (in_tmp / "submissions" / name).mkdir(parents=True)
        text = f"{module}from planted import PlantedSorter\n\n\nclass Model(PlantedSorter):\n    pass\n"
        (in_tmp / "submissions" / name / "adapter.py").write_text(text)
    code, found = run_json(capsys, "stretch", COURSE, "--lengths", "8,16", "--n", "4")
    assert code == 1
    assert {cell["accuracy"] for cell in found["cells"]} == {1.0}
    names = [f"submissions/{name}/adapter.py:Model" for name in ("alice", "carol")]
    assert list(dict.fromkeys(cell["name"] for cell in found["cells"])) == names
    assert found["files"]["pictures"][-1].startswith("runs/stretch/figures/")
    (broken,) = found["broken"]
    assert broken.startswith("submissions/bob/adapter.py:Model: the submission's code ended the process (exit code 0)")


def test_without_a_fork_a_new_interpreter_measures(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where there is a GPU: results and what was printed are the same."""
    hand_in(in_tmp / "submissions", "alice", "print('hello')")
    (name,) = all_models([COURSE])
    forked = api.evaluate_all([name], quiet=True)[name]
    monkeypatch.setattr("headcount.api.courses.fork_is_safe", lambda: False)
    found = api.evaluate_all([name], quiet=True)[name]
    assert found == forked
    assert (found.label, found.output) == ("alice", "hello")
    assert found.result is not None


@pytest.mark.parametrize(("given", "words"), [("0", "above 0"), ("soon", "--timeout must be a time")])
def test_a_time_limit_is_a_time(capsys: pytest.CaptureFixture[str], given: str, words: str) -> None:
    assert main(["evaluate", "a.py:A", "b.py:B", "--timeout", given]) == 2
    assert words in capsys.readouterr().err
