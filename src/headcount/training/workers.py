"""Many forward passes at once: a block of examples per core."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from headcount.models.build import Model
from headcount.training.device import n_threads

T = TypeVar("T")


@contextmanager
def workers(model: Model, most: int | None = None) -> Iterator[Callable[..., Iterator[Any]]]:
    """Something like `map`: on a CPU, a block per core at a time, which beats splitting each small product."""
    if next(model.parameters()).device.type != "cpu":
        yield map
        return
    n = n_cores()
    n = min(n, most or n)
    with n_threads(1), ThreadPoolExecutor(n, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        yield lambda function, blocks: _map_ahead(pool, function, blocks, 4 * n)


def n_cores() -> int:
    """As many as this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _map_ahead(pool: Executor, function: Callable[..., T], blocks: Iterable[Any], ahead: int) -> Iterator[T]:
    """`pool.map` in order, but with only a few blocks in memory at a time."""
    waiting: deque[Future[T]] = deque()
    for block in blocks:
        waiting.append(pool.submit(function, block))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
