"""Sweeps over all heads, one thread: ours, against the ways people do it today.

The first is free-running exact match of the packaged adder's 24 heads on its test set, against the exercise's way: a
loop over heads, greedy decoding in batches of 64 without a cache. The others are `lens.py`, in its own environment.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.sweeps import compare, run_race
from benchmarks.textbook import ZeroedHead, generate
from headcount.data.from_task import held_out
from headcount.experiments.decoding_check import DecodingCheck
from headcount.experiments.experiment import task_experiment
from headcount.experiments.interventions import run_interventions
from headcount.heads import HeadSite
from headcount.hooks.replay import Intervention
from headcount.models.attention import MultiHeadAttention
from headcount.models.transformer import EncoderDecoder
from headcount.runs.run import Run, load
from headcount.tasks.base import SequenceTask
from headcount.training.device import n_threads

ROUNDS, AT_ONCE = 3, 64


def measure() -> Iterator[dict[str, Any]]:
    """Processor time of whole sweeps, rounds alternating."""
    yield _against_the_exercise()
    yield from _against_lens()


def _against_the_exercise() -> dict[str, Any]:
    run = load("sample:addition")
    ours, theirs, same = [], [], True
    with n_threads(1):
        for _ in range(ROUNDS):
            mine, seconds = _timed(_sweep, run)
            ours.append(seconds)
            other, seconds = _timed(_loop, run)
            theirs.append(seconds)
            same = same and bool((mine == other).all())
    ratio = statistics.median(other / mine for mine, other in zip(ours, theirs, strict=True))
    return {
        "question": "free-running sweep over 24 heads, 2,000 sums, against a loop of greedy decoding by 64 (1 thread; "
        + ("same hits on every sum)" if same else "THE HITS DIFFER)"),
        "ours": f"{statistics.median(ours):.2f} s",
        "other": f"{statistics.median(theirs):.2f} s",
        "ratio": ratio,
        "promise": "at least 10",
        "kept": ratio >= 10 and same,
    }


def _timed(way: Any, run: Run) -> tuple[NDArray[np.bool_], float]:
    started = time.process_time()
    found = way(run)
    return found, time.process_time() - started


def _sweep(run: Run) -> NDArray[np.bool_]:
    """Hits with all heads, then without each."""
    experiment = task_experiment(run, *held_out(run.task, "test", None))
    interventions = [Intervention((head,)) for head in experiment.sites.heads]
    check = DecodingCheck(experiment, interventions, explain=False)
    found = run_interventions(experiment, interventions, on_batch=check)
    return np.concatenate([found.clean[None], found.scores]) > 0.5


@torch.no_grad()
def _loop(run: Run) -> NDArray[np.bool_]:
    """The same as the exercise does it."""
    task, model = cast(SequenceTask, run.task), cast(EncoderDecoder, run.model)
    batch, start = task.encode(task.split("test")), task.decoding_start
    source, answer = torch.from_numpy(batch.source), torch.from_numpy(batch.answer)
    heads: list[ZeroedHead | None] = [None]
    heads += [(_attention(model, head.site), head.index) for head in model.heads]
    hits = []
    for zeroed in heads:
        parts = []
        for i in range(0, len(source), AT_ONCE):
            predicted = generate(model, source[i : i + AT_ONCE], start.first, start.n_tokens, zeroed)
            parts.append((predicted == answer[i : i + AT_ONCE]).all(dim=1))
        hits.append(torch.cat(parts).numpy())
    return np.stack(hits)


def _attention(model: EncoderDecoder, site: HeadSite) -> MultiHeadAttention:
    found = model.blocks[site].attention
    assert isinstance(found, MultiHeadAttention), "the packaged adder has all its heads"
    return found


def _against_lens() -> Iterator[dict[str, Any]]:
    timed = run_race("benchmarks.lens")
    for name, who, least in (("lens", "TransformerLens", 3.0), ("hooks", "a loop of plain PyTorch hooks", 1.5)):
        question = f"teacher-forced sweep over 32 heads (4x8, d_model {timed['d_model']}, 256 rows of 20 tokens)"
        yield compare(timed, name, f"{question}, against {who}", least)
