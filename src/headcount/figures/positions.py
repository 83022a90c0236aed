"""Figures of position encodings: what the encoding of one model does, and several encodings side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch
from numpy.typing import NDArray

from headcount.figures.style import (
    BLUE,
    DARK,
    DIVERGING,
    GREY,
    HIDDEN,
    LIGHT,
    ORANGE,
    PALETTE,
    SEQUENTIAL,
    Page,
    plot_band,
    wrapped,
)

if TYPE_CHECKING:
    from headcount.analysis.positions import EncodingProfile, EncodingsShown, PositionsShown

Array = NDArray[np.float64]
Panel = tuple[str, Callable[[Axes], AxesImage | None], str]
"""A panel of a figure: its title, a function that draws it, and the label of its colour bar."""
STATES: dict[str, dict[str, Any]] = {
    "trained": {"facecolor": BLUE},
    "never trained": {"facecolor": "white", "edgecolor": ORANGE, "hatch": "////"},
    "past the table": {"facecolor": "white", "edgecolor": GREY, "hatch": ".."},
}
LINES = [(colour, style) for style in ("-", "--", ":") for colour in PALETTE[:4]]
"""Colours and line styles of heads, in order: four colours with solid, then with dashed and with dotted lines."""
MOST_NAMED = 8
"""Largest number of heads in a legend inside a panel; a larger legend would cover the curves."""
ACROSS = 5
"""Number of encodings in one row of the figure of all encodings."""


def draw_positions(shown: PositionsShown) -> Figure:
    """Draw what the position encoding of one model does, at trained positions and beyond them."""
    encoding, trained = shown.encoding, shown.n_trained
    panels: list[Panel] = []
    if encoding.table:
        panels.append(("Added to the embeddings", lambda axes: _draw_table(axes, encoding, trained), "P(p)"))
    if shown.rows:
        title = "Distance that training moved each row" if shown.rows[0].moved is not None else "Norm of each row"
        panels.append((title, lambda axes: _draw_rows(axes, shown), ""))
    title = f"{encoding.kernel_is}\n{_not_explained(encoding)}"
    panels.append((title, lambda axes: _draw_kernel(axes, encoding, trained), "K(t, s)"))
    title = f"{'Bias of each head' if encoding.acts_on == 'scores' else 'K'} against the distance"
    title += "\n(band: smallest to largest at that distance)"
    panels.append((title, lambda axes: _draw_curves(axes, encoding, trained), ""))
    across = 2 if len(panels) == 4 else len(panels)
    down = len(panels) // across
    figure = Page(5.6 * across, 4.5 * down)
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.08)  # type: ignore[union-attr,call-arg]
    # Column by column, so that the panel of the rows stands below that of the table.
    for axes, (title, draw, label) in zip(figure.subplots(down, across, squeeze=False).T.flat, panels, strict=True):
        if image := draw(axes):
            figure.colorbar(image, ax=axes, label=label)
        axes.set_title("\n".join(wrapped(line, 4.2, 11) for line in title.splitlines()), fontsize=11)
    if len(encoding.curves) > MOST_NAMED:
        figure.key(*axes.get_legend_handles_labels(), columns=12)
    dashed = " (dashed)" if shown.n_positions > trained else ""
    figure.headline(f"Positions of {shown.name}: {heading(encoding)}", f"{trained_on(shown)}{dashed}", size=12)
    return figure


def draw_encodings(shown: EncodingsShown) -> Figure:
    """Draw each encoding: its table of vectors, its biases or a curve, and below it the similarity of positions."""
    blocks = -(-len(shown.encodings) // ACROSS)
    figure = Page(3.5 * ACROSS, 6.6 * blocks + 0.3)
    grid = figure.subplots(2 * blocks, ACROSS, squeeze=False)
    pairs = [(grid[2 * row, column], grid[2 * row + 1, column]) for row in range(blocks) for column in range(ACROSS)]
    for (top, bottom), encoding in zip(pairs, shown.encodings, strict=False):
        is_own = encoding.name == shown.trained
        _draw_encoding(figure, top, bottom, encoding, shown.n_trained if is_own else None)
        lines = f"{encoding.name}{' (trained)' if is_own else ''}", given(encoding)
        title = "\n".join(wrapped(line, 2.6, 11) for line in lines)
        top.set_title(title, fontsize=11, fontweight="bold" if is_own else "normal")
    for axes in (axes for pair in pairs[len(shown.encodings) :] for axes in pair):
        figure.delaxes(axes)
    whose = f"“{shown.trained}” as trained in {shown.name}, the others" if shown.trained else "all"
    figure.headline(f"Every encoding at {shown.n_positions} positions; {whose} with their initial values", size=14)
    return figure


def draw_side_by_side(models: Sequence[PositionsShown]) -> Figure:
    """Draw one column per model: what its encoding adds above, and the similarity K(t, s) of two positions below."""
    figure = Page(3.7 * len(models), 6.6)
    for shown, top, bottom in zip(models, *figure.subplots(2, len(models), squeeze=False), strict=True):
        _draw_encoding(figure, top, bottom, shown.encoding, shown.n_trained)
        lines = shown.encoding.name, given(shown.encoding), f"trained on 0 to {shown.n_trained - 1}"
        top.set_title("\n".join(wrapped(line, 2.8, 11) for line in lines), fontsize=11)
    figure.headline(
        "Encodings side by side: what each adds to the embeddings at position p (above), and the similarity K(t, s) of "
        "two positions (below); dashed: end of the trained positions",
        size=12,
    )
    return figure


def _draw_encoding(figure: Figure, top: Axes, bottom: Axes, encoding: EncodingProfile, trained: int | None) -> None:
    """Draw an encoding's table, biases or curve into `top`, and the similarity of positions into `bottom`."""
    draw = _draw_table if encoding.table else _draw_biases if encoding.acts_on == "scores" else _draw_curves
    for axes, image in ((top, draw(top, encoding, trained)), (bottom, _draw_kernel(bottom, encoding, trained))):
        if image:
            figure.colorbar(image, ax=axes)
    bottom.set_title(_not_explained(encoding), fontsize=10)


