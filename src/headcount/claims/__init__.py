"""Claims about heads that can turn out wrong. Each file is a kind of claim: what supports it, and what refutes it."""

from headcount.registry import Registry

CLAIMS = Registry("headcount.claims")
"""All kinds of claims, by the name of their file."""
