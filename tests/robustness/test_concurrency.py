"""Many writers of one file, two makers of one folder: no write fails, no read is torn, one of two wins."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headcount.errors import HeadcountError
from headcount.files import write_atomically
from headcount.runs.config import RunConfig
from headcount.runs.prune import prune_run
from headcount.runs.run import load
from headcount.runs.train import train_run

FORKED = multiprocessing.get_context("fork")
"""The modules are there already; a fresh process would take seconds to import them."""
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")]


def at_once(jobs: list[Callable[[], object]]) -> list[str]:
    """Each job in a process of its own, all let go at one moment; what each ended with: "done" or an error's text."""
    start, ends = FORKED.Barrier(len(jobs)), [FORKED.Pipe(duplex=False) for _ in jobs]

    def work(job: Callable[[], object], sender: Any) -> None:
        start.wait()
        try:
            job()
            sender.send("done")
        except HeadcountError as error:
            sender.send(f"{type(error).__name__}: {error}")
        except BaseException as error:
            sender.send(f"unexpected {type(error).__name__}: {error}")

    processes = [FORKED.Process(target=work, args=(job, end[1])) for job, end in zip(jobs, ends, strict=True)]
    for process in processes:
        process.start()
    told = [end[0].recv() if end[0].poll(120) else "a hang" for end in ends]
    for process in processes:
        process.join()
    return told


def content(writer: int, n: int) -> bytes:
    """Different lengths, and an end that says that nothing is missing."""
    return json.dumps({"writer": writer, "fill": f"{writer}" * (1000 * (writer + 1)), "n": n, "end": writer}).encode()


def write_many(file: Path, writer: int, n: int) -> None:
    for number in range(n):
        write_atomically(file, content(writer, number))


def read_while(file: Path, going_on: Callable[[], bool]) -> int:
    """Read again and again; an error if what is read is not all of what one writer wrote."""
    n = 0
    while going_on() or not n:
        data = json.loads(file.read_bytes())
        assert data["fill"] == f"{data['writer']}" * (1000 * (data["writer"] + 1))
        assert data["end"] == data["writer"]
        n += 1
    return n


def test_processes_write_one_file_and_others_read_it(tmp_path: Path, long: bool, count: Counter[str]) -> None:
    file, n = tmp_path / "results" / "x.json", 400 if long else 40
    write_atomically(file, content(0, 0))
    writing = FORKED.Value("i", 6)

    def write(writer: int) -> None:
        try:
            write_many(file, writer, n)
        finally:
            with writing.get_lock():
                writing.value -= 1

    writers = [lambda writer=writer: write(writer) for writer in range(6)]
    told = at_once([*writers, *[lambda: read_while(file, lambda: writing.value > 0)] * 2])
    count["writes"] += 6 * n
    assert told == ["done"] * 8
    assert list(file.parent.iterdir()) == [file], "a draft was left"


def test_threads_write_one_file(tmp_path: Path, long: bool, count: Counter[str]) -> None:
    file, n, failed = tmp_path / "x.json", 400 if long else 25, []
    start = threading.Barrier(6)

    def write(writer: int) -> None:
        start.wait()
        try:
            write_many(file, writer, n)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    count["writes"] += 6 * n
    assert failed == []
    assert json.loads(file.read_bytes())["n"] == n - 1
    assert list(tmp_path.iterdir()) == [file]


def test_one_of_two_trainings_into_one_folder_wins(
    tiny: dict[str, Any], tmp_path: Path, long: bool, count: Counter[str]
) -> None:
    configs = [RunConfig.build("addition", seed=seed, **tiny) for seed in (0, 1)]
    alone = [train_run(config, tmp_path / f"alone-{config.seed}").weights_sha256 for config in configs]
    for number in range(20 if long else 2):
        path = tmp_path / f"both-{number}"
        told = at_once([lambda config=config, path=path: train_run(config, path) for config in configs])  # type: ignore[misc]
        assert told.count("done") == 1, told
        assert next(each for each in told if each != "done").startswith("RunError: "), told
        assert load(path).weights_sha256 == alone[told.index("done")]
        count["pairs of trainings"] += 1


def test_one_of_two_prunes_into_one_folder_wins(tiny_run: Any, tmp_path: Path, long: bool, count: Counter[str]) -> None:
    """Whole, and of one model: not the weights of one with the settings of the other."""
    cuts = (["E0H0"], ["X1H1", "D0H0"])
    alone = [prune_run(tiny_run, cut, tmp_path / f"alone-{len(cut)}").model for cut in cuts]
    for number in range(50 if long else 3):
        path = tmp_path / f"both-{number}"
        told = at_once([lambda cut=cut, path=path: prune_run(tiny_run, cut, path) for cut in cuts])  # type: ignore[misc]
        assert told.count("done") == 1, told
        assert next(each for each in told if each != "done").startswith("RunError: "), told
        winner = alone[told.index("done")]
        assert load(path).weights_sha256 == winner.weights_sha256
        assert load(path).config == winner.config
        assert not list(tmp_path.glob(f".*both-{number}*")), "a draft was left"
        count["pairs of prunes"] += 1
