"""One look for every figure: readable in print, in grey and by the colour-blind."""

from __future__ import annotations

import io

from matplotlib.figure import Figure

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"
"""From Okabe and Ito's palette for colour-blind readers."""
PALETTE = (BLUE, ORANGE, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933")
"""One colour per line; markers tell lines apart in print as well."""
SEQUENTIAL = "Blues"
"""Lightness falls evenly, so that a black-and-white print keeps the order."""
DIVERGING = "PuOr_r"
"""For signed values, white at 0: purple below and orange above are told apart by the colour-blind too."""


def png(figure: Figure) -> bytes:
    """A figure as PNG; the same data give the same bytes."""
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=150, metadata={"Software": None})
    return data.getvalue()
