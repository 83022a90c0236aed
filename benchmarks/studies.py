"""How fast are studies: two processes against one, Dask against local processes, and a plan of 10,000 runs?

    python -m benchmarks studies [N_RUNS]

The study that is timed has six equal trainings. The plan of 10,000 runs is read, shown as a table while it runs, and
summarised from 10,000 folders, which are copies of one short run with other seeds and other figures.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import Ratio

SIX = """
title = "Six trainings"
task = "sortedness"
seeds = 6
[settings]
steps = 1000
eval_every = 500
[measure]
evaluate = true
"""
MANY = """
title = "Many runs"
task = "sortedness"
seeds = {seeds}
[settings]
steps = 2
eval_every = 2
d_model = 8
n_heads = 2
n_layers = 1
d_ff = 16
n_validation = 20
n_test = 20
[grid]
encoding = {encodings}
"""
ENCODINGS = ["none", "sinusoidal", "learned", "alibi", "rotary", "t5", "relative", "fire"]
PLAN_SECONDS, TABLE_SECONDS, SUMMARY_SECONDS, SUMMARY_GIB = 5.0, 0.1, 10.0, 1.0


def measure(n_runs: str = "10000") -> Iterator[Ratio]:
    """Time a study of six trainings in several ways, and a plan of many runs."""
    with tempfile.TemporaryDirectory(prefix="headcount-studies-") as folder:
        yield from _six(Path(folder))
        yield from _many(Path(folder), int(n_runs))


def _six(home: Path) -> Iterator[Ratio]:
    """Time six trainings in one process at a time, in two, and on a Dask cluster of this machine."""
    ways = {"one process": ["--processes", "1"], "two processes": ["--processes", "2"]}
    ways["dask"] = ["--processes", "2", "--on", "dask"]
    seconds = dict[str, float]()
    for name, flags in ways.items():
        folder = home / name.replace(" ", "-")
        folder.mkdir()
        (folder / "six.toml").write_text(SIX)
        started = time.perf_counter()
        _headcount(folder, "study", "six.toml", "--quiet", *flags)
        seconds[name] = time.perf_counter() - started
    one, two, dask = (f"{each:.0f} s" for each in seconds.values())
    ratio = seconds["one process"] / seconds["two processes"]
    yield Ratio.at_least("six trainings in two processes, against one", two, one, ratio, 1.8)
    overhead = seconds["dask"] / seconds["two processes"]
    yield Ratio.at_most("six trainings on Dask, against local processes", dask, two, overhead, 1.5)


def _many(home: Path, n_runs: int) -> Iterator[Ratio]:
    """Time the plan, the table and the summary of many runs."""
    folder = home / "many"
    folder.mkdir()
    (folder / "many.toml").write_text(MANY.format(seeds=n_runs // len(ENCODINGS), encodings=json.dumps(ENCODINGS)))
    planned = _in_a_process(folder, "plan")
    yield _within(f"a plan of {n_runs:,} runs", planned["seconds"], PLAN_SECONDS)
    shown = _in_a_process(folder, "table")
    yield _within(f"the table of {n_runs:,} runs, drawn once", shown["seconds"], TABLE_SECONDS)
    _fill(folder)
    summed = _in_a_process(folder, "summary")
    yield _within(f"rows, summary and page of {n_runs:,} runs", summed["seconds"], SUMMARY_SECONDS)
    memory = f"{summed['gib']:.2f} GiB"
    yield Ratio.at_most("its memory", memory, f"{SUMMARY_GIB:g} GiB", summed["gib"] / SUMMARY_GIB, 1.0)


def _within(question: str, seconds: float, most: float) -> Ratio:
    return Ratio.at_most(question, f"{seconds:.2f} s", f"{most:g} s", seconds / most, 1.0)


def _headcount(folder: Path, *words: str) -> None:
    command = [sys.executable, "-m", "headcount", *words]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


def _in_a_process(folder: Path, what: str) -> dict[str, Any]:
    """Do one of `WORK` in a process of its own; return its seconds, without imports, and the most memory it had."""
    command = [sys.executable, "-c", f"from benchmarks.studies import report; report({what!r})"]
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    ended = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, env=environment)
    return dict(json.loads(ended.stdout.splitlines()[-1]))


def report(what: str) -> None:
    """Do one of `WORK`, and print its seconds and the memory of the process."""
    seconds = WORK[what]()
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"seconds": seconds, "gib": kilobytes / 2**20}))


def _plan() -> float:
    from headcount.api.studying import plan_study

    started = time.perf_counter()
    plan_study("many.toml").write()
    return time.perf_counter() - started


def _table() -> float:
    from headcount.api.studying import plan_study
    from headcount.rendering.study_table import study_table
    from headcount.studies.running import Progress, RunState

    plan = plan_study("many.toml")
    states = [RunState(run, "done", seconds=1.0) for run in plan.runs[: len(plan.runs) // 2]]
    states += [RunState(run) for run in plan.runs[len(plan.runs) // 2 :]]
    states[0].state, states[-1].state = "failed", "running"
    console = Console(file=StringIO(), force_terminal=True)
    started = time.perf_counter()
    console.print(study_table(Progress(plan, states, 2)))
    return time.perf_counter() - started


def _summary() -> float:
    from headcount.api.studying import plan_study, summarise_runs

    plan = plan_study("many.toml")
    started = time.perf_counter()
    summarise_runs(plan, plan.runs)
    return time.perf_counter() - started


WORK: dict[str, Callable[[], float]] = {"plan": _plan, "table": _table, "summary": _summary}


def _fill(folder: Path) -> None:
    """Train the first run of the plan, and give all others copies of its files, with other figures."""
    _headcount(folder, "study", "many.toml", "--print-commands")
    runs = json.loads((folder / "runs" / "many" / "plan.json").read_text())["runs"]
    first = folder / runs[0]["folder"]
    _headcount(folder, *runs[0]["commands"][0][1:])
    _headcount(folder, "evaluate", runs[0]["folder"])
    files = {
        file.relative_to(first): file.read_bytes() for file in first.rglob("*") if file.suffix in (".json", ".jsonl")
    }
    for i, run in enumerate(runs[1:], start=1):
        for name, data in files.items():
            path = folder / run["folder"] / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if name.name == "config.json":
                data = re.sub(rb'"seed": \d+', b'"seed": %d' % run["seed"], data, count=1)
            elif name.parent.name == "results":
                data = re.sub(rb'"rate": [\d.]+', b'"rate": %.3f' % (i % 997 / 997), data)
            path.write_bytes(data)
