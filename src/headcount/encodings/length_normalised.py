"""Sinusoidal positions scaled by the sequence's own length: report 000's, under its true name.

    PE(512 p / n)        for the p-th of n tokens, PE as in sinusoidal.py

Every sequence is stretched onto the same 512 places, so a model can learn "the value here should be near its relative
place" and pass any test whose negatives are shuffles, at any length, without ever comparing neighbours. Places of
neighbours lie 512 / n apart, so beyond the training lengths they come ever closer.
"""

from typing import ClassVar

from headcount.encodings.base import Embeddings, Encoding, Positions
from headcount.encodings.sinusoidal import sinusoids

PLACES = 512


class LengthNormalised(Encoding):
    """Added to the embeddings."""

    hard_codes: ClassVar[str] = "relative place"
    needs_length: ClassVar[bool] = True

    def step(self, n: int) -> float:
        """512 places for all of them."""
        return PLACES / n

    def add_to_embeddings(self, x: Embeddings, positions: Positions) -> Embeddings:
        """X + PE(512 ids / n)."""
        places = positions.ids * (PLACES / positions.n_tokens.clamp(min=1)[:, None])
        return x + sinusoids(places, self.d_model).to(x.dtype)


PART = LengthNormalised
