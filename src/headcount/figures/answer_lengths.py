"""Draw exact match against the length of the question, for models that answer token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from headcount.figures.length_generalisation import MARKERS, NOTHING_BUILT_IN, size_range
from headcount.figures.style import GREY, PALETTE, Page, plot_band

if TYPE_CHECKING:
    from headcount.analysis.answer_lengths import AnswerStretch


def draw_answer_lengths(results: Sequence[AnswerStretch]) -> Figure:
    """Draw exact match against length: one panel per kind of example, one line per model with its 95 % interval."""
    kinds = list(dict.fromkeys(cell.kind for result in results for cell in result.cells))
    across = min(len(kinds), 3)
    down = -(-len(kinds) // across)
    figure = Page(3.4 * across + 0.6, 3.2 * down + 0.6)
    panels = list(figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flat)
    for axes in panels[len(kinds) :]:
        axes.remove()
    for place, (kind, axes) in enumerate(zip(kinds, panels, strict=False)):
        for i, result in enumerate(results):
            cells = [cell for cell in result.cells if cell.kind == kind]
            rate, low, high = (
                100 * np.array([getattr(cell.exact, name) for cell in cells]) for name in ("rate", "low", "high")
            )
            look: dict[str, Any] = {
                "color": PALETTE[i % len(PALETTE)],
                "marker": MARKERS[i % len(MARKERS)],
                "markersize": 4,
            }
            built_in = f"built in: {', '.join(result.hard_codes)}" if result.hard_codes else NOTHING_BUILT_IN
            label = f"{result.name}: {result.label}  ({built_in}, 95 % CI)"
            plot_band(axes, [cell.length for cell in cells], rate, low, high, "-", linewidth=1.3, label=label, **look)
        for trained in {result.trained for result in results if result.trained}:
            axes.axvspan(*trained, color=GREY, alpha=0.15, linewidth=0)
        axes.set_xscale("log")
        axes.set(title=kind, ylim=(-3, 103), xlabel=f"length ({results[0].unit})", ylabel="exact match (%)")
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
        axes.grid(alpha=0.25)
        axes.label_outer(remove_inner_ticks=False)
        if place + across >= len(kinds):  # no panel below
            axes.set_xlabel(f"length ({results[0].unit})")
            axes.tick_params(labelbottom=True)
    figure.key(*panels[0].get_legend_handles_labels(), columns=1, size=10)
    n = size_range(cell.exact.n for result in results for cell in result.cells)
    figure.headline(f"Exact match by length (n = {n} per point; shaded: training lengths)", size=12)
    return figure
