"""Claims about heads that can lose: one kind of claim, one file, with what supports it and what refutes it."""

from headcount.registry import Registry

CLAIMS = Registry("headcount.claims")
"""The kinds of claims."""
