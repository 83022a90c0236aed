"""Processor time to a goal: each recipe trains in a process of its own with one thread, two at a time.

A recipe's process prints one line of JSON. Time spent evaluating is not counted; whatever else training does is. One
that does not get there within its time counts with the time it was given.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from headcount.runs.config import RunConfig
from headcount.runs.run import build
from headcount.tasks.base import Task
from headcount.training.evaluation import learner_of
from headcount.training.loop import fit, new_state

EVERY = 50
"""Steps between looks at the goal."""


def compare(
    module: str, names: Sequence[str], seeds: Sequence[int], question: str, least: float, promise: str
) -> Iterator[dict[str, Any]]:
    """The first of the names is ours; each other one is set against it."""
    jobs = [(name, seed) for seed in seeds for name in names]
    with ThreadPoolExecutor(2) as pool:
        reports = dict(zip(jobs, pool.map(lambda job: _run(module, *job), jobs), strict=True))
    ours = [reports[names[0], seed] for seed in seeds]
    for name in names[1:]:
        theirs = [reports[name, seed] for seed in seeds]
        ratio = sum(each["seconds"] for each in theirs) / sum(each["seconds"] for each in ours)
        yield {
            "question": f"{question}, against {name} ({len(seeds)} seeds, 1 thread each)",
            "ours": ", ".join(map(_shown, ours)),
            "other": ", ".join(map(_shown, theirs)),
            "ratio": ratio,
            "promise": promise,
            "kept": ratio >= least and all(each["met"] for each in ours),
        }


def _run(module: str, name: str, seed: int) -> dict[str, Any]:
    command = [sys.executable, "-m", module, name, str(seed)]
    report: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)
    print(f"  {name}, seed {seed}: {report}", file=sys.stderr, flush=True)
    return report


def _shown(report: dict[str, Any]) -> str:
    time_taken = f"{report['seconds']:.0f} s"
    return time_taken if report["met"] else f"over {time_taken} ({report['best']:.2%})"


class Stopwatch:
    """Processor time of training alone, and the best score so far."""

    def __init__(self, goal: float) -> None:
        self.goal, self.spent, self.since = goal, 0.0, time.process_time()
        self.best = 0.0

    def pause(self) -> None:
        self.spent += time.process_time() - self.since

    def resume(self) -> None:
        self.since = time.process_time()

    def report(self, step: int) -> None:
        met = self.best >= self.goal
        print(json.dumps({"seconds": round(self.spent, 1), "steps": step, "met": met, "best": self.best}))


def train_ours(config: RunConfig, goal: float) -> None:
    """As `headcount train` runs it, until the goal."""
    task, model = build(config)
    target_metric, stopwatch = learner_of(model, task).target_metric, Stopwatch(goal)

    class Pauses:
        def on_steps(self, last_step: int, losses: Any, rates: Any) -> None:
            if last_step % EVERY == 0:
                stopwatch.pause()  # an evaluation follows

        def on_evaluation(self, step: int, scores: Any) -> None:
            stopwatch.best = max(stopwatch.best, scores.validation[target_metric].rate)
            stopwatch.resume()

    state = new_state(model, config.training)
    fit(state, task, config.training, config.seed, listeners=[Pauses()])
    stopwatch.report(state.step)


class Items(Dataset[tuple[torch.Tensor, ...]]):
    """The fixed training set, one item at a time, as the exercise's code loads it."""

    def __init__(self, task: Task, fields: Sequence[str]) -> None:
        batch = task.encode(task.split("train"))  # type: ignore[attr-defined]
        self.columns = [getattr(batch, field) for field in fields]

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, i: int) -> tuple[torch.Tensor, ...]:
        return tuple(torch.tensor(column[i]) for column in self.columns)


def train_theirs(config: RunConfig, fields: Sequence[str], goal: float, longest: float) -> None:
    """The reports' loop: Adam at 1e-3, batches of 64 from a DataLoader; the last field is the label."""
    task, model = build(config)
    learner = learner_of(model, task)
    torch.manual_seed(config.seed)
    loader = DataLoader(Items(task, fields), batch_size=64, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    stopwatch, step = Stopwatch(goal), 0
    model.train()
    while stopwatch.best < goal and stopwatch.spent < longest:
        for *inputs, labels in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(*inputs).flatten(0, -2), labels.flatten()).backward()
            optimizer.step()
            step += 1
            if step % EVERY == 0:
                stopwatch.pause()
                scores = learner.scores(task.split("validation"))[0]
                stopwatch.best = max(stopwatch.best, scores[learner.target_metric].rate)
                stopwatch.resume()
                if stopwatch.best >= goal:
                    break
    stopwatch.report(step)
