"""Figures of an ablation: ranking of heads with intervals, map of blocks and heads, and drops by sequence length."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from headcount.bands import CRITICAL, IMPORTANT
from headcount.figures.attention import write_cells
from headcount.figures.style import GREY, LINE, PALETTE, SEQUENTIAL, Page, plain, width_of, wrapped
from headcount.formatting import fixed
from headcount.heads import HeadId

if TYPE_CHECKING:
    from headcount.analysis.ablation import Ablation, AblationCondition, Effect
    from headcount.analysis.pruning import Pruning
    from headcount.analysis.pruning_cost import Cost

    Scored: TypeAlias = Ablation | Pruning | Cost

MARKERS = "osD^"
MOST_ROWS = 48
"""Largest number of heads in the figure of the ranking; for a larger model, it shows only the first heads."""
BROADEST = 11.5
"""Largest total width of panels side by side, in inches; wider figures cannot be read on a page."""


def draw_ranking(result: Ablation, condition: AblationCondition) -> Figure:
    """Draw the ranking of heads: one row per head, the costliest first, with the drop under each kind of ablation."""
    ranking, n = result.ranking(condition.length), len(result.replacements)
    shown = list(ranking.items())[:MOST_ROWS]
    figure = Page(8.5, 0.1 * (n + 1) * len(shown) + 1.3)
    axes = figure.subplots()
    for i, replacement in enumerate(result.replacements):
        drops, doubt = _drops(result, [effects[replacement] for _, effects in shown])
        y = np.arange(len(shown)) + 0.24 * (i - (n - 1) / 2)
        mark, colour = MARKERS[i % len(MARKERS)], PALETTE[i % len(MARKERS)]
        axes.barh(y, drops, height=0.2, color=colour, alpha=0.3, linewidth=0)
        axes.errorbar(
            drops, y, xerr=doubt, fmt=mark, color=colour, markersize=4, capsize=2, linewidth=1, label=replacement
        )
    names = []
    for head, effects in shown:
        is_dagger = any(is_remeasured(condition, effect) for effect in effects.values())
        names.append(f"{head}  ({HeadId.parse(head).short}){' †' if is_dagger else ''}")
    axes.set_yticks(range(len(shown)), names, fontsize=8)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    _mark_borders(axes, result, min(effect.low for effects in ranking.values() for effect in effects.values()))
    axes.set_xlabel(f"{drop_label(result)}, with a 95 % CI for each head alone")
    axes.grid(axis="x", alpha=0.25)
    more = f"; the first {len(shown)} of {len(ranking)} heads" if len(ranking) > len(shown) else ""
    about = f"ranked by {result.ranked_by} ablation; {_about(result, condition)}{more}"
    figure.headline(f"{result.name or 'model'}: {result.metric} without each head", about, size=12)
    figure.key(*axes.get_legend_handles_labels(), title="ablated by", size=10)
    return figure


def _mark_borders(axes: Axes, result: Ablation, lowest_drop: float) -> None:
    """Give an axis of drops in points a symmetric log scale, and mark where heads become important and critical."""
    if result.unit != "points":
        return
    lowest = 100 * lowest_drop
    axes.set_xscale("symlog", linthresh=1, linscale=0.6)
    ticks = [tick for tick in (-50, -20, -10, -5, -2, -1) if tick >= lowest] + [0, 1, 2, 5, 10, 20, 50, 100]
    axes.set_xticks(ticks, list(map(str, ticks)))
    axes.minorticks_off()
    axes.set_xlim(min(-0.3, 1.2 * lowest), 105)
    banded = any(effect.band for effect in result.heads)
    for border, name in ((100 * IMPORTANT, "important"), (100 * CRITICAL, "critical")) if banded else ():
        axes.axvline(border, color=GREY, linewidth=0.9, linestyle="--")
        axes.text(border, -0.62, f" {name} →", fontsize=8, color=GREY, va="bottom")
    axes.axvline(0, color="black", linewidth=0.6)


def draw_map(result: Ablation, condition: AblationCondition) -> Figure:
    """Draw maps of drops, with a row per attention block and a column per head.

    There is one map for each kind of ablation and, if it was measured, one for gradient importance.
    """
    panels = []
    for replacement in result.replacements:
        effects = result.effects(replacement, condition.length)
        remeasured = {effect.head for effect in effects if is_remeasured(condition, effect)}
        drops = {effect.head: _scale(result) * effect.drop for effect in effects}
        panels.append((f"{replacement}: {drop_label(result)}", drops, remeasured))
    if condition.importances:
        gradients = {importance.head: importance.importance for importance in condition.importances}
        panels.append(("gradient: mean |dL/dg|", gradients, set()))
    heads = [HeadId.parse(effect.head) for effect in result.heads]
    sites, n_heads = list(dict.fromkeys(head.site for head in heads)), max(head.index for head in heads) + 1
    names = [[str(site.head(i)) for i in range(n_heads)] for site in sites]
    width = max(2.2, 0.56 * n_heads + 0.2)
    across = max(1, min(len(panels), int(BROADEST / width)))
    down = -(-len(panels) // across)
    figure = Page(width * across + 1.7, 0)
    titles = [wrapped(title, (figure.room - 1.6) / across, 9) for title, *_ in panels]
    lines = 1 + max(title.count("\n") for title in titles)
    figure.set_figheight((0.48 * len(sites) + 0.3 + 0.16 * lines) * down + 0.3)
    grid = list(figure.subplots(down, across, squeeze=False).flat)
    for axes in grid[len(panels) :]:
        axes.remove()
    for axes, title, (_, values, remeasured) in zip(grid, titles, panels, strict=False):
        _heat(axes, names, values, remeasured)
        axes.set_title(title, fontsize=9)
        axes.set_xticks(range(n_heads), [f"H{i}" for i in range(n_heads)], fontsize=8)
        axes.set_yticks(range(len(sites)), [f"{site} ({site.short})" for site in sites], fontsize=8)
        axes.label_outer()
    shades = "shade: fraction of the largest number of the panel; white: no drop"
    figure.headline(f"{result.name or 'model'}: {_about(result, condition)}; {shades}", size=10)
    return figure


def _heat(
    axes: Axes, names: Sequence[Sequence[str]], numbers: Mapping[str, float], remeasured: Collection[str]
) -> None:
    """Draw one heat map of heads with a number in each cell and a colour scale of its own.

    A dagger marks the heads that were measured again on other examples.
    """
    values = np.array([[numbers.get(name, np.nan) for name in row] for row in names])
    largest = max(float(np.nanmax(values)), 1e-12)

    def text(name: str) -> str:
        if name not in numbers:
            return ""
        number = f"{numbers[name]:z.1f}" if largest >= 1 else f"{numbers[name]:.1e}".replace("e-0", "e-")
        return f"{number}†" if name in remeasured else number

    axes.imshow(values.clip(min=0) / largest, vmin=0, vmax=1, cmap=SEQUENTIAL, aspect="auto")
    write_cells(axes, values / largest, [[text(name) for name in row] for row in names], size=9)


def draw_lengths(result: Ablation) -> Figure:
    """Draw the drop of every head against sequence length, with one panel per kind of ablation."""
    lengths = [condition.length for condition in result.conditions if condition.length is not None]
    heads = list(dict.fromkeys(effect.head for effect in result.heads))
    banded = {effect.length for effect in result.heads if effect.band}
    void = set(lengths) - banded if result.is_accuracy else set()  # there a drop of 0 would look harmless
    figure = Page(4.4 * len(result.replacements) + 0.6, 4.0)
    panels = figure.subplots(1, len(result.replacements), sharey=True, squeeze=False)[0]
    for axes, replacement in zip(panels, result.replacements, strict=True):
        for i, head in enumerate(heads):
            effects = [effect for length in lengths for effect in result.effects(replacement, length)]
            shown = [effect for effect in effects if effect.head == head and effect.length not in void]
            if not shown:
                continue
            x = [1.25 ** ((i - (len(heads) - 1) / 2) / len(heads)) * (effect.length or 1) for effect in shown]
            drops, doubt = _drops(result, shown)
            look = {"color": PALETTE[i % len(PALETTE)], "markersize": 4, "capsize": 2, "linewidth": 1.2}
            marks = MARKERS[i % len(MARKERS)] + ("-" if i < len(PALETTE) else "--")
            axes.errorbar(x, drops, yerr=doubt, fmt=marks, label=shown[0].short, **look)
        axes.set_xscale("log", base=2)
        axes.set_xlim(min(lengths) / 1.25, max(lengths) * 1.25)
        _name_lengths(axes, lengths, void)
        axes.set(title=plain(f"ablated by {replacement}"), xlabel="length (numbers)")
        axes.grid(alpha=0.25)
    panels[0].set_ylabel(f"{drop_label(result)}, with 95 % CI")
    figure.key(*panels[0].get_legend_handles_labels(), columns=12)
    clean = "; ".join(f"{each.length}: {clean_text(result, each)} (n = {each.n:,})" for each in result.conditions)
    figure.headline(
        f"{result.name or 'model'}: each head ablated alone, by length", f"clean {result.metric} at {clean}", size=10
    )
    return figure


def _name_lengths(axes: Axes, lengths: Sequence[int], void: Collection[int]) -> None:
    """Label the axis of lengths; labels that would overlap are turned, and those without room are left out.

    At the lengths in `void`, the model has nothing to lose, and the label says so.
    """
    labels = {n: f"{n}\n(nothing to lose)" if n in void else str(n) for n in sorted(lengths)}
    inches = 3.6 / math.log(1.25**2 * max(lengths) / min(lengths))
    widest = max(width_of(line, 8) for label in labels.values() for line in label.splitlines())
    turned = any(inches * math.log(b / a) < widest for a, b in pairwise(labels))
    last = 0.0
    for n in labels:
        if turned and last and inches * math.log(n / last) < (2 if n in void else 1) * LINE * 8:
            labels[n] = ""
        else:
            last = n
    axes.set_xticks(list(labels), list(labels.values()), fontsize=8, rotation=90 if turned else 0)
    axes.minorticks_off()


# --- labels -----------------------------------------------------------------------------------------------------------


def _scale(result: Ablation) -> float:
    """Return the factor by which a drop is multiplied to be shown: 100 for points, 1 for other units."""
    return 100.0 if result.unit == "points" else 1.0


def _drops(result: Ablation, effects: Sequence[Effect]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the drops of several heads, and how far their intervals extend below and above these drops."""
    scale = _scale(result)
    doubt = np.array([[scale * (e.drop - e.low), scale * (e.high - e.drop)] for e in effects]).T.clip(min=0)
    return np.array([scale * effect.drop for effect in effects]), doubt


