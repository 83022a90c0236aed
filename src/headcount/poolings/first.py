"""The first token's vector, which must gather everything by attention."""

from __future__ import annotations

from typing import ClassVar

from headcount.poolings.base import Pooled, Pooling, Sequences, Tokens


class First(Pooling):
    """Knows which token is first."""

    symmetric: ClassVar[bool] = False

    def forward(self, x: Sequences, is_token: Tokens) -> Pooled:
        """x_0."""
        return x[:, 0]


PART = First
