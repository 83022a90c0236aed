"""Thousands of command lines: an answer or a message, never a traceback, a hang or a file elsewhere."""

from __future__ import annotations

import json
import shlex
import shutil
from collections import Counter
from pathlib import Path
from typing import NoReturn

import pytest
from lines import Lines
from worker import Prediction, Worker

pytestmark = pytest.mark.slow  # models of others, or many processes

SHORT, LONG = 80, 5000
FRESH_AFTER = 20
"""Lines that work in one folder before it is made anew."""
MOST_TOLD = 30


def test_generated_command_lines(
    stock: Path, worker: Worker, tmp_path: Path, seed: int, long: bool, count: Counter[str]
) -> None:
    """`pytest tests/robustness --long`: 5,000 of them; `--attack-seed N`: others."""
    sentinel = tmp_path / "sentinel"
    sentinel.mkdir()
    (sentinel / "precious.txt").write_text("precious")
    before, faults = _state(tmp_path, stock), []
    for number, argv in zip(range(LONG if long else SHORT), Lines(seed), strict=False):
        if number % FRESH_AFTER == 0:
            scratch = _scratch(stock, tmp_path)
        prediction = worker.run(argv, scratch, seconds=60)
        _tally(count, argv, prediction)
        fault = prediction.fault or _json_fault(argv, prediction)
        if not fault and _state(tmp_path, stock) != before:
            fault, before = "something outside of its folder was written", _state(tmp_path, stock)
        if fault:
            faults.append(f"--attack-seed {seed}, line {number}: headcount {_shown(argv)}\n{_end(fault)}")
    told = ", ".join(f"{what} {n}" for what, n in sorted(count.items()))
    assert not faults, f"{len(faults)} faults in {told}:\n" + "\n\n".join(faults[:MOST_TOLD])
    assert count["all: exit 0"] >= (count["all: exit 0"] + count["all: exit 1"] + count["all: exit 2"]) / 4, told


def _scratch(stock: Path, tmp_path: Path) -> Path:
    """A working folder with a model of every kind in it, and other things."""
    scratch = tmp_path / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(stock, scratch)
    (scratch / "folder").mkdir()
    (scratch / "folder" / "mine.txt").write_text("mine")
    return scratch


def _state(tmp_path: Path, stock: Path) -> dict[str, tuple[int, int, int]]:
    """Everything around the working folder: names, modes, sizes and times."""
    around = [*tmp_path.iterdir(), *(tmp_path / "sentinel").rglob("*"), *stock.rglob("*"), stock.parent]
    stats = {str(path): path.lstat() for path in around if path.name != "scratch" and path.parent.name != "__pycache__"}
    return {path: (stat.st_mode, stat.st_size, stat.st_mtime_ns) for path, stat in stats.items()}


def _json_fault(argv: list[str], prediction: Prediction) -> str:
    """With --json, one object and nothing but."""
    helps = any(part in ("-h", "--version") or (part[:3] == "--h" and "--help".startswith(part)) for part in argv)
    if prediction.code != 0 or "--json" not in argv or helps:
        return ""
    try:
        data = json.loads(prediction.out, parse_constant=_no_number)
    except ValueError as error:
        return f"not JSON: {error}: {prediction.out[:300]!r}"
    return "" if isinstance(data, dict) else f"no object: {prediction.out[:300]!r}"


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _tally(count: Counter[str], argv: list[str], prediction: Prediction) -> None:
    told = "fault" if prediction.fault else f"exit {prediction.code}"
    verb = argv[0] if argv and argv[0].isalpha() and argv[0] != "nothing" else "others"
    count[f"{verb}: {told}"] += 1
    count[f"all: {told}"] += 1


def _shown(argv: list[str]) -> str:
    return ascii(shlex.join(part if len(part) < 200 else part[:20] + "..." for part in argv))


def _end(text: str) -> str:
    """Where a traceback says what it is about."""
    return "\n".join(line[:300] for line in text.strip().splitlines()[-6:])


@pytest.mark.parametrize("number", [0, 77])
def test_the_lines_are_the_same_for_a_seed(number: int) -> None:
    assert Lines(3).line(number) == Lines(3).line(number) != Lines(4).line(number)
