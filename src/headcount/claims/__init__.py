"""Kinds of claims about attention heads. Each file of this package says what supports and what refutes one kind."""

from headcount.registry import Registry

CLAIMS = Registry("headcount.claims")
"""The registry of all kinds of claims; each kind has the name of its file."""
