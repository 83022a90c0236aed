"""Sortedness: processor time to the same accuracy in range, and the memory of an evaluation at length 4,096.

Both train sinusoidal models and are tested on the same held-out sequences of 8-16 numbers with all four kinds of
negatives. The reports': d_model 128, 4 layers, post-LN, dropout 0.1, mean pooling, a table of numbers, a fixed set of
10,000 loaded item by item, Adam at 1e-3, batches of 64. It is also tried on the newer reports' own, easier data, and
ours beside it on the same.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, cast

import torch

from benchmarks.race import EVERY, compare, train_ours, train_theirs
from headcount.runs.config import RunConfig
from headcount.tasks.base import ClassTask

GOAL, LONGEST = 0.97, 240.0
MIXED, NEWER = "all four kinds of negatives", "the newer reports' data"
LOOKED_AT: dict[str, dict[str, Any]] = {
    "far": {"preset": "far"},
    "far-generic": {"preset": "far-generic"},
    "fire": {"encoding": "fire", "softmax": "log-length"},
}
"""Whose memory is measured: FIRE computes the heaviest bias."""
LENGTH, BATCH, MOST = 4096, 32, 2 * 2**30


def measure() -> Iterator[dict[str, Any]]:
    """Two seeds of each recipe on each data, then memory."""
    for data in (MIXED, NEWER):
        names = [f"ours on {data}", f"the reports' recipe on {data}"]
        question = f"sortedness: processor time to {GOAL:.0%} in range"
        yield from compare("benchmarks.sortedness", names, (0, 1), question, 2, "at least 2")
    for name in LOOKED_AT:
        yield _memory(name)


def _memory(name: str) -> dict[str, Any]:
    """A process of its own: the largest memory it ever had, with and without the evaluation."""
    peak, base = (_peak(name, length) for length in (LENGTH, 16))
    return {
        "question": f"evaluation of {name} at length {LENGTH:,}, batch {BATCH}: peak memory of the process",
        "ours": f"{peak / 2**20:.0f} MiB ({base / 2**20:.0f} at length 16)",
        "other": f"{MOST / 2**20:.0f} MiB",
        "ratio": MOST / peak,
        "promise": "under 2 GiB",
        "kept": peak < MOST,
    }


def _peak(name: str, length: int) -> int:
    command = [sys.executable, "-m", "benchmarks.sortedness", "memory", name, str(length)]
    report = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)
    print(f"  {name} at {length}: {report}", file=sys.stderr, flush=True)
    return int(report["peak"])


def evaluate(name: str, length: int) -> None:
    """Two batches of an untrained model, whose memory is that of a trained one."""
    import resource

    from headcount.runs.run import build
    from headcount.seeds import stream
    from headcount.training.answers import classify

    task, model = build(RunConfig.build("sortedness", **LOOKED_AT[name]))
    sorting = cast(ClassTask, task)
    examples = sorting.sample_of_length(stream(0, "bench"), length, None, 2 * BATCH)
    classify(model, sorting, examples, BATCH)
    kilobytes = 1 if sys.platform == "darwin" else 1024
    print(json.dumps({"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kilobytes}))


def train(name: str, seed: int) -> None:
    """One recipe on one data."""
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
