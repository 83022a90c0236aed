"""Is every answer right? Not on a test set: on every example there is.

One forward pass per example decides whether free-running generation is right (training/margins.py). A random sample,
and every example found wrong, is also decoded for real; if the two ways ever disagree there is no certificate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from headcount.errors import CheckFailed, InputError
from headcount.results import Result
from headcount.runs.run import Run
from headcount.seeds import stream
from headcount.tasks.base import Examples
from headcount.training.evaluation import WrongAnswer, answer, wrong_answers
from headcount.training.margins import margins

LARGEST_DOMAIN = 100_000_000
BLOCK = 4096


@dataclass(frozen=True)
class Certificate(Result):
    """Every example of the domain, checked."""

    run: str
    model: str
    """The digest of the weights that were checked."""
    total: int
    errors: int
    wrong: tuple[WrongAnswer, ...]
    least_margin: float | None
    """The narrowest win of a right token over its best rival, in logits; None if some answer is wrong."""
    tightest: str
    """The example it was found on."""
    decoded: int
    """Examples that were also decoded for real, with the same verdict."""


def verify(run: Run, *, sample: int = 2000, progress: Callable[[int, int], None] | None = None) -> Certificate:
    """Check every example; `progress(done, total)` is told as it goes."""
    task, total = run.task, run.task.domain_size
    if total > LARGEST_DOMAIN:
        raise InputError(
            f"{total:,} examples are too many to check one by one (at most {LARGEST_DOMAIN:,})",
            "measure it on its test set instead: headcount evaluate",
        )
    wrong: list[Examples] = []
    least, tightest = np.inf, ""
    done = 0
    with workers(run) as compute:
        for examples, lead in compute(lambda block: (block, margins(run.model, task, block)), task.walk(BLOCK)):
            wrong.append(examples[lead <= 0])
            if lead.min() < least:
                least, tightest = float(lead.min()), task.show(examples[lead.argmin()])
            done += len(examples)
            if progress:
                progress(done, total)
    return _certify(run, np.concatenate(wrong), least, tightest, sample)


def _certify(run: Run, wrong: Examples, least: float, tightest: str, sample: int) -> Certificate:
    picked = next(run.task.walk(run.task.domain_size))
    picked = picked[stream(0, "verify").choice(len(picked), size=min(sample, len(picked)), replace=False)]
    decoded = np.concatenate([wrong, picked])
    said = answer(run.model, run.task, decoded)
    is_right, expected = said.free_hits.all(axis=1), margins(run.model, run.task, decoded) > 0
    if (is_right != expected).any():
        example = run.task.show(decoded[(is_right != expected).argmax()])
        raise CheckFailed(
            f"one forward pass and real decoding disagree on {int((is_right != expected).sum())} of {len(decoded)} "
            f"examples, {example} first: there can be no certificate",
            "this is a fault in the pipeline, not in the model's arithmetic: please report it",
        )
    return Certificate(
        run=run.name,
        model=run.digest,
        total=run.task.domain_size,
        errors=len(wrong),
        wrong=wrong_answers(run.task, wrong, said.free[: len(wrong)]),
        least_margin=None if len(wrong) else least,
        tightest=tightest,
        decoded=len(decoded),
    )


@contextmanager
def workers(run: Run) -> Iterator[Callable[..., Iterator[tuple[Examples, np.ndarray]]]]:
    """Something like `map`: on a CPU, one block per core at a time, which beats splitting each small product."""
    threads = torch.get_num_threads()
    if next(run.model.parameters()).device.type != "cpu" or threads == 1:
        yield map
        return
    try:
        with ThreadPoolExecutor(threads, initializer=lambda: torch.set_num_threads(1)) as pool:
            yield pool.map
    finally:
        torch.set_num_threads(threads)
