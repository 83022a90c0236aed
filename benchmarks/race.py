"""Compare recipes by the processor time that training takes to reach a score; evaluations are not timed.

Each recipe trains in its own process with one thread, two processes at a time, and prints its report as a line of JSON.
A training that does not reach the score counts with its whole time limit.
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

from benchmarks import Ratio
from headcount.runs.config import RunConfig
from headcount.runs.run import build
from headcount.tasks.base import Task
from headcount.training.evaluation import learner_of
from headcount.training.loop import fit, new_state

EVERY = 50
"""Number of steps between evaluations."""


def compare(
    module: str, names: Sequence[str], seeds: Sequence[int], question: str, least: float, promise: str
) -> Iterator[Ratio]:
    """Train every recipe with every seed, and compare the first recipe, headcount's, with each of the others."""
    jobs = [(name, seed) for seed in seeds for name in names]
    with ThreadPoolExecutor(2) as pool:
        reports = dict(zip(jobs, pool.map(lambda job: _run(module, *job), jobs), strict=True))
    ours = [reports[names[0], seed] for seed in seeds]
    for name in names[1:]:
        others = [reports[name, seed] for seed in seeds]
        own_seconds, other_seconds = (sum(report["seconds"] for report in trainings) for trainings in (ours, others))
        own_times, other_times = (", ".join(map(_format_time, trainings)) for trainings in (ours, others))
        kept = other_seconds / own_seconds >= least and all(report["met"] for report in ours)
        comparison = f"{question}, against {name} ({len(seeds)} seeds, 1 thread each)"
        yield Ratio(comparison, own_times, other_times, other_seconds / own_seconds, promise, kept)


def _run(module: str, name: str, seed: int) -> dict[str, Any]:
    command = [sys.executable, "-m", module, name, str(seed)]
    report: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)
    print(f"  {name}, seed {seed}: {report}", file=sys.stderr, flush=True)
    return report


def _format_time(report: dict[str, Any]) -> str:
    """Return the time of a training, such as `40 s`, or `over 480 s (98.20%)` if it did not reach the score."""
    seconds = f"{report['seconds']:.0f} s"
    return seconds if report["met"] else f"over {seconds} ({report['best']:.2%})"


class Stopwatch:
    """The processor time of training without evaluations, and the best score so far."""

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
    """Train like `headcount train` until the score is reached, and print the report."""
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
    """A fixed training set that is loaded item by item, as in the exercise's code."""

    def __init__(self, task: Task, fields: Sequence[str]) -> None:
        batch = task.encode(task.split("train"))  # type: ignore[attr-defined]
        self.columns = [getattr(batch, field) for field in fields]

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, i: int) -> tuple[torch.Tensor, ...]:
        return tuple(torch.tensor(column[i]) for column in self.columns)


def train_theirs(config: RunConfig, fields: Sequence[str], goal: float, longest: float) -> None:
    """Train with the loop of the exercise's reports (Adam at 1e-3, batches of 64), and print the report.

    `fields` names the parts of a batch that the model gets; the last one is the labels.
    """
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
