"""Is every answer right? Not on a test set: on every example there is.

One forward pass per example decides whether free-running generation is right (training/margins.py). A sample spread
over the domain, and every example found wrong, is also decoded for real; if the two ways ever disagree there is no
certificate.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from headcount.errors import CheckFailed, InputError
from headcount.results import Result
from headcount.runs.run import Run
from headcount.tasks.base import Examples, Task
from headcount.training.device import n_threads
from headcount.training.evaluation import WrongAnswer, answer, wrong_answers
from headcount.training.margins import margins

T = TypeVar("T")
LARGEST_DOMAIN = 100_000_000


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
        for examples, lead in compute(lambda block: (block, margins(run.model, task, block)), task.walk()):
            wrong.append(examples[lead <= 0])
            if lead.min() < least:
                least, tightest = float(lead.min()), task.show(examples[lead.argmin()])
            done += len(examples)
            if progress:
                progress(done, total)
    return _certify(run, np.concatenate(wrong), least, tightest, sample)


def _certify(run: Run, wrong: Examples, least: float, tightest: str, sample: int) -> Certificate:
    decoded = np.concatenate([wrong, *_every(run.task, max(1, run.task.domain_size // sample))])
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


def _every(task: Task, nth: int) -> Iterator[Examples]:
    """Every nth example of the domain, so that each answer and each size of number is among them."""
    seen = 0
    for examples in task.walk():
        yield examples[-seen % nth :: nth]
        seen += len(examples)


@contextmanager
def workers(run: Run) -> Iterator[Callable[..., Iterator[tuple[Examples, NDArray[np.float32]]]]]:
    """Something like `map`: on a CPU, a block per core at a time, which beats splitting each small product."""
    if next(run.model.parameters()).device.type != "cpu":
        yield map
        return
    n = os.cpu_count() or 1
    with n_threads(1), ThreadPoolExecutor(n, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        yield lambda function, blocks: _map_ahead(pool, function, blocks, 4 * n)


def _map_ahead(pool: Executor, function: Callable[..., T], blocks: Iterable[Examples], ahead: int) -> Iterator[T]:
    """`pool.map` in order, but with only a few blocks in memory at a time."""
    waiting: deque[Future[T]] = deque()
    for block in blocks:
        waiting.append(pool.submit(function, block))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
