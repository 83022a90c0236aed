"""What stands in for a silenced head: one file per kind."""

from __future__ import annotations

from headcount.registry import Registry

KINDS = Registry("headcount.instruments.kinds")


ORDER = ("resample", "zero", "mean")
"""Whether the model uses a head comes first, then whether the head can be cut out; then whatever else there is."""


def all_kinds() -> tuple[str, ...]:
    """Every kind there is."""
    return tuple(sorted(KINDS.names(), key=lambda kind: (*ORDER, kind).index(kind)))
