"""What stands in for a silenced head: one file per kind."""

from __future__ import annotations

from headcount.registry import Registry

KINDS = Registry("headcount.instruments.kinds")
