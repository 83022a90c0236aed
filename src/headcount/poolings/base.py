"""What every pooling offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from jaxtyping import Bool, Float
from torch import Tensor, nn

Sequences = Float[Tensor, "batch length d_model"]
Tokens = Bool[Tensor, "batch length"]
Pooled = Float[Tensor, "batch d_pooled"]


class Pooling(nn.Module, ABC):
    """Built with the width of the sequence; `d_pooled` is the width of what it makes."""

    symmetric: ClassVar[bool] = True
    """Whether it knows no order: any permutation of the sequence gives the same."""
    gives: ClassVar[str] = ""
    """The structure of the task that this pooling gives away, in words; empty if it is generic."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_pooled = d_model

    @abstractmethod
    def forward(self, x: Sequences, is_token: Tokens) -> Pooled:
        """One vector for each sequence, whatever stands where `is_token` is false."""


def hide(x: Float[Tensor, "batch length d"], is_token: Tokens, value: float) -> Float[Tensor, "batch length d"]:
    """The sequence with padding replaced."""
    return x.masked_fill(~is_token[..., None], value)
