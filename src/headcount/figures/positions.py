"""Positions on view: the page of one run, every encoding side by side, and the mathematics in plain words."""

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
from rich.table import Column, Table

from headcount.figures.style import (
    BLUE,
    DIVERGING,
    GREY,
    ORANGE,
    PALETTE,
    SEQUENTIAL,
    Page,
    plot_band,
    table_of,
    wrapped,
)

if TYPE_CHECKING:
    from headcount.analysis.positions import EncodingProfile, EncodingsShown, PositionsShown

Array = NDArray[np.float64]
STATES: dict[str, dict[str, Any]] = {
    "trained": {"facecolor": BLUE},
    "never trained": {"facecolor": "white", "edgecolor": ORANGE, "hatch": "////"},
    "past the table": {"facecolor": "white", "edgecolor": GREY, "hatch": ".."},
}
LINES = [(colour, style) for style in ("-", "--", ":") for colour in PALETTE[:4]]
"""One look per head: Okabe and Ito's blue, vermilion, green and pink, then dashed and dotted."""
HIDDEN = "#d9d9d9"
LIGHT, DARK = "#fefefe", "#010101"
"""White and black that a page's dark theme does not exchange."""
MOST_NAMED = 8
"""Heads that are named among their curves: more would cover them."""
ACROSS = 5
"""Encodings beside each other on a page."""
EXACT = 1e-3
"""Relative errors below this are rounding errors of single precision."""


def draw_positions(shown: PositionsShown) -> Figure:
    """What the encoding of one run does, at trained positions and past them."""
    encoding, trained = shown.encoding, shown.n_trained
    panels: list[tuple[str, Callable[[Axes], AxesImage | None], str]] = []  # title, what draws, what colours mean
    if encoding.table:
        panels.append(("What is added to the embeddings", lambda axes: _draw_table(axes, encoding, trained), "P(p)"))
    if shown.rows:
        title = "How far training moved each row" if shown.rows[0].moved is not None else "How long each row is"
        panels.append((title, lambda axes: _draw_rows(axes, shown), ""))
    title = f"{encoding.kernel_is}\n{_not_explained(encoding)}"
    panels.append((title, lambda axes: _draw_kernel(axes, encoding, trained), "K(t, s)"))
    title = f"{'Bias of each head' if encoding.acts_on == 'scores' else 'K'} against the distance"
    title += "\n(band: from least to greatest at that distance)"
    panels.append((title, lambda axes: _draw_curves(axes, encoding, trained), ""))
    across = 2 if len(panels) == 4 else len(panels)
    down = len(panels) // across
    figure = Page(5.6 * across, 4.5 * down)
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.08)  # type: ignore[union-attr,call-arg]
    # Down first, so that a table and what happened to its rows stand above each other.
    for axes, (title, draw, label) in zip(figure.subplots(down, across, squeeze=False).T.flat, panels, strict=True):
        if image := draw(axes):
            figure.colorbar(image, ax=axes, label=label)
        axes.set_title("\n".join(wrapped(line, 4.2, 11) for line in title.splitlines()), fontsize=11)
    if len(encoding.curves) > MOST_NAMED:
        figure.key(*axes.get_legend_handles_labels(), columns=12)
    figure.headline(f"Positions of {shown.name}: {_heading(encoding)}", _trained_on(shown), size=12)
    return figure


def draw_encodings(shown: EncodingsShown) -> Figure:
    """Each encoding's table, biases or curve, and its kernel below."""
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
    figure.headline(f"Every encoding at {shown.n_positions} positions; {whose} as they are drawn", size=14)
    return figure


def draw_side_by_side(models: Sequence[PositionsShown]) -> Figure:
    """Draw a column for each model: what its encoding adds or does above, how alike it makes two positions below."""
    figure = Page(3.7 * len(models), 6.6)
    for shown, top, bottom in zip(models, *figure.subplots(2, len(models), squeeze=False), strict=True):
        _draw_encoding(figure, top, bottom, shown.encoding, shown.n_trained)
        lines = shown.encoding.name, given(shown.encoding), f"trained on 0 to {shown.n_trained - 1}"
        top.set_title("\n".join(wrapped(line, 2.8, 11) for line in lines), fontsize=11)
    figure.headline(
        "Encodings side by side: what each adds to the embeddings at position p (above), and K(t, s), how alike it "
        "makes two positions (below); dashed: behind the last trained position",
        size=12,
    )
    return figure


