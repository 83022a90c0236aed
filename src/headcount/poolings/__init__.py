"""From a sequence to one vector: one pooling, one file."""

from headcount.registry import Registry

POOLINGS = Registry("headcount.poolings")
