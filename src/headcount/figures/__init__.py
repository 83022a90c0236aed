"""Figures of results. They are drawn from results alone, so nothing here imports torch."""
