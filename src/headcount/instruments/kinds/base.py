"""What every kind of ablation is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor


class Material(NamedTuple):
    """What a stand-in can be made of, at one site, for one block of examples."""

    z: Float[Tensor, "row query head d_head"]
    """What the heads found in these examples."""
    mean: Float[Tensor, "query head d_head"] | None
    """What they found on average over many inputs, position by position; only for kinds that need it."""
    others: Int[Tensor, " row"]
    """For each example, another one of the block: its donor."""
    real: Bool[Tensor, "row query"] | None = None
    """Which positions hold tokens and no padding; all of them if None."""


@dataclass(frozen=True)
class Kind:
    """One kind of ablation."""

    summary: str
    stand_in: Callable[[Material], Float[Tensor, "#row query head d_head"] | None]
    """What is put in the place of z; None for nothing at all."""
    needs_mean: bool = False
    needs_others: bool = False