def _draw_encoding(figure: Figure, top: Axes, bottom: Axes, encoding: EncodingProfile, trained: int | None) -> None:
    """Draw an encoding's table, biases or curve, and its kernel below."""
    draw = _draw_table if encoding.table else _draw_biases if encoding.acts_on == "scores" else _draw_curves
    for axes, image in ((top, draw(top, encoding, trained)), (bottom, _draw_kernel(bottom, encoding, trained))):
        if image:
            figure.colorbar(image, ax=axes)
    bottom.set_title(_not_explained(encoding), fontsize=10)


def positions_table(shown: PositionsShown) -> Table:
    """What the page shows, and the mathematics, in plain words."""
    columns = (Column(style="bold"), Column())
    return table_of(f"positions of {shown.name}", columns, positions_rows(shown), show_header=False)


def positions_rows(shown: PositionsShown) -> list[tuple[str, str]]:
    """What was asked, and the answer."""
    encoding, shift = shown.encoding, shown.encoding.shift
    rows = [
        ("encoding", f"{_heading(encoding)}; touches {encoding.acts_on}"),
        ("positions", _trained_on(shown).replace(" (dashed)", "")),
        *((f"rows {state}", _row_words(shown, state)) for state in dict.fromkeys(row.state for row in shown.rows)),
    ]
    if shift.rotation_error is not None and shift.largest_entry is not None:
        words = _rotation_words(shift.rotation_error, shift.largest_entry, encoding)
        rows.append(("one rotation R_k for all p", words))
    if (linear := shift.linear) is not None:
        few = " (as some map always does: fewer steps than dimensions)" if linear.n_rows <= linear.d_model else ""
        verdict = "" if linear.held_out < 0.95 else ": no better than guessing 0, so one row tells nothing of the next"
        fitted, held_out, turned = (f"{100 * x:.1f} %" for x in (linear.fitted, linear.held_out, linear.rotation))
        words = (
            f"one linear map for the steps between rows 0 to {linear.n_rows - 1} misses them by {fitted}{few}, and a "
            f"step it was not fitted on by {held_out}{verdict}; the best rotation misses by {turned}"
        )
        rows.append(("a step learned from examples", words))
    rows.append(("K depends on t - s alone", _kernel_words(encoding)))
    return rows


def given(encoding: EncodingProfile) -> str:
    """`generic`, or what it gives away."""
    return f"gives: {encoding.hard_codes}" if encoding.hard_codes else "generic"


def _not_explained(encoding: EncodingProfile) -> str:
    return f"not explained by t - s: {encoding.shift.variance_beyond_distance:.2f}"


def _heading(encoding: EncodingProfile) -> str:
    at = f" at length {encoding.at_length}" if encoding.at_length else ""
    return f"{encoding.name}{at} ({given(encoding)})"


def _trained_on(shown: PositionsShown) -> str:
    how = " (random ids)" if shown.random_positions else ""
    past = shown.n_positions - shown.n_trained
    end = f"; {past} further positions, never met in training (dashed)" if past > 0 else ""
    return f"trained on positions 0 to {shown.n_trained - 1}{how}{end}"


def _row_words(shown: PositionsShown, state: str) -> str:
    """What happened to the rows of a learned table that are in this state."""
    rows = [row for row in shown.rows if row.state == state]
    span, is_repeated = f"{rows[0].position} to {rows[-1].position}", len({r.norm for r in rows}) == 1 < len(rows)
    moved, cosines = (
        [each for each in values if each is not None]
        for values in zip(*((row.moved, row.cosine) for row in rows), strict=True)
    )
    if state == "past the table":
        words = "repeats of the table's last row" if is_repeated else "no such rows; random ones stand in for them"
        return f"{span}: {words}"
    if not moved:  # where they began is not known
        lengths = [row.norm for row in rows]
        return f"{span}: of length {min(lengths):.2f} to {max(lengths):.2f}"
    cosine = min(cosines)
    turned = f"and turned (least cosine {cosine:.3f})"
    if cosine > 1 - 1e-6:
        turned = "but none turned: only their lengths changed"
    return f"{span}: moved by {min(moved):.2f} to {max(moved):.2f} from where they began, {turned}"


def _rotation_words(error: float, largest: float, encoding: EncodingProfile) -> str:
    miss = f"largest |P(p + k) - R_k P(p)| over all p, k: {error:.2g}, of entries up to {largest:.2g}"
    if error >= EXACT * largest:
        return f"no: {miss}"
    if encoding.at_length:
        return f"yes, at length {encoding.at_length}: {miss}. But R_k changes with the length"
    return f"yes: {miss}. The step is the same past the trained positions; whether the model uses it, it does not say"


