"""What a machine has room for, asked before memory is taken."""

from __future__ import annotations

import os
from pathlib import Path

from headcount.errors import InputError


def available_memory() -> int | None:
    """Bytes that can be taken without driving others out; None where the system does not say."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def require_room(n_bytes: int, what: str, *advice: str) -> None:
    """Refuse what does not fit into memory: `what` is the subject of the sentence."""
    free = available_memory()
    if free is not None and n_bytes > free:
        raise InputError(f"{what} needs about {_size(n_bytes)}; this machine has {_size(free)} free", *advice)


def _size(n_bytes: int) -> str:
    """`23 GB`, in powers of 1000."""
    return f"{n_bytes / 1e9:,.0f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:,.0f} MB"
