"""Sums that break without a head, with a carry in them and without one: what ablation adds to attention that moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headcount.bands import IMPORTANT, ranked_by
from headcount.describing.blocks import Sentence
from headcount.describing.words import amount, counted, percent, removed_alone, sentence, short, some, within
from headcount.stats import Proportion

if TYPE_CHECKING:
    from headcount.analysis.ablation import Ablation

NO_CARRY = "0"
"""The group of sums without one."""


@dataclass(frozen=True)
class Breaks:
    """Sums that break without one head, with and without a carry in them."""

    short: str
    carry: Proportion
    no_carry: Proportion
    """With intervals that hold for all heads at once (Bonferroni)."""
    n_decoded: int
    n_carry_errors: int
    """Decoded answers in which every wrong digit lost a carry or made one up; in older results, at most so many."""

    @property
    def is_for_carries(self) -> bool:
        """Whether sums with a carry break more often, by the intervals."""
        return self.carry.low > self.no_carry.high


def breaks_of(result: Ablation) -> list[Breaks]:
    """Return what breaks when each head is removed, or replaced otherwise if removal was not stored."""
    profiles = [each for condition in result.conditions[:1] for each in condition.failures]
    by = ranked_by([each.replacement for each in profiles]) if profiles else ""
    profiles = [each for each in profiles if each.replacement == by]
    found = []
    for each in profiles:
        groups = [group for group in each.groups if group.facet == "carries"]
        counts = [
            [
                sum(getattr(group, key) for group in groups if (group.group == NO_CARRY) is not has)
                for key in ("broken", "n")
            ]
            for has in (True, False)
        ]
        if all(n for _, n in counts):
            carry, without = (Proportion.of(broken, n, 1 - 0.05 / len(profiles)) for broken, n in counts)
            n_decoded, n_errors = each.faults[0].n if each.faults else 0, each.n_carry_errors
            if n_errors is None:
                n_errors = min(sum(fault.broken for fault in each.faults if "carry" in fault.group), n_decoded)
            found.append(Breaks(short(each.head), carry, without, n_decoded, n_errors))
    return sorted(found, key=lambda each: each.no_carry.rate - each.carry.rate)


def broken_sentences(breaks: list[Breaks], moving: list[str], rests_on: str) -> list[Sentence]:
    """Which heads sums with carries break without, and whether those are the heads whose attention a carry moves."""
    needed, told = [each.short for each in breaks if each.is_for_carries], most_broken(breaks)
    if not needed:
        text = f"Whether sums with a carry break more often than others without any head is undecided: {told}."
        return [Sentence(text, rests_on, is_decided=False)]
    more = f"sums with a carry break more often without {some(needed[1:])} too"
    parts = (told, more if len(needed) > 1 else "")
    first = Sentence(" ".join(filter(None, map(sentence, parts))), rests_on)
    return [first, *_agreement(moving, needed, rests_on)] if moving else [first]


def carry_error_sentences(breaks: list[Breaks], rests_on: str, most: int = 12) -> list[Sentence]:
    """Say without which heads the broken answers are carry errors, and without which others; name at most so many."""
    decoded = [each for each in breaks if each.n_decoded]
    if not decoded:
        return []
    shares = {
        each.short: Proportion.of(each.n_carry_errors, each.n_decoded, 1 - 0.05 / len(decoded)) for each in decoded
    }
    ordered = dict(sorted(shares.items(), key=lambda item: -item[1].rate))
    mostly = [f"{head} ({_counts(each)})" for head, each in ordered.items() if each.low > 0.5]
    rarely = [f"{head} ({_counts(each)})" for head, each in ordered.items() if each.high < 0.5]
    unsure = [head for head, each in ordered.items() if each.low <= 0.5 <= each.high]
    clauses = [
        *([f"mostly carry errors without {some(mostly, most)}"] if mostly else []),
        *([f"mostly other errors without {some(rarely, min(most, 4))}"] if rarely else []),
        *([f"undecided without {some(unsure, min(most, 6))}"] if unsure else []),
    ]
    meaning = "In a carry error every wrong digit lost a carry or made one up"
    how = f"up to 100 answers decoded for each head, 95 % intervals corrected for {counted(len(decoded), 'head')}"
    text = f"Whether broken answers are carry errors: {'; '.join(clauses)}. {meaning} ({how})."
    return [Sentence(text, rests_on, is_decided=bool(mostly or rarely))]


def _counts(found: Proportion) -> str:
    return f"{found.correct:,} of {found.n:,}"


def most_broken(breaks: list[Breaks]) -> str:
    """What breaks without the head that sums with a carry need most beyond others, in words without a full stop."""
    top = breaks[0]
    told = f"without {top.short}, {_broke(top.carry, 'with a carry')} and {_broke(top.no_carry, 'without one')}"
    return f"{told}, intervals corrected for {counted(len(breaks), 'head')}"


def _broke(found: Proportion, which: str) -> str:
    share = f"{percent(found.rate)}, {within(found.low, found.high)}"
    return f"{found.correct:,} of {found.n:,} sums {which} break ({share})"


def _agreement(moving: list[str], needed: list[str], rests_on: str) -> list[Sentence]:
    """Heads that respond to carries and that carries break without; then those of which only one of it is shown."""
    both = [name for name in moving if name in needed]
    only = [name for name in needed if name not in moving], [name for name in moving if name not in needed]
    told = []
    if only[0]:
        told.append(f"without {some(only[0])} such sums break more often, and attention there is not shown to move")
    if only[1]:
        told.append(f"a carry moves the attention of {some(only[1], 4)}, which such sums are not shown to need")
    rest = f" {sentence('; '.join(told))}" if told else ""
    if not both:
        text = "Attention and ablation agree on no head: none whose attention a carry moves is shown to be one without "
        return [Sentence(f"{text}which sums with a carry break more often.{rest}", rests_on, is_decided=False)]
    whose, them = ("its", "it") if len(both) == 1 else ("their", "them")
    text = (
        f"Attention and ablation agree on {some(both, 12)}: a carry moves {whose} attention, and without {them} sums "
    )
    return [Sentence(f"{text}with a carry break more often.{rest}", rests_on)]


def worth_sentence(moving: list[str], result: Ablation, rests_on: str) -> Sentence:
    """Where it is not known what breaks: how many of the heads that respond to carries the model needs at all."""
    first, length = result.ranked_by, result.conditions[0].length
    mine = {each.short: each for each in result.heads if (each.replacement, each.length) == (first, length)}
    found = [mine[name] for name in moving if name in mine]
    least = IMPORTANT if result.unit == "points" else 0.0
    limit, n = "over 1 point" if least else "something", min((each.n for each in found), default=0)
    how = f"{limit} {removed_alone(first)}, by the whole interval (n = {n:,} or more)"
    costly = [f"{each.short} ({amount(each.drop, result.unit)})" for each in found if each.low > least]
    of = f"{counted(len(found), 'head')} whose attention a carry moves"
    if not costly:
        text = f"Whether the model uses any of {of} is undecided: none costs {how}."
        return Sentence(text, rests_on, is_decided=False)
    verb, them = ("costs", "it") if len(costly) == 1 else ("cost", "them")
    text = f"Of {of}, {some(costly)} {verb} {how}: the model uses {them}, for carries or for something else."
    return Sentence(text, rests_on)
