"""The panels that pages about positions are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from matplotlib.patches import Patch
from numpy.typing import NDArray

from headcount.views.style import BLUE, DIVERGING, GREY, ORANGE, SEQUENTIAL

if TYPE_CHECKING:
    from headcount.analysis.positions import PositionsShown
    from headcount.analysis.touches import EncodingShown

Array = NDArray[np.float64]
STATES: dict[str, dict[str, Any]] = {
    "trained": {"facecolor": BLUE},
    "never trained": {"facecolor": "white", "edgecolor": ORANGE, "hatch": "////"},
    "past the table": {"facecolor": "#f2f2f2", "edgecolor": GREY, "hatch": ".."},
}
LINES = [(colour, style) for style in ("-", "--", ":") for colour in (BLUE, ORANGE, "#009E73", "#CC79A7")]
"""One look per head: Okabe and Ito's blue, vermilion, green and pink, then dashed and dotted."""
HIDDEN = "#d9d9d9"
MOST_NAMED = 8
"""Heads that are named among their curves: more would cover them."""


def draw_table(axes: Axes, encoding: EncodingShown, trained: int | None) -> AxesImage:
    """What is added to the embeddings."""
    table = numbers(encoding.table or ())
    image = _heat_map(axes, table.T)
    axes.set(xlabel="position p", ylabel="dimension")
    _mark_last(axes.axvline, trained, len(table))
    return image


def draw_kernel(axes: Axes, encoding: EncodingShown, trained: int | None) -> AxesImage:
    """K(t, s)."""
    kernel = numbers(encoding.kernel)
    image = _heat_map(axes, kernel)
    axes.set(xlabel="position s (key)", ylabel="position t (query)", aspect="equal")
    for draw in (axes.axvline, axes.axhline):
        _mark_last(draw, trained, len(kernel))
    if np.isnan(kernel).any():
        axes.legend(handles=[Patch(color=HIDDEN, label="hidden")], loc="upper right", fontsize=8)
    return image


def draw_biases(axes: Axes, encoding: EncodingShown, trained: int | None) -> AxesImage:
    """Every head's mean bias against the distance, as a heat map."""
    biases = numbers(tuple(curve.mean for curve in encoding.curves))
    n, heads = len(encoding.kernel), len(biases)
    image = _heat_map(axes, biases, extent=(0.5 - n, n - 0.5, heads - 0.5, -0.5))
    axes.set(xlabel="distance s - t (positions)", ylabel="head", yticks=range(0, heads, 1 + (heads - 1) // 8))
    _mark_farthest(axes, trained, n)
    return image


def draw_curves(axes: Axes, encoding: EncodingShown, trained: int | None) -> None:
    """Each head's bias, or K, against the distance; the band is as wide as pairs of one distance differ."""
    n = len(encoding.kernel)
    distance = np.arange(1 - n, n)
    for i, curve in enumerate(encoding.curves):
        colour, style = LINES[i % len(LINES)]
        low, mean, high = numbers((curve.low, curve.mean, curve.high))
        axes.fill_between(distance, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(distance, mean, style, color=colour, label=curve.label, linewidth=1.4)
    what = "bias, added to the score" if encoding.touches == "scores" else "K(t, s)"
    axes.set(xlabel="distance s - t (positions)", ylabel=what, xlim=(1 - n, n - 1))
    if encoding.touches == "nothing":
        axes.set_ylim(-1, 1)
    axes.axhline(0, color="black", linewidth=0.5)
    axes.grid(alpha=0.25)
    _mark_farthest(axes, trained, n)
    if 1 < len(encoding.curves) <= MOST_NAMED:
        axes.legend(fontsize=8, ncols=2 if len(encoding.curves) > 4 else 1)


def draw_rows(axes: Axes, shown: PositionsShown) -> None:
    """How far each row of a learned table is from where it began."""
    for state, look in STATES.items():
        rows = [row for row in shown.rows if row.state == state]
        if rows and state == "past the table":  # there is no row here that could have moved
            axes.axvspan(rows[0].position - 0.5, rows[-1].position + 0.5, linewidth=0, **look)
        elif rows:
            axes.bar([r.position for r in rows], [r.moved for r in rows], width=0.8, linewidth=0.5, **look)
    axes.set(xlabel="position p", ylabel="distance from the initial row", xlim=(-0.5, shown.n_positions - 0.5))
    axes.set_ylim(0, 1.25 * max(row.moved for row in shown.rows) or 1)
    _mark_last(axes.axvline, shown.n_trained, shown.n_positions)
    seen = dict.fromkeys(row.state for row in shown.rows)
    axes.legend(
        handles=[Patch(label=state, **STATES[state]) for state in seen], fontsize=8, loc="upper center", ncols=3
    )


def numbers(matrix: tuple[tuple[float | None, ...], ...]) -> Array:
    """None as NaN."""
    return np.array([[np.nan if x is None else x for x in row] for row in matrix], dtype=float)


def _heat_map(axes: Axes, values: Array, extent: tuple[float, float, float, float] | None = None) -> AxesImage:
    """Signed values around white, others from their least to their greatest."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    name = DIVERGING
    if 0 <= low < high:
        name = SEQUENTIAL
    else:
        high = max(-low, high) or 1.0
        low = -high
    colours = colormaps[name].with_extremes(bad=HIDDEN)
    return axes.imshow(values, vmin=low, vmax=high, cmap=colours, aspect="auto", interpolation="nearest", extent=extent)


def _mark_last(draw: Callable[..., Any], trained: int | None, n: int) -> None:
    """Between the last trained position and the first that was not."""
    if trained and trained < n:
        draw(trained - 0.5, color="black", linestyle="--", linewidth=1)


def _mark_farthest(axes: Axes, trained: int | None, n: int) -> None:
    """Beyond the farthest two trained positions, either way."""
    if trained and trained < n:
        for end in (0.5 - trained, trained - 0.5):
            axes.axvline(end, color="black", linestyle="--", linewidth=1)
