"""Derive independent random number streams from one seed; each stream has a name, such as "batch" or "dropout".

A stream depends only on (seed, name, index), so training can resume after a crash without a saved random state: step
1,200 draws from `stream(seed, "batch", 1200)` whether or not the same process ran step 1,199.

>>> bool(stream(0, "batch", 3).integers(100) == stream(0, "batch", 3).integers(100))
True
>>> integer(0, "dropout", 3) == integer(0, "weights", 3)
False
"""

import hashlib

import numpy as np


def integer(seed: int, name: str, index: int = 0) -> int:
    """Return a 63-bit integer seed, for functions such as `torch.manual_seed`, that depends on all three arguments."""
    digest = hashlib.blake2b(f"{seed}/{name}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def stream(seed: int, name: str, index: int = 0) -> np.random.Generator:
    """Return the random generator for a name, such as "batch", and an index, such as the training step."""
    return np.random.Generator(np.random.PCG64(integer(seed, name, index)))
