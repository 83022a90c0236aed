"""How much faster does `verify` check a sum than greedy decoding without a cache, in batches of 64?

Two ways to decode are compared with `verify`: a forward pass as the exercise's solutions write it, which runs the whole
model again for every digit (benchmarks/textbook.py), and headcount's decoder with its cache off, which encodes the
source once. All three use the same weights, the same sums and all cores. Rounds alternate.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import torch

from benchmarks import Ratio, textbook
from headcount.models.transformer import EncoderDecoder, greedy
from headcount.runs.run import load
from headcount.tasks.base import Examples, SequenceTask
from headcount.training.answers import margins
from headcount.training.device import workers

EVERY, BATCH, ROUNDS = 100, 64, 5


def measure() -> Iterator[Ratio]:
    """Compare the wall-clock time per sum."""
    run = load("sample:addition")
    task, model = cast(SequenceTask, run.task), cast(EncoderDecoder, run.model)
    first, n_tokens = task.decoding_start.first, task.decoding_start.n_tokens
    # Every hundredth block of the domain; a block holds all pairs of numbers with the same sum.
    blocks = list(itertools.islice(task.iter_domain(), EVERY // 2, None, EVERY))
    examples = np.concatenate(blocks)

    def verify() -> np.ndarray:
        with workers(model) as compute:
            return np.concatenate(list(compute(lambda block: margins(model, task, block) > 0, blocks)))

    def run_whole_model(source: torch.Tensor) -> torch.Tensor:
        return textbook.generate(model, source, first, n_tokens)

    @torch.no_grad()
    def run_decoder(source: torch.Tensor) -> torch.Tensor:
        return greedy(model, model.encode(source), first, n_tokens, use_cache=False)

    ways: dict[str, Callable[[], Any]] = {
        "ours": verify,
        "textbook code, whole model again for every digit": lambda: _decode(task, examples, run_whole_model),
        "our decoder with its cache off": lambda: _decode(task, examples, run_decoder),
    }
    verdicts = [way() for way in ways.values()]
    assert all((verdict == verdicts[0]).all() for verdict in verdicts), "all ways must agree"
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            started = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - started)
    ours, *others = (1e6 * statistics.median(times) / len(examples) for times in seconds.values())
    for name, other in zip(list(ways)[1:], others, strict=True):
        question = f"verify, against greedy decoding without cache in batches of {BATCH}: {name} "
        question += f"({len(examples):,} sums, {torch.get_num_threads()} threads)"
        yield Ratio.at_least(question, f"{ours:.0f} µs/sum", f"{other:.0f} µs/sum", other / ours, 8)


def _decode(task: SequenceTask, examples: Examples, decode: Callable[[torch.Tensor], torch.Tensor]) -> np.ndarray:
    """Return whether each decoded answer is right; `decode` maps source tokens to answers."""
    batch, is_right = task.encode(examples), []
    for i in range(0, len(batch), BATCH):
        part = batch[i : i + BATCH]
        is_right.append((decode(torch.from_numpy(part.source)).numpy() == part.answer).all(axis=1))
    return np.concatenate(is_right)
