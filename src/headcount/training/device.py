"""Where to compute, and with how many threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from headcount.errors import RunError


def choose_device(asked: str) -> torch.device:
    """`auto` takes CUDA, then MPS, then the CPU."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if asked == "auto":
        return torch.device(next(kind for kind, available in there.items() if available))
    try:
        device = torch.device(asked)
    except RuntimeError as error:  # from a file that somebody changed: settings are checked
        raise RunError(f"{asked!r} is no device", "cpu, mps, cuda or cuda:N") from error
    n_cuda = torch.cuda.device_count()
    if not there[device.type] or (device.type == "cuda" and (device.index or 0) >= n_cuda):
        available = ", ".join(kind for kind, available in there.items() if available)
        raise RunError(f"no device {asked!r} on this machine", f"available: {available}; or use --device auto")
    return device


@contextmanager
def n_threads(n: int) -> Iterator[None]:
    """PyTorch computes with `n` threads inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)
