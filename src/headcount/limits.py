"""Numbers that several files share: defaults of flags, thresholds and limits; and checks that memory is sufficient.

A number that only one file uses is at the top of that file. The limits of bands (critical, redundant) are in `bands`.
"""

import math
import os
import re
from contextlib import suppress
from pathlib import Path

from headcount.errors import InputError, shortened

DONORS = 4
"""Number of donors per example in resample ablation. A donor is another example, whose head output is put in."""
PRECISION = 0.01
"""Default precision of a drop: the largest half-width of its 95 % CI; 0.01 is 1 point of accuracy."""
BATCH = 512
"""Default number of rows (examples, or copies of them with different ablations) in one forward pass."""
LOSS = 0.01
"""Default of the largest drop that pruning allows (0.01 is 1 point), and limit of claims that heads are prunable."""
ORDERS = 20
"""Default number of random orders of removing heads, which are the baseline of pruning."""
N_DECIDING = 40_000
"""Largest number of examples on which a head is ablated.

With `--exhaust`, it is the number of new examples on which heads that change an answer are measured again.
"""
N_LENGTH = 400
"""Default number of examples per length when `ablate` measures a classifier at given lengths."""
N_SCAN = 200
"""Default number of quartets (sets of four examples) for each way of an event (a carry from the 1s to the 10s)."""
N_VERDICT = 400
"""Default number of quartets (sets of four examples) for a claim about one head, whose interval must be narrow."""
N_CLAIM = 2000
"""Default number of examples for a claim about the drop in score without some heads."""
N_WEIGHTS = 512
"""Default number of examples on which the inputs of heads are recorded, to read what their weights match."""
SEARCH_SECONDS = 20.0
"""Default time in seconds for which `verify` searches for wrong answers of a model that cannot be proved right."""
LENGTHS = (8, 12, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Default lengths of sequences at which `stretch` measures a classifier."""
ANSWER_LENGTHS = (5, 10, 20, 50, 100, 200, 500, 1000)
"""Default lengths at which `stretch` measures a model that answers token by token, such as digits of operands."""
N_STRETCH, N_STRETCH_LONG, LONG = 1000, 200, 1024
"""Default numbers of examples of `stretch` per length and kind of negative: up to the length LONG, and beyond it."""
SIGNIFICANT = 0.05
"""Level of significance: a p-value below it, after correction for several tests, is called significant."""
ACCURATE = 0.9
"""Accuracy that a classifier's whole 95 % CI must exceed at a length to count as accurate at this length."""
N_NOISE = 512
"""Number of examples on which the noise of mean ablation is measured, which comes from estimated mean outputs."""
RARELY = 0.03
"""A class counts as a constant answer if the 95 % CI of the share of all other predictions lies below this value.

If all n predictions are equal, the CI lies below 3 % from n = 125 on. With 2 others among 200, it reaches 3.6 %.
"""
MIN_N = 20
"""Smallest number of examples, or of quartets (sets of four examples), from which routes and claims are judged."""
MIN_TEST_EXAMPLES = 100
"""Number of examples below which a test set is called small: each example then counts more than 1 point of accuracy."""
N_MEANS = 16_384
"""Largest number of examples over which the mean outputs of heads are taken, for mean ablation and for folding."""
PROVEN_ON = 4
"""Number of examples on which an ablation is verified to change the model's output, in `predict` and in user code."""
RETRIES = 2
"""Default number of times that a run of a study is started again after a crash, before it counts as failed."""
MOST_LOST = 3
"""Number of times that a run of a study, started alone, may lose its Dask worker before it counts as failed."""
PATIENCE = 300.0
"""Default number of seconds that a study waits for a Dask scheduler that has stopped answering."""
MOST_CELL = 2**20
"""Largest number of characters in one cell of a table of data; longer texts do not fit into any model's context."""
TIMEOUT = 300.0
"""Default time limit in seconds for the audit of each model, when several submitted models are audited together."""
COPIES = 4
"""Number of copies of an example that are in memory at once: as drawn, after shuffling, as tokens, and as tensors."""
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}
_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")


def available_memory() -> int | None:
    """Return how many bytes of memory this process could allocate now; None if the system does not report it."""
    bounds = []
    with suppress(OSError):
        free = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
        bounds += [1024 * int(free[1])] if free else []
    with suppress(OSError, ValueError):  # the limit of a container, or "max"
        bounds.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    if not bounds:
        with suppress(AttributeError, OSError, ValueError):  # Windows has no sysconf
            bounds.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(bounds, default=None)


def require_room(n_bytes: int, what: str, *advice: str) -> None:
    """Raise an error if more than the available memory is needed; call this before the memory is allocated.

    `n_bytes` is the number of bytes needed, and `what` names their purpose in the message, such as `5,000 examples`.
    """
    available = available_memory()
    if available is not None and n_bytes > available:
        needs, has = format_bytes(n_bytes), format_bytes(available)
        raise InputError(f"{what} would need about {needs} of memory; this machine has {has}", *advice)


def require_room_for(n: int, length: int, advice: str) -> None:
    """Raise an error if `n` examples of `length` integers each need more memory than is available.

    `advice` is the line of the message that says what to do, such as `lower --n`.
    """
    require_room(8 * COPIES * n * length, f"{shortened(f'{n:,}')} examples", advice)


def format_bytes(n_bytes: int) -> str:
    """Format a number of bytes with the largest unit that fits, such as `2 kB`.

    >>> format_bytes(23_400_000_000)
    '23 GB'
    """
    if n_bytes >= 10**24:
        return "10^24 bytes or more"
    power = min((len(str(n_bytes)) - 1) // 3, len(_UNITS) - 1)
    return f"{n_bytes // 1000**power:,} {_UNITS[power]}"


def parse_seconds(budget: str | float, flag: str = "--budget") -> float:
    """Convert a time such as '5m' to seconds; `flag` is the option that error messages name.

    >>> parse_seconds("5m"), parse_seconds("90s"), parse_seconds("1.5h"), parse_seconds(30)
    (300.0, 90.0, 5400.0, 30.0)
    """
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([smh]?)\s*", str(budget), re.ASCII)
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    if not 0 < seconds < math.inf:
        text = shortened(str(budget))
        raise InputError(
            f"{flag} must be a time above 0, got {text!r}",
            "write it as 90s, 5m or 1h; a number without a unit means seconds",
        )
    return seconds
