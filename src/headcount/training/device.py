"""Choose the device and the number of CPU threads."""

import os
import platform
import signal
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headcount.errors import RunError


def choose_device(name: str) -> torch.device:
    """Return the PyTorch device called `name`; 'auto' means CUDA if available, else MPS, else the CPU."""
    is_available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    available = [kind for kind in is_available if is_available[kind]]
    if name == "auto":
        return torch.device(available[0])
    try:
        device = torch.device(name)
    except RuntimeError as error:  # possible only if a file of the run was edited, because settings are validated
        raise RunError(f"{name!r} is not a device", "use cpu, mps, cuda or cuda:N") from error
    if device.type not in available or (device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()):
        advice = f"available: {', '.join(available)}; or use --device auto"
        raise RunError(f"no device {name!r} on this machine", advice)
    return device


def hardware(device: torch.device) -> str:
    """Return the product name of a device's processor or GPU, such as `AMD EPYC 7B13`."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:  # not Linux
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(names), "") or platform.processor() or platform.machine()


@contextmanager
def n_threads(n: int) -> Iterator[None]:
    """Return a context in which PyTorch uses `n` CPU threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def workers(model: torch.nn.Module, most: int | None = None) -> Iterator[Callable[..., Iterator[Any]]]:
    """Yield a function like `map`, which applies the model to blocks of data; on a CPU, it uses all cores in parallel.

    `most` limits the number of cores.
    """
    if next(model.parameters()).device.type != "cpu":
        yield map
        return
    n = min(n_cores(), most or n_cores())

    def map_ahead(function: Callable[..., Any], blocks: Iterable[Any]) -> Iterator[Any]:
        """Yield the function's result for each block, in order, with only a few blocks in memory at a time."""
        waiting: deque[Future[Any]] = deque()
        for block in blocks:
            waiting.append(pool.submit(function, block))
            if len(waiting) > 4 * n:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    with n_threads(1), ThreadPoolExecutor(n, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        yield map_ahead


def n_processes(model: torch.nn.Module, n_parts: int) -> int:
    """Return how many processes may share the work of a model: one per thread of PyTorch, if the system can fork."""
    first = next(model.parameters(), None)
    can_fork = sys.platform == "linux" and (first is None or first.device.type == "cpu")
    return max(1, min(torch.get_num_threads(), n_cores(), n_parts)) if can_fork else 1


@contextmanager
def forked(
    function: Callable[[Any], NDArray[np.float64]], parts: Sequence[Any]
) -> Iterator[Callable[[], list[NDArray[np.float64] | None]]]:
    """Start a process for each part, a copy of this one that shares its memory; yield a function that waits for them.

    The function returns one array per part: what `function(part)` returned in its process, without its shape, or None
    if the process failed. Leaving the context ends all processes.
    """
    started = [_fork(function, part) for part in parts]
    waiting = dict(started)

    def results() -> list[NDArray[np.float64] | None]:
        values: list[NDArray[np.float64] | None] = []
        for process, pipe in started:
            with os.fdopen(pipe, "rb") as stream:
                data = stream.read()
            del waiting[process]
            _, status = os.waitpid(process, 0)
            values.append(np.frombuffer(data) if status == 0 else None)
        return values

    try:
        yield results
    finally:
        for process, pipe in waiting.items():
            os.close(pipe)
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def _fork(function: Callable[[Any], NDArray[np.float64]], part: Any) -> tuple[int, int]:
    """Start a process that writes `function(part)` into a pipe; return its number and the pipe to read from."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # The copy has one thread and calls no code that waits for the others, like a worker of PyTorch's DataLoader.
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
    if process:
        os.close(writing)
        return process, reading
    code = 1
    try:  # the copy: it must never return to the code that called it
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        torch.set_num_threads(1)
        with os.fdopen(writing, "wb") as stream:
            stream.write(np.ascontiguousarray(function(part), dtype=np.float64).tobytes())
        code = 0
    finally:
        os._exit(code)


def n_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
