"""Models that others wrote."""
