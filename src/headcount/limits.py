"""Does it fit? What is asked for, as bytes, against the memory that this machine has."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from headcount.errors import InputError

_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")


def available_memory() -> int | None:
    """Bytes that a process could have now; None where the system does not say."""
    found = []
    with suppress(OSError):
        free = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
        found += [1024 * int(free[1])] if free else []
    with suppress(OSError, ValueError):  # a container's own bound, or "max"
        found.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    if not found:
        with suppress(AttributeError, OSError, ValueError):  # no such thing on Windows
            found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(found, default=None)


def require_room(n_bytes: int, what: str, *advice: str) -> None:
    """Refuse what cannot fit, with the estimate and what there is, before anything is made."""
    there = available_memory()
    if there is not None and n_bytes > there:
        raise InputError(
            f"{what} would need about {in_words(n_bytes)} of memory; this machine has {in_words(there)} free", *advice
        )


def in_words(n_bytes: int) -> str:
    """As people say it.

    >>> in_words(23_400_000_000)
    '23 GB'
    """
    power = min((len(str(n_bytes)) - 1) // 3, len(_UNITS) - 1)
    scaled = n_bytes // 1000**power
    return f"{scaled:,} {_UNITS[power]}" if scaled < 10**6 else f"10^{len(str(n_bytes)) - 1} bytes"
