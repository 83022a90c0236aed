"""Choose the device and the number of CPU threads."""

import os
import platform
import signal
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

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


class Copies:
    """Copies (forks) of this process; each one computes `function` for the lists of numbers that are sent to it.

    A copy is made once and takes any number of messages, because the first pages that it writes have to be copied.
    Leaving the context ends all copies.
    """

    def __init__(self, function: Callable[[Sequence[int]], NDArray[np.float64]], n: int) -> None:
        self._copies = [_fork(function) for _ in range(n)]

    def __len__(self) -> int:
        return len(self._copies)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for process, sending, receiving in self._copies:
            os.close(sending)
            os.close(receiving)
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        self._copies = []

    def send(self, number: int, message: Sequence[int]) -> None:
        """Send a list of numbers to the copy with this index, which then computes the function for it."""
        with suppress(BrokenPipeError):  # the copy has failed; `receive` says so
            _write(self._copies[number][1], np.array(message, dtype=np.int64))

    def receive(self, number: int) -> NDArray[np.float64] | None:
        """Wait for the result of the copy with this index; return it as a flat array, or None if the copy failed."""
        data = _read(self._copies[number][2])
        return None if data is None else np.frombuffer(data)


def _fork(function: Callable[[Sequence[int]], NDArray[np.float64]]) -> tuple[int, int, int]:
    """Start a copy of this process; return its number, the pipe to send to and the pipe to receive from."""
    (asked, sending), (receiving, answering) = os.pipe(), os.pipe()
    with warnings.catch_warnings():
        # The copy has one thread and calls no code that waits for the others, like a worker of PyTorch's DataLoader.
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
    if process:
        os.close(asked)
        os.close(answering)
        return process, sending, receiving
    try:  # the copy: it must never return to the code that called it
        os.close(sending)
        os.close(receiving)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        torch.set_num_threads(1)
        while (data := _read(asked)) is not None:
            result = function(np.frombuffer(data, dtype=np.int64).tolist())
            _write(answering, np.ascontiguousarray(result, dtype=np.float64))
    finally:
        os._exit(1)


def _write(pipe: int, array: NDArray[Any]) -> None:
    """Write the number of bytes of an array into a pipe, and then these bytes."""
    data = memoryview(len(array.tobytes()).to_bytes(8, "little") + array.tobytes())
    while data:
        data = data[os.write(pipe, data) :]


def _read(pipe: int) -> bytes | None:
    """Read what `_write` wrote into a pipe; return None if the process at the other end has ended."""
    size = _read_exactly(pipe, 8)
    return None if size is None else _read_exactly(pipe, int.from_bytes(size, "little"))


def _read_exactly(pipe: int, n_bytes: int) -> bytes | None:
    """Read this number of bytes from a pipe; return None if the pipe is closed before."""
    parts = list[bytes]()
    while n_bytes:
        if not (part := os.read(pipe, min(n_bytes, 2**20))):
            return None
        parts.append(part)
        n_bytes -= len(part)
    return b"".join(parts)


def n_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
