"""Runs of a study end, crash, are started again and shared; nothing is lost and nothing is done twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from headcount.api.studying import run_study
from headcount.cli import main
from headcount.errors import Interrupted
from headcount.files import write_atomically
from headcount.limits import MOST_LOST
from headcount.studies import running
from headcount.studies.file import read_study
from headcount.studies.plan import Plan, PlannedRun, make_plan
from headcount.studies.running import BUSY, LOST, complete, execute

TINY = """
title = "Tiny"
task = "sortedness"
seeds = {seeds}
[settings]
steps = 6
eval_every = 3
checkpoint_every = 2
n_validation = 20
n_test = 20
d_model = 16
d_ff = 16
n_layers = 1
"""


def tiny_plan(folder: Path, seeds: int = 3, more: str = "") -> Plan:
    file = folder / "tiny.toml"
    file.write_text(TINY.format(seeds=seeds) + more)
    return make_plan(read_study(file), folder / "runs" / "tiny")


def finish(run: PlannedRun, weights: str = "w") -> None:
    """Leave what a finished training leaves, without training."""
    run.folder.mkdir(parents=True, exist_ok=True)
    files = {"model.safetensors": weights}
    (run.folder / "manifest.json").write_text(json.dumps({"schema": 1, "steps": 6, "files": files}))
    for step in run.steps:
        run.write_receipt(step, 0)


@dataclass
class FakeProcess:
    code: int | None
    run: PlannedRun
    stopped: bool = False
    place = ""
    error = ""

    def progress(self) -> float:
        return 0.0

    def exit_code(self) -> int | None:
        if self.code == 0:
            finish(self.run)
        return self.code

    def stop(self) -> None:
        self.stopped, self.code = True, 143

    def kill(self) -> None:
        self.code = -9


@dataclass
class FakeBackend:
    """Processes that end at once with the next of these codes, by run; 0 when there are none left."""

    codes: dict[str, list[int | None]] = field(default_factory=dict)
    n_slots: int = 2
    started: list[str] = field(default_factory=list)
    processes: list[FakeProcess] = field(default_factory=list)

    def start(self, plan: Plan, run: PlannedRun) -> FakeProcess:
        self.started.append(run.name)
        codes = self.codes.get(run.name, [])
        process = FakeProcess(codes.pop(0) if codes else 0, run)
        self.processes.append(process)
        return process

    def check(self) -> str:
        return ""


def test_a_crash_is_retried_and_takes_down_nothing_else(tmp_path: Path) -> None:
    plan, backend = tiny_plan(tmp_path), FakeBackend({"seed=1": [-9, 2], "seed=2": [70, 70, 70]})
    progress = execute(plan, backend)
    assert [state.state for state in progress.states] == ["done", "done", "failed"]
    assert [state.n_crashes for state in progress.states] == [0, 2, 3]
    assert progress.states[2].error == "its process ended with code 70"
    again = FakeBackend()
    assert [state.state for state in execute(plan, again).states] == ["done"] * 3
    assert again.started == ["seed=2"]  # finished runs are not repeated


def test_studies_that_share_a_run_read_the_results_of_their_own_commands(tmp_path: Path) -> None:
    first, second = (tiny_plan(tmp_path, 1, f"[measure]\n{verb} = true\n").runs[0] for verb in ("evaluate", "ablate"))
    assert first.folder == second.folder

    def measure(arguments: Sequence[str]) -> tuple[int, None]:
        result = first.folder / "results" / f"{arguments[0]}.json"
        result.parent.mkdir(parents=True, exist_ok=True)
        if arguments[0] != "train" or not result.exists():  # a finished training writes nothing again
            write_atomically(result, b"{}")
        files = {"model.safetensors": "w"}
        (first.folder / "manifest.json").write_text(json.dumps({"schema": 1, "steps": 6, "files": files}))
        return 0, None

    measure(["train"])  # killed before the receipt
    assert [complete(run, measure) for run in (first, second)] == [0, 0]
    assert first.results == frozenset({"results/train.json", "results/evaluate.json"})
    assert second.results == frozenset({"results/train.json", "results/ablate.json"})
    first.receipt(first.steps[1]).unlink()  # killed after the result, before the receipt: measured again
    assert complete(first, measure) == 0
    assert first.results == frozenset({"results/train.json", "results/evaluate.json"})


@dataclass
class DyingWorkers(FakeBackend):
    """Two runs at a time on one worker, which dies with both of them whenever it has a run of these names."""

    killers: tuple[str, ...] = ()
    alone: list[str] = field(default_factory=list)
    """Names of the runs that were started while no other one ran."""

    def start(self, plan: Plan, run: PlannedRun) -> FakeProcess:
        running_now = [each for each in self.processes if each.code is None]
        process = super().start(plan, run)
        process.code = None
        if not running_now:
            self.alone.append(run.name)
        return process

    def check(self) -> str:
        on_worker = [each for each in self.processes if each.code is None]
        has_killer = any(each.run.name in self.killers for each in on_worker)
        for each in on_worker:
            each.code = LOST if has_killer else 0
        return ""


def test_a_run_that_was_only_on_a_worker_that_died_is_done(tmp_path: Path) -> None:
    """Whoever was on the worker may have killed it, so each is tried alone, after all others."""
    plan = tiny_plan(tmp_path, 5)
    backend = DyingWorkers(killers=("seed=1",))
    progress = execute(plan, backend, retries=0)
    assert [state.state for state in progress.states] == ["done", "failed", "done", "done", "done"]
    assert progress.states[1].error.startswith("its workers died whenever they had this run")
    assert backend.started[:5] == ["seed=0", "seed=1", "seed=2", "seed=3", "seed=4"]
    assert backend.started[5:] == ["seed=0", *["seed=1"] * MOST_LOST]
    assert backend.alone[-1 - MOST_LOST :] == backend.started[5:]
    assert progress.states[0].n_lost == 0


def test_a_run_of_another_launcher_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "BUSY_AFTER", 0.01)
    plan, backend = tiny_plan(tmp_path), FakeBackend({"seed=1": [BUSY, BUSY]})
    progress = execute(plan, backend, retries=0)
    assert [state.state for state in progress.states] == ["done"] * 3
    assert backend.started.count("seed=1") == 3


def test_what_needs_a_failed_job_fails_and_what_needs_a_slow_one_waits(tmp_path: Path) -> None:
    plan = tiny_plan(tmp_path, 4)
    first, second, third, fourth = plan.runs
    runs = (replace(second, needs=("seed=0",)), first, replace(fourth, needs=("seed=2",)), third)
    backend = FakeBackend({"seed=2": [70]})
    progress = execute(replace(plan, runs=runs), backend, retries=0)
    assert backend.started == ["seed=0", "seed=2", "seed=1"]
    assert [state.state for state in progress.states] == ["done", "done", "failed", "failed"]
    assert progress.states[2].error == "it needs seed=2, which failed"


def test_a_process_that_ends_well_without_its_receipts_has_crashed(tmp_path: Path) -> None:
    class Forgetful(FakeProcess):
        def exit_code(self) -> int | None:
            return 0

    backend = FakeBackend()
    backend.start = lambda plan, run: Forgetful(0, run)  # type: ignore[method-assign]
    assert {state.state for state in execute(tiny_plan(tmp_path), backend, retries=1).states} == {"failed"}


def test_an_interrupt_stops_every_process_and_says_how_to_go_on(tmp_path: Path) -> None:
    plan, backend = tiny_plan(tmp_path), FakeBackend({"seed=0": [None], "seed=1": [None]})

    def interrupt(progress: running.Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(plan, backend, on_change=interrupt)
    assert [process.stopped for process in backend.processes] == [True, True]
    backend = FakeBackend({"seed=0": [None]})
    backend.start = interrupt  # type: ignore[assignment, method-assign]
    with pytest.raises(Interrupted, match="continue with: headcount study"):
        run_study(plan, backend=FakeInterrupted(), quiet=True)


class FakeInterrupted(FakeBackend):
    def start(self, plan: Plan, run: PlannedRun) -> FakeProcess:
        raise KeyboardInterrupt


def test_commands_without_a_receipt_are_run_in_order(tmp_path: Path) -> None:
    plan = tiny_plan(tmp_path, 1, "[measure]\naudit = true\nablate = { n = 5 }\nclaims = { file = 'adder' }\n")
    (run,) = plan.runs
    calls = list[str]()

    def measure(arguments: Sequence[str]) -> tuple[int, Any]:
        calls.append(arguments[0])
        if arguments[0] == "train":
            run.folder.mkdir(parents=True, exist_ok=True)
            manifest = {"schema": 1, "steps": 6, "files": {"model.safetensors": "w"}}
            (run.folder / "manifest.json").write_text(json.dumps(manifest))
        codes = {"audit": 1, "ablate": 2 if calls.count("ablate") == 1 else 0}  # a finding, and a crash
        return codes.get(arguments[0], 0), {"kept": True} if arguments[0] == "claims" else None

    assert complete(run, measure) == 2
    assert complete(run, measure) == 0
    assert complete(run, measure) == 0
    assert calls == ["train", "audit", "ablate", "ablate", "claims"]
    assert json.loads(run.receipt(run.steps[1]).read_text())["exit_code"] == 1
    assert json.loads(run.receipt(run.steps[3]).read_text())["output"] == {"kept": True}


def test_a_receipt_of_other_weights_or_a_damaged_one_does_not_count(tmp_path: Path) -> None:
    (run,) = tiny_plan(tmp_path, 1, "[measure]\naudit = true\n").runs
    assert len(run.open_steps()) == 2
    finish(run)
    assert run.is_done
    run.receipt(run.steps[1]).write_text("[")
    assert run.open_steps() == [run.steps[1]]
    finish(run)
    manifest = json.loads((run.folder / "manifest.json").read_text())
    (run.folder / "manifest.json").write_text(json.dumps(manifest | {"files": {"model.safetensors": "other"}}))
    assert len(run.open_steps()) == 2


def test_two_processes_do_not_work_in_one_folder(tmp_path: Path) -> None:
    (run,) = tiny_plan(tmp_path, 1).runs

    def second(arguments: Sequence[str]) -> tuple[int, Any]:
        return complete(run, lambda arguments: pytest.fail("it is locked")), None

    assert complete(run, second) == BUSY


def test_progress_is_read_from_the_log(tmp_path: Path) -> None:
    (run,) = tiny_plan(tmp_path, 1).runs
    assert run.progress() == 0
    run.folder.mkdir(parents=True)
    (run.folder / "log.jsonl").write_text('{"step": 2, "loss": 1.0}\n{"step": 3, "loss": 1.0}\n')
    assert run.progress() == 0.5


# --- real processes ---------------------------------------------------------------------------------------------------


def digests(folder: Path) -> dict[str, bytes]:
    """Return every file that does not depend on the clock."""
    kept = ("config.json", "log.jsonl", "manifest.json", "model.safetensors")
    files = [file for file in folder.rglob("*") if file.name in kept or file.parent.name in ("results", "receipts")]
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(files)}


@pytest.mark.slow
def test_killed_at_random_a_study_ends_with_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two launchers share the work; runs and launchers are killed; what is there in the end is as if undisturbed."""
    measure = "[measure]\nevaluate = { split = 'validation' }\n"
    folders = {}
    for name in ("calm", "killed"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        Path("tiny.toml").write_text(TINY.format(seeds=3) + measure)
        command = [sys.executable, "-m", "headcount", "study", "tiny.toml", "--retries", "50", "--quiet"]
        if name == "killed":
            for wait in (2.0, 3.5):
                launchers = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(2)]
                time.sleep(wait)
                victims = subprocess.run(["pgrep", "-P", str(launchers[0].pid)], capture_output=True, text=True)
                for victim in map(int, victims.stdout.split()):
                    os.kill(victim, signal.SIGKILL)
                for launcher in launchers:
                    launcher.kill()
                    launcher.wait()
        assert subprocess.run(command, check=False).returncode == 0
        folders[name] = digests(tmp_path / name / "runs" / "models")
    assert len([file for file in folders["calm"] if file.endswith("model.safetensors")]) == 3
    assert folders["killed"] == folders["calm"]


