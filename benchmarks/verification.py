"""How much faster `verify` checks a sum than greedy decoding without a cache, in batches of 64, does.

Twice: against a forward pass as the exercise's solutions write it, which runs the whole model again for every digit
(benchmarks/textbook.py), and against our own decoder with its cache off, which reads the source once. All three use
the same weights, the same sums and all cores; rounds alternate.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import torch

from benchmarks import textbook
from headcount.models.transformer import EncoderDecoder, greedy
from headcount.runs.run import Run, load
from headcount.tasks.base import Examples, SequenceTask
from headcount.training.answers import margins
from headcount.training.device import workers

EVERY, BATCH, ROUNDS = 100, 64, 5


def measure() -> Iterator[dict[str, Any]]:
    """Microseconds per sum."""
    run = load("sample:addition")
    # Every hundredth sum, from the smallest to the largest, with all its pairs.
    blocks = list(itertools.islice(_task(run).iter_domain(), EVERY // 2, None, EVERY))
    examples = np.concatenate(blocks)
    ways: dict[str, Callable[[], Any]] = {
        "ours": lambda: _verify(run, blocks),
        "textbook code, whole model again for every digit": lambda: _decode(run, examples, _whole_model),
        "our decoder with its cache off": lambda: _decode(run, examples, _decoder_only),
    }
    verdicts = [way() for way in ways.values()]
    assert all((verdict == verdicts[0]).all() for verdict in verdicts), "all ways must agree"
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            started = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - started)
    each = {name: 1e6 * statistics.median(times) / len(examples) for name, times in seconds.items()}
    for name in list(ways)[1:]:
        ratio = each[name] / each["ours"]
        yield {
            "question": f"verify, against greedy decoding without cache in batches of {BATCH}: {name} "
            f"({len(examples):,} sums, {torch.get_num_threads()} threads)",
            "ours": f"{each['ours']:.0f} µs/sum",
            "other": f"{each[name]:.0f} µs/sum",
            "ratio": ratio,
            "promise": "at least 8",
            "kept": ratio >= 8,
        }


def _verify(run: Run, blocks: list[Examples]) -> np.ndarray:
    with workers(run.model) as compute:
        return np.concatenate(list(compute(lambda block: margins(run.model, run.task, block) > 0, blocks)))


def _decode(run: Run, examples: Examples, decode: Callable[[Run, torch.Tensor], torch.Tensor]) -> np.ndarray:
    batch, right = _task(run).encode(examples), []
    for i in range(0, len(batch), BATCH):
        part = batch[i : i + BATCH]
        predicted = decode(run, torch.from_numpy(part.source)).numpy()
        right.append((predicted == part.answer).all(axis=1))
    return np.concatenate(right)


def _whole_model(run: Run, source: torch.Tensor) -> torch.Tensor:
    start = _task(run).decoding_start
    return textbook.generate(_model(run), source, start.first, start.n_tokens)


@torch.no_grad()
def _decoder_only(run: Run, source: torch.Tensor) -> torch.Tensor:
    start, model = _task(run).decoding_start, _model(run)
    return greedy(model, model.encode(source), start.first, start.n_tokens, use_cache=False)


def _task(run: Run) -> SequenceTask:
    return cast(SequenceTask, run.task)


def _model(run: Run) -> EncoderDecoder:
    return cast(EncoderDecoder, run.model)
