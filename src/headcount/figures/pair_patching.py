"""Draw how far the answer to one example changes if one head takes its output from another example (the donor)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from headcount.figures.style import BLUE, GREY, ORANGE, Page, plain
from headcount.heads import HeadId

if TYPE_CHECKING:
    from headcount.analysis.pair_patching import PairPatch

MOST = 16
"""Largest number of heads that the figure shows; it shows those with the largest shares of the logit gap."""


def draw_pair_patch(result: PairPatch) -> Figure:
    """Draw the share of the logit gap between two answers that each head closes when patched alone, the largest first.

    Heads that the user patched together are orange.
    """
    shown = sorted(result.ranking, key=lambda each: -abs(each.share))[:MOST]
    shown = sorted(shown, key=lambda each: -each.share)
    figure = Page(6.0, 0.8 + 0.24 * len(shown))
    axes = figure.subplots()
    names = [HeadId.parse(each.head).short for each in shown]
    colours = [ORANGE if each.head in result.heads else BLUE for each in shown]
    shares = [100 * each.share for each in shown]
    axes.barh(range(len(shown)), shares, color=colours)
    axes.set_yticks(range(len(shown)), names)
    axes.invert_yaxis()
    axes.axvline(0, color=GREY, linewidth=0.8)
    axes.axvline(100, color=GREY, linewidth=0.8, linestyle="--")
    place = result.places[0]
    axes.set_xlabel(f"logit gap closed, {plain(place.place, 16)} (%; 100: as on the donor)")
    figure.headline(f"{result.receiver} with the output of one head patched in from {result.donor}", size=11)
    figure.caption(f"{result.name}; one pair of examples; logit of {place.donor!r} minus logit of {place.own!r}.")
    return figure
