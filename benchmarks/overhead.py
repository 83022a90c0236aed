"""How much slower is headcount's training than a bare PyTorch loop on the same model and the same batches?

Headcount's time includes drawing batches, logging every step to disk, checkpoints and the average of the weights. The
bare loop gets its batches ready-made. Neither evaluates. Rounds alternate, and the median of their ratios counts.
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

from benchmarks import Ratio
from headcount.runs.config import RunConfig
from headcount.runs.run import build
from headcount.runs.train import train_run
from headcount.seeds import stream
from headcount.tasks.base import SequenceTask
from headcount.training.device import n_threads

STEPS, ROUNDS = 200, 7
WARMUP = 10
"""Number of first steps that are not timed."""


def measure() -> Iterator[Ratio]:
    """Compare the processor time per training step."""
    config = RunConfig.build("addition", steps=STEPS + WARMUP, eval_every=10 * STEPS, target=None, threads=1)
    with n_threads(1):
        rounds = [(_ours(config), _bare(config)) for _ in range(ROUNDS)]
    # The ratio is taken within a round, because other work on the machine slows both halves of a round alike.
    ratio = statistics.median(ours / bare for ours, bare in rounds)
    ours, bare = (f"{1e3 * statistics.median(seconds) / STEPS:.2f} ms" for seconds in zip(*rounds, strict=True))
    question = f"a training step of ours, against a bare loop ({STEPS} steps, median of {ROUNDS}, 1 thread)"
    yield Ratio.at_most(question, ours, bare, ratio, 1.05)


class _Clock:
    """A listener that notes the processor time at each report of the training."""

    def __init__(self) -> None:
        self.times: list[tuple[int, float]] = []

    def on_steps(self, last_step: int, losses: Any, rates: Any) -> None:
        self.times.append((last_step, time.process_time()))

    def on_evaluation(self, step: int, scores: Any) -> None: ...

    def seconds(self) -> float:
        """Return the time between the end of the warm-up and the last step, before the final evaluation."""
        (first, began), (last, ended) = self.times[0], self.times[-1]
        assert (first, last) == (WARMUP, STEPS + WARMUP)
        return ended - began


def _ours(config: RunConfig) -> float:
    clock = _Clock()
    with tempfile.TemporaryDirectory() as folder:
        train_run(config, Path(folder) / "run", listeners=[clock])
    return clock.seconds()


def _bare(config: RunConfig) -> float:
    task, model = build(config)
    adding, batches = cast(SequenceTask, task), []
    for step in range(STEPS + WARMUP):
        batch = adding.encode(adding.sample(stream(0, "batch", step), config.training.batch_size))
        batches.append([torch.from_numpy(array) for array in (batch.source, batch.decoder_input, batch.labels)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.training.learning_rate, fused=True)
    for step, (source, decoder_input, labels) in enumerate(batches):
        if step == WARMUP:
            started = time.process_time()
        loss = F.cross_entropy(model(source, decoder_input).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return time.process_time() - started
