"""What our loop costs over a bare PyTorch loop on the same model and the same batches.

Ours is the whole training: drawing batches, logging every step to disk, checkpoints, averaging. The bare loop gets
its batches ready-made. Evaluations are off in both. Rounds alternate, and the median ratio counts.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch.nn import functional as F

from headcount.runs.config import RunConfig
from headcount.runs.run import build
from headcount.runs.train import train_run
from headcount.seeds import stream
from headcount.tasks.base import SequenceTask
from headcount.training.device import n_threads

STEPS, ROUNDS = 200, 7


def measure() -> Iterator[dict[str, Any]]:
    """Seconds of processor time per step."""
    config = RunConfig.build("addition", steps=STEPS + 10, eval_every=10 * STEPS, target=None, threads=1)
    ours, bare = [], []
    with n_threads(1):
        for _ in range(ROUNDS):
            ours.append(_ours(config))
            bare.append(_bare(config))
    # The two halves of a round stand side by side in time, so the ratio is taken before the median.
    ratio = statistics.median(mine / theirs for mine, theirs in zip(ours, bare, strict=True))
    yield {
        "question": f"a training step of ours, against a bare loop ({STEPS} steps, median of {ROUNDS}, 1 thread)",
        "ours": f"{1e3 * statistics.median(ours) / STEPS:.2f} ms",
        "other": f"{1e3 * statistics.median(bare) / STEPS:.2f} ms",
        "ratio": ratio,
        "promise": "at most 1.05",
        "kept": ratio <= 1.05,
    }


class _Clock:
    """Starts after ten steps, as the bare loop's clock does, and stops before the evaluation at the end."""

    def __init__(self) -> None:
        self.times: list[tuple[int, float]] = []

    def on_steps(self, last_step: int, losses: Any, rates: Any) -> None:
        self.times.append((last_step, time.process_time()))

    def on_evaluation(self, step: int, scores: Any) -> None: ...

    def seconds(self) -> float:
        (first, began), (last, ended) = self.times[0], self.times[-1]
        assert (first, last) == (10, STEPS + 10)
        return ended - began


def _ours(config: RunConfig) -> float:
    clock = _Clock()
    with tempfile.TemporaryDirectory() as folder:
        train_run(config, Path(folder) / "run", listeners=[clock])
    return clock.seconds()


def _bare(config: RunConfig) -> float:
    task, model = build(config)
    adding, batches = cast(SequenceTask, task), []
    for step in range(STEPS + 10):
        batch = adding.encode(adding.sample(stream(0, "batch", step), config.training.batch_size))
        batches.append([torch.from_numpy(array) for array in (batch.source, batch.decoder_input, batch.labels)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.training.learning_rate, fused=True)
    for step, (source, decoder_input, labels) in enumerate(batches):
        if step == 10:
            started = time.process_time()
        loss = F.cross_entropy(model(source, decoder_input).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return time.process_time() - started
