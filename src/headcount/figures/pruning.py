"""The figure of a pruning: the score that is left against the number of heads removed, for every order of removal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headcount.bands import limit_text
from headcount.figures.ablation import score_text, shown_score
from headcount.figures.style import GREY, PALETTE, Page, wrapped

if TYPE_CHECKING:
    from headcount.analysis.pruning import Point, Pruning

LOOKS = {
    "alone": ("predicted by adding up the drops of single heads (not measured)", PALETTE[3], "--", ""),
    "together": ("removed together, in the order of their own drops under zero ablation", PALETTE[1], "-", "s"),
    "every way": (
        "removed together, in the order of their largest drop under any ablation",
        PALETTE[6],
        "-",
        "D",
    ),
    "greedy": ("greedy removal, measured again after every step, with its 95 % CI", PALETTE[0], "-", "o"),
    "gradient": ("removed together, in the order of gradient importance", PALETTE[2], "-", "^"),
}


def draw_pruning(result: Pruning) -> Figure:
    """Draw the score that is left against the number of heads removed, one line per order of removal."""
    figure = Page(9.5, 4.6)
    axes = figure.subplots()
    sizes = [each.n_removed for each in result.chance]
    label = f"random orders ({result.n_orders}): median, and 10th to 90th percentile (n = {result.n_chance:,} each)"
    low, median, high = (
        [shown_score(result, getattr(each, end)) for each in result.chance] for end in ("low", "median", "high")
    )
    axes.fill_between(sizes, low, high, color=GREY, alpha=0.2, linewidth=0)
    axes.plot(sizes, median, color=GREY, linestyle=":", label=label)
    for curve in result.curves:
        label, colour, style, marker = LOOKS[curve.name]
        x = [point.n_removed for point in curve.points]
        y, low, high = (
            [shown_score(result, getattr(point, end)) for point in curve.points] for end in ("score", "low", "high")
        )
        axes.plot(x, y, linestyle=style, marker=marker, markersize=4, color=colour, label=label, linewidth=1.4)
        if curve.name == "greedy":  # bands of all curves would hide each other; the table has them all
            axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
    _point_out(axes, result)
    if result.not_measured:
        axes.plot([], [], " ", label=f"not measured within {result.budget:g} s: {'; '.join(result.not_measured)}")
    axes.set_xlabel(f"heads removed (of {result.n_heads})")
    axes.set_ylabel(wrapped(metric_label(result), 4.0, 10))
    axes.set(xlim=(-0.5, result.n_heads + 0.5))
    if result.is_accuracy:
        axes.set(ylim=(-3, 106))
    axes.ticklabel_format(axis="y", useOffset=False)
    axes.grid(alpha=0.25)
    figure.key(*axes.get_legend_handles_labels(), columns=1)
    about = f"chosen on {result.chosen_on}, measured on {result.measured_on} (n = {result.n:,})"
    figure.headline(f"{result.name}: {_score(result, result.curves[0].points[0])} with all heads", about, size=10)
    return figure


def _point_out(axes: Axes, result: Pruning) -> None:
    """Mark three numbers of removed heads with vertical lines, and the best random set of heads with a cross.

    The lines are at the heads that greedy removal takes, and at the heads that are harmless alone (under zero ablation,
    and under every kind of ablation).
    """
    for heads, point, colour, what in (
        (result.chosen, result.kept, PALETTE[0], f"greedy removal, {_stop(result)}"),
        (
            result.harmless,
            result.harmless_left,
            PALETTE[6],
            "all heads harmless alone under every ablation",
        ),
        (result.by_zero, result.by_zero_left, PALETTE[1], "all heads harmless alone under zero ablation"),
    ):
        if heads:
            label = f"{point.n_removed}: {what} ({_score(result, point)} is left)"
            axes.axvline(point.n_removed, color=colour, linestyle="-.", linewidth=1, label=label)
    best = result.best_random
    if result.n_tried and best.n_removed:
        x, y = [best.n_removed], [shown_score(result, best.score)]
        label = f"best of {result.n_random:,} random sets of {best.n_removed} (greedy removal tried {result.n_tried:,})"
        axes.plot(x, y, "X", color=PALETTE[4], markeredgecolor="black", markersize=9, label=label)


def _score(result: Pruning, point: Point) -> str:
    return score_text(result, point.score, point.low, point.high)


def _stop(result: Pruning) -> str:
    """Return in words the limit at which greedy removal stopped: a share of the heads, or a drop in score."""
    if result.share is not None:
        return f"{100 * result.share:g} % of the {result.n_heads} heads"
    return f"for a drop of at most {limit_text(result.loss, result.unit)}"


def metric_label(result: Pruning) -> str:
    """Return the name of the metric with its unit, such as `accuracy (%)`."""
    unit = "%" if result.is_accuracy else "nats" if result.unit == "nats" else ""
    return f"{result.metric} ({unit})" if unit else result.metric
