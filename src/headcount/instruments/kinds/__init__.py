"""What stands in for a silenced head: one file per kind."""

from __future__ import annotations

from headcount.registry import Registry

KINDS = Registry("headcount.instruments.kinds")


def all_kinds() -> tuple[str, ...]:
    """Every kind there is; zero first, for that is what cutting a head out does."""
    return tuple(sorted(KINDS.names(), key=lambda kind: kind != "zero"))
