"""Attention that a carry moves, in sentences: what heads respond to, which is not yet what the model uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scipy.special import stdtrit

from headcount.describing.blocks import Sentence
from headcount.describing.words import ONE_SEED, counted, interval, share, some
from headcount.figures.head_stats import sensitivities

if TYPE_CHECKING:
    from headcount.analysis.specialisation import Specialisation

WITH, WITHOUT = "carry in", "no carry in"
"""Conditions of addition."""


def sensitive(result: Specialisation) -> list[str]:
    """Heads whose attention moves with a carry, by the lower bound, the most first."""
    return [each.short for each in sensitivities(result) if each.low > 0]


def moved_sentence(title: str, result: Specialisation, rests_on: str) -> Sentence:
    """The most carry-sensitive head, who may be as much so, and how many are at all."""
    top, *others = sensitivities(result)
    n, moving = 1 + len(others), sensitive(result)
    doubt = f"{interval(top.low, top.high)}, corrected for {n} heads; n = {top.shift.n:,} contrasts"
    much = f"{100 * top.shift.mean:.1f} % of it, beyond what another digit moves ({doubt})"
    if not moving:
        text = f"Whether a carry moves the attention of any head of {title} is undecided, for none stands out: of the "
        return Sentence(f"{text}first, {top.short}, it moves {much}. {ONE_SEED}", rests_on, is_decided=False)
    text = f"A carry moves the attention of {len(moving)} of {counted(n, 'head')} of {title}, the most that of "
    rivals = [each.short for each in others if each.high >= top.low]
    last = f"{some(rivals)} may be moved as far" if rivals else "no other head is moved as far"
    return Sentence(f"{text}{top.short}: {much}; {last}. {ONE_SEED}", rests_on)


@dataclass(frozen=True)
class Change:
    """What one head gives to one target more where a carry comes in than where none does, over sums as they come."""

    short: str
    target: str
    carry: float
    no_carry: float
    mean: float
    low: float
    high: float
    """95 % interval that holds for all comparisons at once (Bonferroni)."""
    n: int


def changes(result: Specialisation) -> list[Change]:
    """Of every head and target, the largest difference first."""
    targets = dict.fromkeys(each.measure for head in result.heads for each in head.measures if each.even is not None)
    found = []
    for head in result.heads:
        for target in targets:
            carry, without, apart = (head.find(target, "all", each) for each in (WITH, WITHOUT, "difference"))
            if carry and without and apart:
                found.append((head.short, target, carry, without, apart))
    told = []
    for name, target, carry, without, apart in found:
        half = float(stdtrit(apart.n - 1, 1 - 0.025 / len(found))) * apart.se
        ends = apart.mean - half, apart.mean + half
        told.append(Change(name, target, carry.mean, without.mean, apart.mean, *ends, apart.n))
    return sorted(told, key=lambda each: -abs(each.mean))


def changed_sentence(result: Specialisation, rests_on: str) -> Sentence | None:
    """Where attention differs most between sums with and without a carry; correlation, for their digits differ too."""
    found = changes(result)
    if not found:
        return None
    top, n = found[0], sum(each.low > 0 or each.high < 0 for each in found)
    shares = f"{share(top.carry)} of its attention on the {top.target} where a carry comes in, {share(top.no_carry)}"
    doubt = f"{interval(top.low, top.high)}, corrected for {len(found)} comparisons; n = {top.n:,}"
    told = f"{top.short} has {shares} where none does (difference {100 * top.mean:+.1f} points, {doubt})"
    if top.low <= 0 <= top.high:
        text = (
            f"Whether any head attends otherwise where a carry comes in, over sums as they come, is undecided: {told}."
        )
        return Sentence(text, rests_on, is_decided=False)
    text = f"Over sums as they come, {told}; {n} of {len(found)} such comparisons differ. Sums with a carry have other "
    return Sentence(f"{text}digits too, so this is correlation.", rests_on)