def given(encoding: EncodingProfile) -> str:
    """Return in words which structure of the task the encoding builds into a model, if any."""
    return f"built in: {encoding.hard_codes}" if encoding.hard_codes else "no structure built in"


def _not_explained(encoding: EncodingProfile) -> str:
    return f"variance not explained by t - s: {encoding.shift.variance_beyond_distance:.2f}"


def heading(encoding: EncodingProfile) -> str:
    """Return the name of an encoding, with the length that it depends on, if any, and its built-in structure."""
    at = f" at length {encoding.at_length}" if encoding.at_length else ""
    return f"{encoding.name}{at} ({given(encoding)})"


def trained_on(shown: PositionsShown) -> str:
    """Return in words which positions training used, and how many further positions the figure shows."""
    random = " (random ids)" if shown.random_positions else ""
    beyond = shown.n_positions - shown.n_trained
    others = f"; {beyond} further positions, never used in training" if beyond > 0 else ""
    return f"trained on positions 0 to {shown.n_trained - 1}{random}{others}"


def _draw_table(axes: Axes, encoding: EncodingProfile, trained: int | None) -> AxesImage:
    """Draw the vectors that the encoding adds to the embeddings, as a heat map [dimension, position]."""
    table = np.array(encoding.table, dtype=float)
    image = _heat_map(axes, table.T)
    axes.set(xlabel="position p", ylabel="dimension")
    _mark_trained(trained, len(table), axes.axvline, on_image=True)
    return image


def _draw_kernel(axes: Axes, encoding: EncodingProfile, trained: int | None) -> AxesImage:
    """Draw K(t, s), the similarity of positions t and s, as a heat map."""
    kernel = np.array(encoding.kernel, dtype=float)  # hidden pairs are None, and become NaN
    image = _heat_map(axes, kernel)
    axes.set(xlabel="position s (key)", ylabel="position t (query)", aspect="equal")
    _mark_trained(trained, len(kernel), axes.axvline, axes.axhline, on_image=True)
    if np.isnan(kernel).any():
        axes.legend(handles=[Patch(color=HIDDEN, label="hidden")], loc="upper right", fontsize=8)
    return image