def _kernel_words(encoding: EncodingProfile) -> str:
    if encoding.acts_on == "nothing":
        return "K is 0: all positions are alike"
    shift, among = encoding.shift, encoding.shift.variance_beyond_distance_trained
    trained = "" if among is None else f" (among trained positions {among:.2f})"
    verdict = "yes" if shift.variance_beyond_distance < EXACT else "no"
    return (
        f"{verdict}: share of its variance that t - s does not explain {shift.variance_beyond_distance:.2f}{trained}; "
        f"largest deviation {shift.deviation:.2g}. {encoding.kernel_is}"
    )


def _draw_table(axes: Axes, encoding: EncodingProfile, trained: int | None) -> AxesImage:
    """What is added to the embeddings."""
    table = np.array(encoding.table, dtype=float)
    image = _heat_map(axes, table.T)
    axes.set(xlabel="position p", ylabel="dimension")
    _mark_trained(trained, len(table), axes.axvline, on_image=True)
    return image


def _draw_kernel(axes: Axes, encoding: EncodingProfile, trained: int | None) -> AxesImage:
    """K(t, s)."""
    kernel = np.array(encoding.kernel, dtype=float)  # what is hidden, None, is NaN
    image = _heat_map(axes, kernel)
    axes.set(xlabel="position s (key)", ylabel="position t (query)", aspect="equal")
    _mark_trained(trained, len(kernel), axes.axvline, axes.axhline, on_image=True)
    if np.isnan(kernel).any():
        axes.legend(handles=[Patch(color=HIDDEN, label="hidden")], loc="upper right", fontsize=8)
    return image


def _draw_biases(axes: Axes, encoding: EncodingProfile, trained: int | None) -> AxesImage:
    """Every head's mean bias against the distance, as a heat map."""
    biases = np.array([curve.mean for curve in encoding.curves], dtype=float)
    n, heads = len(encoding.kernel), len(biases)
    image = _heat_map(axes, biases, extent=(0.5 - n, n - 0.5, heads - 0.5, -0.5))
    axes.set(xlabel="distance s - t (positions)", ylabel="head", yticks=range(0, heads, 1 + (heads - 1) // 8))
    _mark_trained(trained, n, axes.axvline, either_way=True, on_image=True)
    return image


def _draw_curves(axes: Axes, encoding: EncodingProfile, trained: int | None) -> None:
    """Each head's bias, or K, against the distance; the band is as wide as pairs of one distance differ."""
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
    """How far each row of a learned table is from where it began; if that is not known, how long it is."""
    heights = {row.position: row.norm if row.moved is None else row.moved for row in shown.rows}
    for state, look in STATES.items():
        rows = [row for row in shown.rows if row.state == state]
        if rows and state == "past the table":  # there is no row here that could have moved
            axes.axvspan(rows[0].position - 0.5, rows[-1].position + 0.5, linewidth=0, **look)
        elif rows:
            axes.bar([r.position for r in rows], [heights[r.position] for r in rows], width=0.8, linewidth=0.5, **look)
    what = "length" if shown.rows[0].moved is None else "distance from the initial row"
    axes.set(xlabel="position p", ylabel=what, xlim=(-0.5, shown.n_positions - 0.5))
    axes.set_ylim(0, 1.25 * max(heights.values()) or 1)
    _mark_trained(shown.n_trained, shown.n_positions, axes.axvline)
    patches = [Patch(label=state, **STATES[state]) for state in dict.fromkeys(row.state for row in shown.rows)]
    axes.legend(handles=patches, fontsize=8, loc="upper center", ncols=3)


def _heat_map(axes: Axes, values: Array, extent: tuple[float, float, float, float] | None = None) -> AxesImage:
    """Signed values around white, others from their least to their greatest."""
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
    """Draw a line behind the last trained position; of distances, beyond the farthest two trained ones, either way.

    A dark theme turns black into white, but leaves heat maps as they are. So dashes over a heat map are nearly black,
    which no theme changes, on a light line that sets them off dark cells.
    """
    if trained and trained < n:
        for draw in draws:
            for end in (0.5 - trained, trained - 0.5) if either_way else (trained - 0.5,):
                if on_image:
                    draw(end, color=LIGHT, linewidth=2.4)
                draw(end, color=DARK if on_image else "black", linestyle="--", linewidth=1.2 if on_image else 1)
