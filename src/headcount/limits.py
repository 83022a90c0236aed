"""How much is done unless something else is asked for, and whether what is asked for fits into memory."""

import math
import os
import re
from contextlib import suppress
from pathlib import Path

from headcount.errors import InputError, shortened

DONORS = 4
"""Other examples whose outputs replace each example's, by resample."""
BATCH = 512
"""Rows in one forward pass."""
LOSS = 0.01
"""What pruning may lose."""
ORDERS = 20
"""Random orders of removal that pruning is compared with."""
MOST_CELL = 2**20
"""Characters in one cell of a table: more than any model's context holds."""
TIMEOUT = 300.0
"""Seconds that one model of a course may take."""
COPIES = 4
"""How often the numbers of an example are there at the same time."""
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}
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
        needs, has = format_bytes(n_bytes), format_bytes(there)
        raise InputError(f"{what} would need about {needs} of memory; this machine has {has}", *advice)


def require_room_for(n: int, length: int, advice: str) -> None:
    """The same for `n` examples of so many whole numbers: drawn, shuffled, as tokens and as tensors."""
    require_room(8 * COPIES * n * length, f"{shortened(f'{n:,}')} examples", advice)


def format_bytes(n_bytes: int) -> str:
    """As people say it.

    >>> format_bytes(23_400_000_000)
    '23 GB'
    """
    if n_bytes >= 10**24:
        return "10^24 bytes or more"
    power = min((len(str(n_bytes)) - 1) // 3, len(_UNITS) - 1)
    return f"{n_bytes // 1000**power:,} {_UNITS[power]}"


def parse_seconds(budget: str | float, flag: str = "--budget") -> float:
    """Read a time as people write it; `flag` is what an error names.

    >>> parse_seconds("5m"), parse_seconds("90s"), parse_seconds("1.5h"), parse_seconds(30)
    (300.0, 90.0, 5400.0, 30.0)
    """
    found = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([smh]?)\s*", str(budget), re.ASCII)
    seconds = float(found[1]) * _SECONDS[found[2]] if found else 0.0
    if not 0 < seconds < math.inf:
        text = shortened(str(budget))
        raise InputError(
            f"{flag} must be a time above 0, got {text!r}", "write it as 90s, 5m or 1h; a number is seconds"
        )
    return seconds