def _draw_biases(axes: Axes, encoding: EncodingProfile, trained: int | None) -> AxesImage:
    """Draw the mean bias that every head adds to attention scores, against the distance, as a heat map."""
    biases = np.array([curve.mean for curve in encoding.curves], dtype=float)
    n, heads = len(encoding.kernel), len(biases)
    image = _heat_map(axes, biases, extent=(0.5 - n, n - 0.5, heads - 0.5, -0.5))
    axes.set(xlabel="distance s - t (positions)", ylabel="head", yticks=range(0, heads, 1 + (heads - 1) // 8))
    _mark_trained(trained, n, axes.axvline, either_way=True, on_image=True)
    return image


def _draw_curves(axes: Axes, encoding: EncodingProfile, trained: int | None) -> None:
    """Draw the bias of each head, or the similarity K of positions, against distance; bands cover all pairs."""
    n = len(encoding.kernel)
    distance = np.arange(1 - n, n)
    for i, curve in enumerate(encoding.curves):
        colour, style = LINES[i % len(LINES)]
        low, mean, high = np.array((curve.low, curve.mean, curve.high), dtype=float)
        look = {"color": colour, "label": curve.label, "linewidth": 1.4}
        plot_band(axes, distance, mean, low, high, style, alpha=0.2, **look)
    what = "bias, added to the score" if encoding.acts_on == "scores" else "K(t, s)"
    axes.set(xlabel="distance s - t (positions)", ylabel=what, xlim=(1 - n, n - 1))
    if encoding.acts_on == "nothing":
        axes.set_ylim(-1, 1)
    axes.axhline(0, color="black", linewidth=0.5)
    axes.grid(alpha=0.25)
    _mark_trained(trained, n, axes.axvline, either_way=True)
    if 1 < len(encoding.curves) <= MOST_NAMED:
        axes.legend(fontsize=8, ncols=2 if len(encoding.curves) > 4 else 1)


def _draw_rows(axes: Axes, shown: PositionsShown) -> None:
    """Draw how far training moved each row of a learned table; if initial rows are unknown, draw the norms of rows."""
    heights = {row.position: row.norm if row.moved is None else row.moved for row in shown.rows}
    for state, look in STATES.items():
        rows = [row for row in shown.rows if row.state == state]
        if rows and state == "past the table":  # the table has no such rows
            axes.axvspan(rows[0].position - 0.5, rows[-1].position + 0.5, linewidth=0, **look)
        elif rows:
            axes.bar([r.position for r in rows], [heights[r.position] for r in rows], width=0.8, linewidth=0.5, **look)
    what = "norm" if shown.rows[0].moved is None else "distance from the initial row"
    axes.set(xlabel="position p", ylabel=what, xlim=(-0.5, shown.n_positions - 0.5))
    axes.set_ylim(0, 1.25 * max(heights.values()) or 1)
    _mark_trained(shown.n_trained, shown.n_positions, axes.axvline)
    patches = [Patch(label=state, **STATES[state]) for state in dict.fromkeys(row.state for row in shown.rows)]
    axes.legend(handles=patches, fontsize=8, loc="upper center", ncols=3)


def _heat_map(axes: Axes, values: Array, extent: tuple[float, float, float, float] | None = None) -> AxesImage:
    """Draw a heat map; its colours are centred on 0 if there are values of both signs."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    is_signed = not 0 <= low < high
    if is_signed:
        high = max(-low, high) or 1.0
        low = -high
    colours = colormaps[DIVERGING if is_signed else SEQUENTIAL].with_extremes(bad=HIDDEN)
    return axes.imshow(values, vmin=low, vmax=high, cmap=colours, aspect="auto", interpolation="nearest", extent=extent)


def _mark_trained(
    trained: int | None, n: int, *draws: Callable[..., Any], either_way: bool = False, on_image: bool = False
) -> None:
    """Draw dashed lines after the last trained position or, on an axis of distances, at both ends of the trained ones.

    `draws` are functions that draw a line at a position, such as `axes.axvline`. A dark theme turns black into white
    but does not change heat maps. Dashes over a heat map are therefore nearly black, which no theme changes, on a
    light line that separates them from dark cells.
    """
    if trained and trained < n:
        for draw in draws:
            for end in (0.5 - trained, trained - 0.5) if either_way else (trained - 0.5,):
                if on_image:
                    draw(end, color=LIGHT, linewidth=2.4)
                draw(end, color=DARK if on_image else "black", linestyle="--", linewidth=1.2 if on_image else 1)
