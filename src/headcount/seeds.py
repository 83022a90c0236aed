"""Independent random streams, each named, from one seed.

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
    """Return a 63-bit seed for functions that take an integer, such as `torch.manual_seed`."""
    digest = hashlib.blake2b(f"{seed}/{name}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def stream(seed: int, name: str, index: int = 0) -> np.random.Generator:
    """Return the random generator with this name; `index` distinguishes the steps of one stream."""
    return np.random.Generator(np.random.PCG64(integer(seed, name, index)))
