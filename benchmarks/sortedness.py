"""How fast do sortedness models reach 97 % accuracy in training, and how much memory does a length of 4,096 take?

Headcount's recipe and that of the exercise's reports train sinusoidal models. Both are tested on the same held-out
sequences of 8 to 16 numbers with all four kinds of negatives. The reports' recipe has d_model 128, 4 layers, post-LN,
dropout 0.1, mean pooling, a table of numbers, a fixed set of 10,000 sequences that is loaded item by item, Adam at 1e-3
and batches of 64. Both recipes are compared a second time on the newer reports' data, which are easier.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, cast

import torch

from benchmarks import Ratio
from benchmarks.race import EVERY, compare, train_ours, train_theirs
from headcount.runs.config import RunConfig
from headcount.tasks.base import ClassTask

GOAL, LONGEST = 0.97, 240.0
"""The accuracy to reach, and the largest processor time in seconds."""
MIXED, NEWER = "all four kinds of negatives", "the newer reports' data"
MEASURED: dict[str, dict[str, Any]] = {
    "far": {"preset": "far"},
    "far-generic": {"preset": "far-generic"},
    "fire": {"encoding": "fire", "softmax": "log-length"},
}
"""Models whose memory is measured; the bias of FIRE takes the most."""
LENGTH, BATCH, MOST = 4096, 32, 2 * 2**30
"""Numbers per sequence, sequences per batch, and the largest memory in bytes."""


def measure() -> Iterator[Ratio]:
    """Train two seeds with each recipe on each dataset, then measure memory."""
    for data in (MIXED, NEWER):
        names = [f"ours on {data}", f"the reports' recipe on {data}"]
        question = f"sortedness: processor time to {GOAL:.0%} in range"
        yield from compare("benchmarks.sortedness", names, (0, 1), question, 2, "at least 2")
    for name in MEASURED:
        peak, base = (_peak(name, length) for length in (LENGTH, 16))
        question = f"evaluation of {name} at length {LENGTH:,}, batch {BATCH}: peak memory of the process"
        ours, other = f"{peak / 2**20:.0f} MiB ({base / 2**20:.0f} at length 16)", f"{MOST / 2**20:.0f} MiB"
        yield Ratio(question, ours, other, MOST / peak, "under 2 GiB", peak < MOST)


def _peak(name: str, length: int) -> int:
    """Return the largest memory in bytes of a new process that evaluates a model at this length."""
    command = [sys.executable, "-m", "benchmarks.sortedness", "memory", name, str(length)]
    report = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)
    print(f"  {name} at {length}: {report}", file=sys.stderr, flush=True)
    return int(report["peak"])


def evaluate(name: str, length: int) -> None:
    """Evaluate two batches by an untrained model, which takes the memory of a trained one, and print the memory."""
    import resource

    from headcount.runs.run import build
    from headcount.seeds import stream
    from headcount.training.answers import classify

    task, model = build(RunConfig.build("sortedness", **MEASURED[name]))
    sorting = cast(ClassTask, task)
    examples = sorting.sample_of_length(stream(0, "bench"), length, None, 2 * BATCH)
    classify(model, sorting, examples, BATCH)
    kilobytes = 1 if sys.platform == "darwin" else 1024
    print(json.dumps({"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kilobytes}))


def train(name: str, seed: int) -> None:
    """Train one model with one recipe on one dataset, and print the report of its training."""
    who, _, data = name.partition(" on ")
    presets = ["newer"] if data == NEWER else []
    if who == "ours":
        target = {"eval_every": EVERY, "target": GOAL, "target_evaluations": 1}
        fresh = {"n_train": 0}
        train_ours(RunConfig.build("sortedness", seed=seed, preset=presets, **fresh, **target), GOAL)
    else:
        config = RunConfig.build(
            "sortedness", seed=seed, preset=[*presets, "reports-model", "reports-recipe"], n_train=10_000
        )
        train_theirs(config, ("source", "labels"), GOAL, LONGEST)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "memory":
        evaluate(sys.argv[2], int(sys.argv[3]))
    else:
        train(sys.argv[1], int(sys.argv[2]))
