"""Draw the figures of results. Figures are drawn from stored results alone, so nothing here imports torch."""
