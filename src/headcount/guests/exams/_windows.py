"""Plain text as windows of tokens: no row is padded, for the last piece, if too short, is left out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headcount.errors import InputError
from headcount.guests.exams.base import Candidate


def windows(name: str, text: str, candidate: Candidate, n_special: int = 0) -> NDArray[np.int64]:
    """Token ids [window, position], `n_special` fewer than the model is shown at once."""
    ids = candidate.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    length = min(candidate.length - n_special, len(ids) // 2)
    if length < 2:
        raise InputError(f"{name} is only {len(ids)} tokens long", "give a text of a few hundred words or more")
    n = len(ids) // length
    return np.array(ids[: n * length], dtype=np.int64).reshape(n, length)