def drop_label(result: Ablation) -> str:
    """Return the name of a drop with its unit, such as `drop (points)` or `rise of the loss (nats)`."""
    name = "rise of the loss" if result.unit == "nats" else "drop"
    is_share = result.is_accuracy or result.metric.startswith("own")  # an author's metric() gives 0 to 1
    hundredths = "hundredths of rho" if result.unit == "points" and not is_share else result.unit
    return f"{name} ({hundredths})" if result.unit else name


def _about(result: Ablation, condition: AblationCondition) -> str:
    """Return as text the score with all heads, the examples, and on how many of them heads were measured."""
    about = f"{clean_text(result, condition)} with all heads, n = {condition.n:,} ({condition.data})"
    if condition.stopping is not None:
        least, most = n_range(result, condition)
        return f"{about}; each head on {least:,} to {most:,} of them"
    return f"{about}; †: {condition.decided_on}" if condition.decided_on else about


def is_remeasured(condition: AblationCondition, effect: Effect) -> bool:
    """Return whether a head was measured again on other examples, which is done if its ablation changes an answer."""
    return condition.stopping is None and effect.n != condition.n


def n_range(result: Ablation, condition: AblationCondition) -> tuple[int, int]:
    """Return the smallest and the largest number of examples on which a head was ablated."""
    numbers = [effect.n for effect in result.heads if effect.length == condition.length]
    return min(numbers), max(numbers)


def clean_text(result: Ablation, condition: AblationCondition) -> str:
    """Return the score with all heads and its 95 % interval, as text."""
    return score_text(result, condition.clean, *condition.clean_interval)


def shown_score(result: Scored, score: float) -> float:
    """Return a score as it is shown: an accuracy in percent, a loss as a positive number, others unchanged."""
    return 100 * score if result.is_accuracy else -score if result.unit == "nats" else score


def score_text(result: Scored, score: float, low: float, high: float) -> str:
    """Return a score with its 95 % interval as text: `98.12 % [97.55, 98.60]`, or `0.2500 [0.2000, 0.3000]`."""
    digits, unit = (2, " %") if result.is_accuracy else (4, "")
    low, high = sorted(shown_score(result, end) for end in (low, high))
    return f"{fixed(shown_score(result, score), digits)}{unit} [{fixed(low, digits)}, {fixed(high, digits)}]"
