"""No positions at all.

A bidirectional encoder then sees a set: with a symmetric pooling its output is the same for every order of the
tokens. A causal mask alone tells positions apart: the i-th token sees i tokens (Haviv et al. 2022, "Transformer
language models without positional encodings still learn positional information", arXiv 2203.16634).
"""

from typing import ClassVar

from headcount.encodings.base import Encoding


class NoPositions(Encoding):
    """Acts on nothing."""

    uses_ids: ClassVar[bool] = False


PART = NoPositions
