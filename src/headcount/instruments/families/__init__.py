"""Families of models that headcount knows: one file for each layout."""

from __future__ import annotations

from headcount.instruments.families.base import Family
from headcount.registry import Registry

FAMILIES = Registry("headcount.instruments.families")


def family_of(model_type: str) -> Family | None:
    """The family that a configuration's `model_type` belongs to, if we know it."""
    for name in FAMILIES.names():
        family: Family = FAMILIES.get(name)
        if model_type in family.model_types:
            return family
    return None


def model_types() -> tuple[str, ...]:
    """Every one we know."""
    return tuple(sorted(kind for name in FAMILIES.names() for kind in FAMILIES.get(name).model_types))
