"""Figures, drawn from results alone: nothing here imports torch."""
