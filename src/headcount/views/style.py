"""One look for every figure: readable in print, in grey and by the colour-blind."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"
"""From Okabe and Ito's palette for colour-blind readers."""
SEQUENTIAL = "Blues"
"""Lightness falls evenly, so that a black-and-white print keeps the order."""


def save(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG; the same data give the same bytes."""
    figure.savefig(path, dpi=150, metadata={"Software": None})
    return path
