"""Ours held against what five reports published, in sentences that ours can turn round."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headcount.bands import IMPORTANT
from headcount.describing.blocks import Sentence
from headcount.describing.published import LENGTHS, TOGETHER, adders, alike, sorters
from headcount.describing.reaches import named
from headcount.describing.story import Subject
from headcount.describing.words import amount, counted, interval, once, percent, rate, some
from headcount.heads import HeadId
from headcount.stats import Proportion

if TYPE_CHECKING:
    from headcount.analysis.ablation import Effect
    from headcount.analysis.pruning import Pruning

BY = "zero"
"""What the reports set heads to."""


def adder_sentences(subject: Subject, rests_on: str) -> list[Sentence]:
    """Accuracy, the costliest head, and what can go."""
    exact = getattr(subject.evaluation, "exact", None)
    found = []
    if exact is not None and exact.free_running is not None:
        found.append(_accuracy(subject, exact.free_running, rests_on))
    if top := costliest(subject, 2):
        found.append(_head(subject, top, rests_on))
    if subject.pruning is not None and subject.pruning.is_accuracy and subject.pruning.by_zero:
        found.append(_pruning(subject, subject.pruning, rests_on))
    return found


def costliest(subject: Subject, most: int) -> list[Effect]:
    """By zero, the first condition; nothing if that was not tried, or the unit is not points."""
    result = subject.ablation
    if result is None or result.unit != "points":
        return []
    mine = [each for each in result.heads if (each.replacement, each.length) == (BY, result.conditions[0].length)]
    return sorted(mine, key=lambda each: -each.drop)[:most]


def _accuracy(subject: Subject, ours: Proportion, rests_on: str) -> Sentence:
    """Answers that models wrote by themselves, ours and theirs."""
    theirs = {each.report: each.generated for each in adders() if each.generated is not None}
    told = some([f"{percent(share)} ({name})" for name, share in theirs.items()])
    text = (
        f"Writing its answers by itself, {subject.title} ({once(subject.settings)}) is right in {rate(ours)}; reports "
    )
    text += f"that let theirs write have {told}: ours is "
    within = [name for name, share in theirs.items() if ours.low <= share <= ours.high]
    if within:
        return Sentence(f"{text}the same as {some(within)}, by its interval.", rests_on)
    above = [name for name, share in theirs.items() if ours.low > share]
    if len(above) == len(theirs):
        return Sentence(f"{text}above both.", rests_on)
    return Sentence(f"{text}{f'above {some(above)} alone' if above else 'below both'}.", rests_on)


def _head(subject: Subject, top: list[Effect], rests_on: str) -> Sentence:
    """Whether reports found the head that costs most in the same place."""
    first, theirs = top[0], {each.report: each.costliest for each in adders() if each.costliest}
    reports = {head: [name for name, each in theirs.items() if each == head] for head in theirs.values() if head}
    told = some([f"{head} ({some(names)})" for head, names in reports.items()])
    cost = f"{amount(first.drop, 'points')} ({interval(first.low, first.high)}; n = {first.n:,})"
    if (len(top) > 1 and top[1].rank_low == 1) or first.low <= 0:
        text = f"Which head costs most in {subject.title} is undecided: {first.short} comes first with {cost}, but "
        return Sentence(f"{text}others may cost as much; the reports name {told}.", rests_on, is_decided=False)
    own = HeadId.parse(first.head).site
    sites = {name: HeadId.parse(head).site for name, head in theirs.items() if head}
    kind = [name for name, site in sites.items() if (site.stack, site.kind) == (own.stack, own.kind)]
    layer = [name for name, site in sites.items() if site.layer == own.layer]
    text = f"Removing {first.short} costs most in {subject.title} ({once(subject.settings)}): {cost}; the reports "
    where = (
        f"{len(kind) or 'none'} of {len(sites)} in the same kind of attention, {len(layer) or 'none'} in the same layer"
    )
    return Sentence(f"{text}name {told}: {where}.", rests_on)


def _pruning(subject: Subject, ours: Pruning, rests_on: str) -> Sentence:
    """What the reports' way of counting comes to when heads go together."""
    shares = [share for each in adders() for share in each.prunable]
    n, left, lost = len(ours.by_zero), ours.by_zero_left, ours.by_zero_left.drop
    text = f"The reports call {percent(min(shares))} to {percent(max(shares))} of heads prunable, each tried alone; in "
    text += f"{subject.title} that would be {n} of {counted(ours.n_heads, 'head')} ({percent(n / ours.n_heads)}). "
    left_over = f"{percent(left.score)} ({interval(left.low, left.high)}; n = {ours.n:,})"
    text += f"Removed together they leave {left_over} of {percent(ours.clean)}: "
    if lost is not None and lost.high < IMPORTANT:
        return Sentence(f"{text}here they can go together ({once(subject.settings)}).", rests_on)
    if lost is None or lost.low <= IMPORTANT:
        text += "whether they can go for under 1 point is undecided"
        return Sentence(f"{text} ({once(subject.settings)}).", rests_on, is_decided=False)
    found = some([f"those of {name} leave {percent(share)}" for name, share in TOGETHER.items()])
    return Sentence(f"{text}these {n} cannot go together ({once(subject.settings)}; {found}).", rests_on)


def sorter_sentences(subject: Subject, rests_on: str) -> list[Sentence]:
    """At the longest length that all have, on the reports' own kind of negatives: who agrees with ours?"""
    result = subject.stretch
    assert result is not None, "asked of models that were stretched"
    cells = [cell for cell in result.cells if cell.negative == "shuffle" and cell.length in LENGTHS]
    cells = cells or [cell for cell in result.cells if cell.negative == "transpositions" and cell.length in LENGTHS]
    if not cells:
        return []
    cell = max(cells, key=lambda each: each.length)
    ours = Proportion.of(round(cell.accuracy * cell.n), cell.n)
    theirs = [(each.report, each.right[cell.length]) for each in sorters() if each.encoding == result.encoding]
    same, others = alike(ours, theirs)
    known = "" if result.encoding in subject.title else f"{result.encoding}, "
    who = f"{subject.title} ({known}{once(subject.settings)})"
    text = f"On {named(cell.negative)} of {cell.length}, {who} is right in {rate(ours)}"
    text += f", answering “{cell.constant_class}” to everything" if cell.constant else ""
    agrees = f"the interval overlaps that of report {some(same)}" if same else "no report's interval overlaps that"
    shares = dict(theirs)
    apart = some([f"{name} ({percent(shares[name].rate)})" for name in others])
    against = f", not that of {apart}" if others and same else ""
    return [Sentence(f"{text}; {agrees}{against}.", rests_on)]
