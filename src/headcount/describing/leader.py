"""Which of several items (heads, attention blocks, models) has the largest value, if intervals decide it at all?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
Estimate = tuple[float, float, float]
"""A value, then the lower and the upper end of its interval."""


@dataclass(frozen=True)
class Leader(Generic[T]):
    """The item with the largest (or smallest) value among several, and the items that may lead as well."""

    top: T
    others: tuple[T, ...]
    """All other items, from the second to the last."""
    rivals: tuple[T, ...]
    """The items in `others` that may have the largest value as well, because their intervals reach that of `top`."""
    is_shown: bool
    """Whether the whole interval of `top` lies beyond a bound, such as above a drop of 0; True without a bound."""

    @property
    def is_decided(self) -> bool:
        """Return whether `top` leads for certain: its whole interval lies beyond the bound, and it has no rivals."""
        return self.is_shown and not self.rivals


def leader(
    items: Iterable[T], estimate: Callable[[T], Estimate], *, bound: float | None = None, least: bool = False
) -> Leader[T]:
    """Return the item with the largest value (with `least`, the smallest), and the items that may lead as well.

    `estimate` gives the value of an item with its interval. An item is a rival unless the whole interval of some
    item lies beyond the item's own interval. This is the rule by which `Effect.rank_low` is 1. `bound` is a value,
    such as a drop of 0, beyond which the whole interval of the leader must lie to show that it differs from it.

    >>> drops = {"E0H1": (30.0, 29.0, 31.0), "E0H2": (29.5, 28.5, 30.5), "E0H3": (2.0, 1.0, 3.0)}
    >>> leader(drops, drops.__getitem__, bound=0)
    Leader(top='E0H1', others=('E0H2', 'E0H3'), rivals=('E0H2',), is_shown=True)
    >>> leader(drops, drops.__getitem__, least=True).top
    'E0H3'
    """

    def key(item: T) -> Estimate:
        value, low, high = estimate(item)
        return (-value, -high, -low) if least else (value, low, high)

    top, *others = sorted(items, key=lambda item: -key(item)[0])
    highest_low = max(key(item)[1] for item in (top, *others))
    rivals = tuple(item for item in others if key(item)[2] >= highest_low)
    is_shown = bound is None or key(top)[1] > (-bound if least else bound)
    return Leader(top, tuple(others), rivals, is_shown)
