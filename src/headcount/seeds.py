"""One seed, many independent random streams, each with a name.

A stream is made anew from (seed, name, index), so nothing has to be saved to go on after a crash: step 1,200 draws
from `stream(seed, "batch", 1200)` whether or not the process that ran step 1,199 is still alive.

>>> bool(stream(0, "batch", 3).integers(100) == stream(0, "batch", 3).integers(100))
True
>>> integer(0, "dropout", 3) == integer(0, "weights", 3)
False
"""

import hashlib

import numpy as np


def integer(seed: int, name: str, index: int = 0) -> int:
    """A 63-bit seed for libraries that take a number, such as `torch.manual_seed`."""
    digest = hashlib.blake2b(f"{seed}/{name}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def stream(seed: int, name: str, index: int = 0) -> np.random.Generator:
    """The random stream with this name; `index` tells the steps of one stream apart."""
    return np.random.Generator(np.random.PCG64(integer(seed, name, index)))
