"""How a command ends whatever it is given to print on, and names that mean something else too."""

from __future__ import annotations

import io
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headcount.cli import main
from headcount.rendering import progress
from headcount.rendering.progress import Terminal
from headcount.runs.run import Run

pytestmark = pytest.mark.slow  # a process for each


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.slow
def test_the_verdict_survives_a_reader_that_closes(stream: str, tiny_run: Run) -> None:
    """`verify wrong | head -0`: exit code 1, as without the pipe."""
    ours, theirs = os.pipe()
    os.close(ours)
    others = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL} | {stream: theirs}
    command = [sys.executable, "-m", "headcount", "verify", str(tiny_run.folder.path)]
    done = subprocess.run(command, **others)  # type: ignore[call-overload]
    os.close(theirs)
    assert done.returncode == 1


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_characters_that_cannot_be_printed_fall_back(
    encoding: str, tiny_run: Run, in_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "ä→"
    shutil.copytree(tiny_run.folder.path, name)
    for argv, code in (
        [["verify", name], 1],
        [["evaluate", name], 0],
        [["heads", name], 0],
        [["heads", f"{name}x"], 2],
    ):
        written = io.BytesIO(), io.BytesIO()
        streams = [io.TextIOWrapper(each, encoding=encoding) for each in written]
        monkeypatch.setattr("sys.stdout", streams[0])
        monkeypatch.setattr("sys.stderr", streams[1])
        assert main(argv) == code
        for stream in streams:
            stream.flush()
        assert any(each.getvalue() for each in written)


@pytest.mark.parametrize("name", ["x.py:Model", "[bold]", "[/x]", "$x", "a b", "-", "x\ny"])
def test_a_run_of_any_name_opens(name: str, tiny_run: Run, in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(tiny_run.folder.path, name)
    for verb in ("heads", "verify"):
        assert main([verb, name]) in (0, 1), capsys.readouterr().err
    if name != "x\ny":
        assert f"{name}/results/certificate.json" in capsys.readouterr().out.replace("\n", "")


def test_a_name_that_is_no_text_is_printed_and_drawn(
    tiny_run: Run, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """File names are bytes: Python spells those that are not UTF-8 by surrogates, which no font and no stream has."""
    shutil.copytree(tiny_run.folder.path, "run-\udcff")
    assert main(["evaluate", "run-\udcff"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("verb", [["predict", "sample:addition", "374+814"], []])
def test_what_cannot_be_printed_is_no_success_and_no_traceback(verb: list[str]) -> None:
    """A full disk behind `> file`: the work is done, but nobody has its result."""
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "headcount", *verb]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: could not print everything")
    assert "Traceback" not in done.stderr


def test_names_are_no_markup_on_a_terminal_either(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(progress, "Terminal", lambda **_: Terminal(file=shown, force_terminal=True, width=80))
    with progress.counting("silencing heads of x[/y] :smile:") as count:
        count(1, 2)
    assert "x[/y] :smile:" in shown.getvalue()


def test_a_hint_can_be_typed_whatever_the_name(tiny_run: Run, in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(tiny_run.folder.path, "-x y")
    assert main(["predict", "./-x y", "3+4", "--without", "E9H9"]) == 2
    hint = capsys.readouterr().err.splitlines()[-1].partition("headcount ")[2]
    assert main(shlex.split(hint)) == 0


def test_a_run_may_be_called_by_bytes_that_are_no_text(tiny: dict[str, Any], in_tmp: Path) -> None:
    flags = [part for name, value in tiny.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    assert main(["train", "addition", *flags, "-o", "by\udcfftes", "--quiet"]) == 0
    assert main(["train", "addition", *flags, "-o", "by\udcfftes", "--resume", "--quiet"]) == 0


def test_an_empty_name_is_none(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in (["train", "addition"], ["prune", "sample:addition"], ["lab"], ["stretch", "sample:sortedness"]):
        with pytest.raises(SystemExit) as stopped:
            main([*verb, "-o", ""])
        assert stopped.value.code == 2
        assert "the name is empty" in capsys.readouterr().err
    assert not any(in_tmp.iterdir())


def test_a_file_called_as_a_split_is_not_taken_for_data(tiny_run: Run, in_tmp: Path) -> None:
    for name in ("test", "validation"):
        Path(name).write_text("mine")
        assert main(["ablate", str(tiny_run.folder.path), "--split", name, "--replacements", "zero", "--quiet"]) == 0


WINDOWS = """
import sys
from headcount.cli import main
assert "matplotlib" not in sys.modules
assert main(["heads", sys.argv[1]]) == 0
import matplotlib  # raises an error if the variable names no backend
"""


@pytest.mark.slow
def test_somebodys_settings_for_windows_do_not_matter(tiny_run: Run) -> None:
    command = [sys.executable, "-c", WINDOWS, str(tiny_run.folder.path)]
    assert subprocess.run(command, env=os.environ | {"MPLBACKEND": "nonsense"}, capture_output=True).returncode == 0
