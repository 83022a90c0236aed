"""Heads and what happens inside an example, such as a carry: attention that responds to it, and answers that break.

The task names the event (`TaskWords.event`). Attention that moves is correlation; ablation shows what the model needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scipy.special import stdtrit

from headcount.bands import IMPORTANT, ranked_by
from headcount.describing.blocks import Sentence
from headcount.describing.leader import leader
from headcount.describing.words import (
    ONE_SEED,
    amount,
    counted,
    interval,
    percent,
    removed_alone,
    sentence,
    share,
    short,
    some,
)
from headcount.figures.head_stats import sensitivities
from headcount.stats import Proportion

if TYPE_CHECKING:
    from headcount.analysis.ablation import Ablation
    from headcount.analysis.specialisation import Specialisation
    from headcount.tasks.base import TaskWords


def event_name(words: TaskWords) -> str:
    """Return what the task calls its event."""
    assert words.event is not None, "asked about a task with an event"
    return words.event.name


# --- attention --------------------------------------------------------------------------------------------------------


def responding_heads(result: Specialisation) -> list[str]:
    """Return the heads whose attention responds to the event, by the lower bound, the most responsive first."""
    return [each.short for each in sensitivities(result) if each.low > 0]


def response_sentence(title: str, result: Specialisation, words: TaskWords, rests_on: str) -> Sentence:
    """Say which head responds most to the event, whether another head may respond as much, and how many respond."""
    first = leader(sensitivities(result), lambda each: (each.shift.mean, each.low, each.high), bound=0)
    top, n, event = first.top, 1 + len(first.others), event_name(words)
    doubt = f"{interval(top.low, top.high)} corrected for {n} heads, n = {top.shift.n:,} contrasts"
    moved = f"{percent(top.shift.mean)} of its attention more than another token does ({doubt})"
    if not first.is_shown:
        text = f"Whether any head of {title} responds to a {event} is undecided: a {event} moves {top.short} most, "
        return Sentence(f"{text}{moved}. {ONE_SEED}", rests_on, is_decided=False)
    n_responding = len(responding_heads(result))
    text = f"{n_responding} of {counted(n, 'head')} of {title} respond to a {event}, {top.short} most: "
    last = f"{some([each.short for each in first.rivals])} may respond as much" if first.rivals else ""
    last = last or "no other head responds as much"
    return Sentence(f"{text}the {event} moves {moved}; {last}. {ONE_SEED}", rests_on)


@dataclass(frozen=True)
class TargetDifference:
    """How much more attention one head gives to one target in examples with the event than in examples without it."""

    short: str
    target: str
    with_event: float
    without_event: float
    mean: float
    low: float
    high: float
    """95 % interval that holds for all comparisons at once (Bonferroni)."""
    n: int


def target_differences(result: Specialisation, words: TaskWords) -> list[TargetDifference]:
    """Return the difference for every head and target, the largest first."""
    assert words.event is not None, "asked about a task with an event"
    targets = dict.fromkeys(each.measure for head in result.heads for each in head.measures if each.even is not None)
    measured = []
    for head in result.heads:
        for target in targets:
            event, without, difference = (
                head.find(target, "all", each) for each in (*words.event.conditions, "difference")
            )
            if event and without and difference:
                measured.append((head.short, target, event.mean, without.mean, difference))
    differences = []
    for name, target, event_mean, without_mean, difference in measured:
        half = float(stdtrit(difference.n - 1, 1 - 0.025 / len(measured))) * difference.se
        ends = difference.mean - half, difference.mean + half
        differences.append(
            TargetDifference(name, target, event_mean, without_mean, difference.mean, *ends, difference.n)
        )
    return sorted(differences, key=lambda each: -abs(each.mean))


def difference_sentence(result: Specialisation, words: TaskWords, rests_on: str) -> Sentence | None:
    """Say where attention differs most between examples with and without the event; None if that was not measured."""
    differences, event = target_differences(result, words), event_name(words)
    if not differences:
        return None
    top, n = differences[0], sum(each.low > 0 or each.high < 0 for each in differences)
    shares = f"{share(top.with_event)} of its attention to the {top.target} when a {event} comes in and "
    shares += f"{share(top.without_event)} when none does"
    doubt = f"{interval(top.low, top.high)} corrected for {len(differences)} comparisons, n = {top.n:,}"
    clause = f"{top.short} gives {shares} (difference {100 * top.mean:+.1f} points, {doubt})"
    if top.low <= 0 <= top.high:
        text = (
            f"Over all {words.examples}, it is undecided whether any head attends elsewhere when a {event} comes in: "
        )
        return Sentence(f"{text}{clause}.", rests_on, is_decided=False)
    text = f"Over all {words.examples}, {clause}; {n} of {len(differences)} such comparisons differ. "
    return Sentence(f"{text}This is correlation: {words.examples} with a {event} also have other tokens.", rests_on)


# --- ablation ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Breaks:
    """Examples that break without one head, with the event in them and without it."""

    short: str
    with_event: Proportion
    without_event: Proportion
    """Both with intervals that hold for all heads at once (Bonferroni)."""
    n_decoded: int
    n_errors: int
    """Decoded answers that are wrong about the event and about nothing else."""

    @property
    def is_for_event(self) -> bool:
        """Return whether examples with the event break more often, by the intervals."""
        return self.with_event.low > self.without_event.high


def breaks_of(result: Ablation, words: TaskWords) -> list[Breaks]:
    """Return what breaks when each head is removed, or ablated otherwise if removal was not stored."""
    event = words.event
    assert event is not None, "asked about a task with an event"
    profiles = [each for condition in result.conditions[:1] for each in condition.failures]
    by = ranked_by([each.replacement for each in profiles]) if profiles else ""
    profiles = [each for each in profiles if each.replacement == by]
    breaks = []
    for profile in profiles:
        groups = [group for group in profile.groups if group.facet == event.facet]
        sides = [[each for each in groups if (each.group == event.absent) is not has] for has in (True, False)]
        counts = [(sum(each.broken for each in side), sum(each.n for each in side)) for side in sides]
        if all(n for _, n in counts):
            event_side, other_side = (Proportion.of(broken, n, 1 - 0.05 / len(profiles)) for broken, n in counts)
            n_decoded = profile.faults[0].n if profile.faults else 0
            breaks.append(Breaks(short(profile.head), event_side, other_side, n_decoded, profile.n_carry_errors or 0))
    return sorted(breaks, key=lambda each: each.without_event.rate - each.with_event.rate)


def broken_sentences(breaks: list[Breaks], responding: list[str], words: TaskWords, rests_on: str) -> list[Sentence]:
    """Say without which heads examples with the event break, and whether these heads respond to the event."""
    needed, first = [each.short for each in breaks if each.is_for_event], most_broken(breaks, words)
    which = f"{words.examples} with a {event_name(words)}"
    if not needed:
        text = f"It is undecided whether {which} break more often than others without any head: {first}."
        return [Sentence(text, rests_on, is_decided=False)]
    more = f"{which} also break more often without {some(needed[1:])}" if len(needed) > 1 else ""
    conclusion = Sentence(" ".join(filter(None, map(sentence, (first, more)))), rests_on)
    return [conclusion, *_agreement(responding, needed, words, rests_on)] if responding else [conclusion]


def error_sentences(breaks: list[Breaks], words: TaskWords, rests_on: str, most: int = 12) -> list[Sentence]:
    """Say without which heads the broken answers are errors about the event; name at most `most` heads."""
    decoded = [each for each in breaks if each.n_decoded]
    if not decoded or words.event is None:
        return []
    shares = {each.short: Proportion.of(each.n_errors, each.n_decoded, 1 - 0.05 / len(decoded)) for each in decoded}
    ordered = dict(sorted(shares.items(), key=lambda item: -item[1].rate))
    mostly = [f"{head} ({_counts(each)})" for head, each in ordered.items() if each.low > 0.5]
    rarely = [f"{head} ({_counts(each)})" for head, each in ordered.items() if each.high < 0.5]
    unsure = [head for head, each in ordered.items() if each.low <= 0.5 <= each.high]
    event = words.event.name
    clauses = [
        *([f"mostly {event} errors without {some(mostly, most)}"] if mostly else []),
        *([f"rarely {event} errors without {some(rarely, min(most, 4))}"] if rarely else []),
        *([f"undecided without {some(unsure, min(most, 6))}"] if unsure else []),
    ]
    how = f"up to 100 decoded answers for each head; 95 % CIs corrected for {counted(len(decoded), 'head')}"
    text = f"The broken answers are {'; '.join(clauses)} ({how}). In a {event} error {words.event.error}."
    return [Sentence(text, rests_on, is_decided=bool(mostly or rarely))]


def _counts(proportion: Proportion) -> str:
    return f"{proportion.correct:,} of {proportion.n:,}"


def most_broken(breaks: list[Breaks], words: TaskWords) -> str:
    """Say what breaks without the head that examples with the event need most; a clause without a full stop."""
    top, event = breaks[0], event_name(words)
    sides = (top.with_event, f"with a {event}"), (top.without_event, "without one")
    counts = " and ".join(
        f"{_counts(side)} {words.examples} {which} ({percent(side.rate)}, {interval(side.low, side.high)})"
        for side, which in sides
    )
    return f"without {top.short} the model breaks on {counts}, corrected for {counted(len(breaks), 'head')}"


def _agreement(responding: list[str], needed: list[str], words: TaskWords, rests_on: str) -> list[Sentence]:
    """Say on which heads attention and ablation agree, then which heads only one of the two points to."""
    event = event_name(words)
    which = f"{words.examples} with a {event}"
    both = [name for name in responding if name in needed]
    only_needed = [name for name in needed if name not in responding]
    only_responding = [name for name in responding if name not in needed]
    clauses = []
    if only_needed:
        clauses.append(f"{which} need {some(only_needed)}, whose attention is not shown to respond")
    if only_responding:
        clauses.append(f"{some(only_responding, 4)} respond to a {event}, and {which} are not shown to need them")
    rest = f" {sentence('; '.join(clauses))}" if clauses else ""
    if not both:
        text = (
            f"Attention and ablation agree on no head: no head that responds to a {event} is shown to be needed more "
        )
        return [Sentence(f"{text}by {which} than by others.{rest}", rests_on, is_decided=False)]
    text = f"Attention and ablation agree on {some(both, 12)}: attention responds to a {event}, and without "
    them = "it" if len(both) == 1 else "them"
    return [Sentence(f"{text}{them} {which} break more often than others.{rest}", rests_on)]


def cost_sentence(responding: list[str], result: Ablation, words: TaskWords, rests_on: str) -> Sentence:
    """Say how many of the responding heads the model needs at all, where it is not stored which examples break."""
    first, event = result.ranked_by, event_name(words)
    by_head = {each.short: each for each in result.effects(first, result.conditions[0].length)}
    effects = [by_head[name] for name in responding if name in by_head]
    least = IMPORTANT if result.unit == "points" else 0.0
    limit, n = "over 1 point" if least else "something", min((each.n for each in effects), default=0)
    how = f"{limit} {removed_alone(first)}, by the whole 95 % CI (n = {n:,} or more)"
    costly = [f"{each.short} ({amount(each.drop, result.unit)})" for each in effects if each.low > least]
    heads = f"{counted(len(effects), 'head')} that respond{'s' * (len(effects) == 1)} to a {event}"
    if not costly:
        text = f"It is undecided whether the model uses the {heads}: none costs {how}."
        return Sentence(text, rests_on, is_decided=False)
    verb, them = ("costs", "it") if len(costly) == 1 else ("cost", "them")
    text = f"Of the {heads}, {some(costly)} {verb} {how}: the model uses {them}, for the {event} or for something else."
    return Sentence(text, rests_on)
