"""What do heads of different seeds have in common? Draw drops by block and layer, routes of an event, and rankings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from headcount.figures.strips import EXPLANATION, Panel, Strip, strip_figure
from headcount.figures.style import BLUE, LIGHT_GREY, ORANGE, Page, plain
from headcount.limits import SIGNIFICANT

if TYPE_CHECKING:
    from headcount.studies.head_findings import VariantFindings
    from headcount.studies.summary import Concordance

MOST_WAYS = 6
"""Largest number of routes of an event (such as the carry from 1s to 10s) that one figure shows."""


def draw_places(findings: VariantFindings) -> Figure:
    """Draw the largest drop of one head in each block and layer, with a mark for every run."""
    panels = []
    for level, title in (("site", "attention blocks"), ("layer", "layers")):
        places = findings.at(level)
        strips = [
            Strip(
                each.place,
                tuple(100 * drop for drop in each.drops),
                low=None if each.low is None else 100 * each.low,
                high=None if each.high is None else 100 * each.high,
                text=f"{each.counts.correct} of {each.counts.n}",
                look=i,
            )
            for i, each in enumerate(places)
        ]
        panels += [Panel(title, tuple(strips))] if strips else []
    label = f"largest drop of one head ({findings.replacement} ablation, points)"
    figure = strip_figure(panels, label, ends="matters in")
    figure.headline(f"Which attention blocks and layers matter? n = {findings.n_runs} runs")
    figure.caption(
        f"{EXPLANATION}. At the right: runs in which the whole 95 % CI of some head's drop lies above 1 point."
    )
    return figure


def draw_site_routes(findings: VariantFindings) -> Figure:
    """Draw the share of the event (a carry) that each attention block moves, one panel per route, one mark per run."""
    panels = []
    for way in list(dict.fromkeys(each.way for each in findings.routes))[:MOST_WAYS]:
        routes = [each for each in findings.routes if each.way == way]
        strips = [
            Strip(
                each.site,
                tuple(100 * share for share in each.shares),
                text=f"{each.leads.correct} of {each.leads.n}",
                look=i,
            )
            for i, each in enumerate(routes)
        ]
        panels.append(Panel(f"from {way.replace(' to ', ' into ')}", tuple(strips)))
    event = findings.routes[0].event
    figure = strip_figure(
        panels, f"share of the {event} that all heads of the block move (%)", row=0.24, ends="most in"
    )
    figure.headline(f"Which route does the {event} take?")
    figure.caption(
        "Each mark is one run; the black line is the median. At the right: number of runs in which this block moves "
        "the largest share."
    )
    return figure


def draw_agreement(concordances: Sequence[Concordance], names: Sequence[str]) -> Figure:
    """Draw Kendall's W of each kind of ranking as a bar, and the mean of W that random rankings would have."""
    figure = Page(6.0, 0.42 * len(concordances) + 0.6)
    axes = figure.subplots()
    for i, each in enumerate(concordances):
        axes.barh(i, each.w, height=0.55, color=BLUE if each.p < SIGNIFICANT else LIGHT_GREY)
        p = "p < 0.001" if each.p < 0.001 else f"p = {each.p:.2g}"
        axes.annotate(f"W = {each.w:.2f}, {p}", (1.04, i), va="center", fontsize=8.5)
        axes.plot([1 / each.n_runs] * 2, [i - 0.38, i + 0.38], color=ORANGE, linewidth=2)
    axes.set_yticks(range(len(concordances)), [plain(name, 40) for name in names], fontsize=9)
    axes.set_ylim(len(concordances) - 0.4, -0.6)
    axes.set_xlim(0, 1.45)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1])
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel("Kendall's W (0: no agreement, 1: the same ranking in every run)", fontsize=9)
    n = concordances[0].n_runs
    figure.headline(f"Which rankings agree over n = {n} runs?")
    figure.caption("Orange lines: the mean of W for random rankings. Grey bars are not significant (p ≥ 0.05).")
    return figure