@pytest.mark.slow
def test_a_run_that_always_fails_ends_as_failed_and_the_study_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = tiny_plan(tmp_path, 2)
    plan.runs[1].folder.mkdir(parents=True)
    (plan.runs[1].folder / "notes.txt").write_text("a file of somebody else")
    assert main(["study", "tiny.toml", "--retries", "0", "--json", "--processes", "2"]) == 1
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [run["state"] for run in runs] == ["done", "failed"]
    assert "is not empty, and holds no training" in runs[1]["error"]


def test_the_commands_of_a_plan_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny_plan(tmp_path, 1)
    assert main(["study", "tiny.toml", "--print-commands", "--json"]) == 0
    (command,) = json.loads(capsys.readouterr().out)["commands"]
    assert command == "headcount study tiny.toml --out runs/tiny --run seed=0"
    assert main(command.split()[1:]) == 0
    assert main(command.split()[1:]) == 0
    assert main(["study", "tiny.toml", "--dry-run", "--json"]) == 0
    (variant,) = json.loads(capsys.readouterr().out.splitlines()[-1])["variants"]
    assert (variant["runs"], variant["open"]) == (1, 0)


@pytest.mark.slow
def test_the_summary_over_seeds_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny_plan(tmp_path, 2, "[grid]\nencoding = ['none', 'rotary']\n")
    assert main(["study", "tiny.toml", "--json", "--quiet"]) == 0
    data = json.loads(capsys.readouterr().out)
    (summary,) = data["summaries"]
    assert summary["by"] == ["encoding"]
    assert {(each["variant"], each["n"]) for each in summary["variants"]} == {("none", 2), ("rotary", 2)}
    rows = [json.loads(line) for line in Path("runs/tiny/rows.jsonl").read_text().splitlines()]
    assert {row["run"] for row in rows} == {run["run"] for run in data["runs"]}
    page = Path("runs/tiny/report.html").read_text()
    assert "Measures by variant" in page
    assert "<svg" in page
    assert main(["study", "tiny.toml"]) == 0
    text = capsys.readouterr().out
    assert "4 runs of the task sortedness are compared by encoding" in text
    assert "rows.csv" in text
