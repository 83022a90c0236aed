"""Sentences that compare our models with the figures of five published reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headcount.bands import IMPORTANT
from headcount.describing.blocks import Sentence
from headcount.describing.extrapolation import kind_words
from headcount.describing.report import ModelResults
from headcount.describing.words import amount, counted, interval, once, percent, rate, some
from headcount.exercise.published import LENGTHS, TOGETHER, adders, overlapping, sorters
from headcount.heads import HeadId
from headcount.stats import Proportion

if TYPE_CHECKING:
    from headcount.analysis.ablation import Effect
    from headcount.analysis.pruning import Pruning

BY = "zero"
"""The replacement that the reports use."""


def adder_sentences(model: ModelResults, rests_on: str) -> list[Sentence]:
    """Return sentences on accuracy, on the most important head and on prunable heads."""
    exact = getattr(model.evaluation, "exact", None)
    sentences = []
    if exact is not None and exact.free_running is not None:
        sentences.append(_accuracy(model, exact.free_running, rests_on))
    if top := costliest(model, 2):
        sentences.append(_head(model, top, rests_on))
    if model.pruning is not None and model.pruning.is_accuracy and model.pruning.by_zero:
        sentences.append(_pruning(model, model.pruning, rests_on))
    return sentences


def costliest(model: ModelResults, most: int) -> list[Effect]:
    """Return the heads with the largest drops under zero ablation; none if drops are not measured in points."""
    result = model.ablation
    if result is None or result.unit != "points":
        return []
    effects = result.effects(BY, result.conditions[0].length)
    return sorted(effects, key=lambda effect: -effect.drop)[:most]


def _accuracy(model: ModelResults, ours: Proportion, rests_on: str) -> Sentence:
    """Return a sentence that compares the exact match of our model with that of the reports."""
    theirs = {each.report: each.generated for each in adders() if each.generated is not None}
    shares = some([f"{percent(share)} ({name})" for name, share in theirs.items()])
    text = f"Decoding its answers itself, {model.title} ({once(model.settings)}) is right in {rate(ours)}. The reports "
    text += f"that measured this have {shares}: ours is "
    within = [name for name, share in theirs.items() if ours.low <= share <= ours.high]
    if within:
        return Sentence(f"{text}the same as {some(within)}, by its interval.", rests_on)
    above = [name for name, share in theirs.items() if ours.low > share]
    if len(above) == len(theirs):
        return Sentence(f"{text}above both.", rests_on)
    return Sentence(f"{text}{f'above {some(above)} alone' if above else 'below both'}.", rests_on)


def _head(model: ModelResults, top: list[Effect], rests_on: str) -> Sentence:
    """Return a sentence on whether the reports name the same most important head."""
    first, theirs = top[0], {each.report: each.costliest for each in adders() if each.costliest}
    reports = {head: [name for name, each in theirs.items() if each == head] for head in theirs.values() if head}
    named = some([f"{head} ({some(names)})" for head, names in reports.items()])
    cost = f"{amount(first.drop, 'points')} ({interval(first.low, first.high)}; n = {first.n:,})"
    if (len(top) > 1 and top[1].rank_low == 1) or first.low <= 0:
        text = f"The most important head of {model.title} is undecided: {first.short} comes first with {cost}, but "
        return Sentence(f"{text}others may cost as much. The reports name {named}.", rests_on, is_decided=False)
    own = HeadId.parse(first.head).site
    sites = {name: HeadId.parse(head).site for name, head in theirs.items() if head}
    kind = [name for name, site in sites.items() if (site.stack, site.kind) == (own.stack, own.kind)]
    layer = [name for name, site in sites.items() if site.layer == own.layer]
    text = f"Removing {first.short} costs most in {model.title} ({once(model.settings)}): {cost}. The reports "
    where = (
        f"{len(kind) or 'none'} of {len(sites)} in the same kind of attention, {len(layer) or 'none'} in the same layer"
    )
    return Sentence(f"{text}name {named}: {where}.", rests_on)


def _pruning(model: ModelResults, ours: Pruning, rests_on: str) -> Sentence:
    """Return a sentence on the accuracy that is left when all heads that are prunable alone are removed."""
    shares = [share for each in adders() for share in each.prunable]
    n, left, lost = len(ours.by_zero), ours.by_zero_left, ours.by_zero_left.drop
    text = (
        f"The reports call {percent(min(shares))} to {percent(max(shares))} of heads prunable, removing one at a time. "
    )
    text += f"In {model.title} that would be {n} of {counted(ours.n_heads, 'head')} ({percent(n / ours.n_heads)}). "
    left_over = f"{percent(left.score)} ({interval(left.low, left.high)}; n = {ours.n:,})"
    text += f"Removed together they leave {left_over} of {percent(ours.clean)}: "
    if lost is not None and lost.high < IMPORTANT:
        return Sentence(f"{text}here, they can be removed together ({once(model.settings)}).", rests_on)
    if lost is None or lost.low <= IMPORTANT:
        text += "whether this costs under 1 point is undecided"
        return Sentence(f"{text} ({once(model.settings)}).", rests_on, is_decided=False)
    others = some([f"those of {name} leave {percent(share)}" for name, share in TOGETHER.items()])
    return Sentence(f"{text}these {n} cannot be removed together ({once(model.settings)}; {others}).", rests_on)


def sorter_sentences(model: ModelResults, rests_on: str) -> list[Sentence]:
    """Return a sentence that compares accuracy at the longest shared length, on the reports' kind of negatives."""
    result = model.stretch
    assert result is not None, "only models with a stretch are passed here"
    cells = [cell for cell in result.cells if cell.negative == "shuffle" and cell.length in LENGTHS]
    cells = cells or [cell for cell in result.cells if cell.negative == "transpositions" and cell.length in LENGTHS]
    if not cells:
        return []
    cell = max(cells, key=lambda each: each.length)
    ours = Proportion.of(round(cell.accuracy * cell.n), cell.n)
    theirs = [(each.report, each.right[cell.length]) for each in sorters() if each.encoding == result.encoding]
    same, others = overlapping(ours, theirs)
    known = "" if result.encoding in model.title else f"{result.encoding}, "
    who = f"{model.title} ({known}{once(model.settings)})"
    text = f"On {kind_words(cell.negative)} of {cell.length}, {who} is right in {rate(ours)}"
    text += f", answering “{cell.constant_class}” to everything" if cell.constant else ""
    agrees = f"the interval overlaps that of report {some(same)}" if same else "no report's interval overlaps ours"
    shares = dict(theirs)
    apart = some([f"{name} ({percent(shares[name].rate)})" for name in others])
    against = f", not that of {apart}" if others and same else ""
    return [Sentence(f"{text}; {agrees}{against}.", rests_on)]
