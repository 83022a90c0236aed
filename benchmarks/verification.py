"""How much faster `verify` checks a sum than greedy decoding without a cache, in batches of 64, does.

The other way is the one of the reports: for every digit the whole model runs again on the source and on what was
said so far, attention weights and all. Both check the same sums with the same weights on all cores, rounds alternate.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from headcount.analysis.exhaustive import workers
from headcount.runs.run import Run, load
from headcount.tasks.base import Examples
from headcount.training.evaluation import evaluating
from headcount.training.margins import margins

EVERY, BATCH, ROUNDS = 100, 64, 3


def measure() -> Iterator[dict[str, Any]]:
    """Microseconds per sum."""
    run = load("sample:addition")
    blocks = list(itertools.islice(run.task.walk(), 0, None, EVERY))
    n = sum(map(len, blocks))
    ours, other, fixed = [], [], []
    for _ in range(ROUNDS):
        ours.append(_timed(lambda: _ours(run, blocks)))
        other.append(_timed(lambda: _uncached(run, blocks, whole_model=True)))
        fixed.append(_timed(lambda: _uncached(run, blocks, whole_model=False)))
    assert (_ours(run, blocks) == _uncached(run, blocks, whole_model=True)).all(), "both ways must agree"
    for name, times, promise in (("whole model", other, 8.0), ("decoder only", fixed, 0.0)):
        ratio = statistics.median(times) / statistics.median(ours)
        yield {
            "question": f"verify, against greedy decoding without cache, batches of {BATCH}, {name} again per digit "
            f"({n:,} sums, {torch.get_num_threads()} threads)",
            "ours": f"{1e6 * statistics.median(ours) / n:.0f} µs/sum",
            "other": f"{1e6 * statistics.median(times) / n:.0f} µs/sum",
            "ratio": ratio,
            "promise": f"at least {promise:g}" if promise else "none",
            "kept": ratio >= promise,
        }


def _timed(work: Any) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _ours(run: Run, blocks: list[Examples]) -> np.ndarray:
    with workers(run) as compute:
        return np.concatenate(list(compute(lambda block: margins(run.model, run.task, block) > 0, blocks)))


def _uncached(run: Run, blocks: list[Examples], *, whole_model: bool) -> np.ndarray:
    start, right = run.task.generation, []
    with evaluating(run.model):
        for block in blocks:
            batch = run.task.encode(block)
            for i in range(0, len(batch), BATCH):
                part = batch[i : i + BATCH]
                source = torch.from_numpy(part.source)
                said = torch.full((len(part), 1), start.first)
                memory = None if whole_model else run.model.encode(source, weights={})
                for _ in range(start.n_tokens):
                    now = run.model.encode(source, weights={}) if memory is None else memory
                    logits = run.model.decode(said, now, weights={})
                    said = torch.cat([said, logits[:, -1:].argmax(dim=-1)], dim=1)
                right.append((said[:, 1:].numpy() == part.answer).all(axis=1))
    return np.concatenate(right)
