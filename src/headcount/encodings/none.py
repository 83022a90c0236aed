"""No position encoding.

A bidirectional encoder then sees a set: with a symmetric pooling, its output does not depend on the order of tokens. A
causal mask alone distinguishes positions, because the i-th token sees i tokens (Haviv et al. 2022, "Transformer
language models without positional encodings still learn positional information", arXiv 2203.16634).
"""

from typing import ClassVar

from headcount.encodings.base import Encoding


class NoPositions(Encoding):
    """No position encoding: embeddings, queries, keys and scores stay as they are."""

    uses_ids: ClassVar[bool] = False
    is_bias_of_distance: ClassVar[bool] = True


PART = NoPositions
