"""How much faster does headcount ablate every head of a model than other code does, on one thread?

The first row is the free-running exact match of the packaged adder without each of its 24 heads. It is compared with
the exercise's way, a loop over heads with greedy decoding in batches of 64 and no cache. The other rows come from
`lens.py`, which runs in the environment of the other tools.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from functools import partial
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import Ratio, timed
from benchmarks.sweeps import compare, run_race
from benchmarks.textbook import ZeroedHead, generate
from headcount.data.from_task import held_out
from headcount.experiments.decoding_check import DecodingCheck
from headcount.experiments.experiment import task_experiment
from headcount.experiments.interventions import run_interventions, run_on_cores
from headcount.heads import HeadSite
from headcount.hooks.intervention_proof import prove
from headcount.hooks.replay import Intervention
from headcount.models.attention import MultiHeadAttention
from headcount.models.transformer import EncoderDecoder
from headcount.runs.run import Run, load
from headcount.tasks.base import SequenceTask
from headcount.training.device import n_threads

ROUNDS, AT_ONCE = 3, 64


def measure() -> Iterator[Ratio]:
    """Compare the processor time of whole sweeps over all heads; rounds alternate."""
    yield _against_the_exercise()
    yield _two_processes()
    sweeps = run_race("benchmarks.lens")
    for name, other, least in (("lens", "TransformerLens", 3.0), ("hooks", "a loop of plain PyTorch hooks", 1.5)):
        question = f"teacher-forced sweep over 32 heads (4x8, d_model {sweeps['d_model']}, 256 rows of 20 tokens)"
        yield compare(sweeps, name, f"{question}, against {other}", least)


def _against_the_exercise() -> Ratio:
    run, ours, others, is_equal = load("sample:addition"), list[float](), list[float](), True
    with n_threads(1):
        for _ in range(ROUNDS):
            (hits, seconds), (other_hits, other_seconds) = timed(partial(_sweep, run)), timed(partial(_loop, run))
            ours.append(seconds)
            others.append(other_seconds)
            is_equal = is_equal and bool((hits == other_hits).all())
    ratio = statistics.median(other / own for own, other in zip(ours, others, strict=True))
    question = "free-running sweep over 24 heads, 2,000 sums, against a loop of greedy decoding by 64 (1 thread; "
    question += "same hits on every sum)" if is_equal else "THE HITS DIFFER)"
    own_time, other_time = (f"{statistics.median(seconds):.2f} s" for seconds in (ours, others))
    return Ratio.at_least(question, own_time, other_time, ratio, 10, valid=is_equal)


def _two_processes() -> Ratio:
    """Compare the elapsed time of one sweep in two processes with that in one; the rounds alternate."""
    run, seconds = load("sample:addition"), dict[int, list[float]]({1: [], 2: []})
    experiment = task_experiment(run, *held_out(run.task, "test", None))
    interventions = [Intervention((head,)) for head in experiment.sites.heads]
    prove(experiment.model, experiment.sites, experiment.batches[0].inputs)
    scores = []
    for _ in range(ROUNDS):
        for n, times in seconds.items():
            with n_threads(n):
                started = time.perf_counter()
                scores.append(run_on_cores(experiment, interventions).scores)
                times.append(time.perf_counter() - started)
    is_equal = all(np.array_equal(each, scores[0]) for each in scores)
    one, two = (statistics.median(seconds[n]) for n in (1, 2))
    question = "elapsed time of a sweep over 24 heads, 2,000 sums: two processes against one"
    return Ratio.at_least(question, f"{two:.2f} s", f"{one:.2f} s", one / two, 1.8, valid=is_equal)


def _sweep(run: Run) -> NDArray[np.bool_]:
    """Return headcount's hits [1 + head, example]: with all heads, then without each head."""
    experiment = task_experiment(run, *held_out(run.task, "test", None))
    interventions = [Intervention((head,)) for head in experiment.sites.heads]
    check = DecodingCheck(experiment, interventions, explain=False)
    outcome = run_interventions(experiment, interventions, on_batch=check)
    return np.concatenate([outcome.clean[None], outcome.scores]) > 0.5


@torch.no_grad()
def _loop(run: Run) -> NDArray[np.bool_]:
    """Return the same hits, computed as in the exercise."""
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
    attention = model.blocks[site].attention
    assert isinstance(attention, MultiHeadAttention), "the packaged adder has all its heads"
    return attention
