"""Sinusoidal positions scaled by the length of the sequence (the encoding of the published report 000).

    PE(512 p / n)        for the p-th of n tokens, PE as in sinusoidal.py

Every sequence is stretched to a length of 512. For sortedness, a model can then learn "a value should match its
relative position", and pass any test whose unsorted sequences are shuffles, at any length, without comparing
neighbours. Neighbours lie 512 / n apart, so they come closer and closer beyond the training lengths.
"""

from typing import ClassVar

from headcount.encodings.base import Embeddings, Encoding, Positions
from headcount.encodings.sinusoidal import sinusoids

PLACES = 512


class LengthNormalised(Encoding):
    """Sinusoids of the position relative to the length of the sequence, which are added to the embeddings."""

    hard_codes: ClassVar[str] = "relative place"
    needs_length: ClassVar[bool] = True

    def step(self, n: int) -> float:
        """Return the step between neighbouring positions, 512 / n, so that a sequence of n tokens spans 512."""
        return PLACES / n

    def add_to_embeddings(self, x: Embeddings, positions: Positions) -> Embeddings:
        """Return the embeddings plus sinusoids of the relative position: x + PE(512 ids / n), for n tokens."""
        places = positions.ids * (PLACES / positions.n_tokens.clamp(min=1)[:, None])
        return x + sinusoids(places, self.d_model).to(x.dtype)


PART = LengthNormalised
