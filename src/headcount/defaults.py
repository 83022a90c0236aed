"""What is done unless something else is asked for: one place for the command line, for Python and for the help."""

from __future__ import annotations

DONORS = 4
"""Other examples whose outputs replace each example's, by resample."""
BATCH = 512
"""Rows in one forward pass."""
LOSS = 0.01
"""What pruning may lose."""
ORDERS = 20
"""Random orders of removal that pruning is compared with."""
