"""Which heads handle the carry? Describe heads whose attention responds to it, and answers that break without a head.

A carry is an event inside an example. Each task that names such an event (`TaskWords.event`) gets this section.
A response of attention is correlation; ablation shows what the model needs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headcount.bands import IMPORTANT, limit_text, ranked_by
from headcount.describing.blocks import (
    Block,
    Cell,
    Commands,
    Conclusions,
    DataTable,
    Paragraph,
    Picture,
    Row,
    Section,
    Sentence,
)
from headcount.describing.leader import leader
from headcount.describing.report import ModelResults, ReportResults
from headcount.describing.words import (
    ONE_SEED,
    amount,
    bracketed,
    briefly,
    counted,
    interval,
    number,
    percent,
    removed_alone,
    sentence,
    share,
    short,
    some,
)
from headcount.errors import argument
from headcount.figures.specialisation import draw_sensitivity, sensitivities
from headcount.limits import SIGNIFICANT
from headcount.stats import Proportion
from headcount.tasks import words_of
from headcount.tasks.base import TaskWords

if TYPE_CHECKING:
    from headcount.analysis.ablation import Ablation
    from headcount.analysis.specialisation import Specialisation


def event_name(words: TaskWords) -> str:
    """Return the task's name for its event, such as `carry`: something that only some of the examples contain."""
    assert words.event is not None, "asked about a task with an event"
    return words.event.name


# --- attention --------------------------------------------------------------------------------------------------------


def responding_heads(result: Specialisation) -> list[str]:
    """Return the short names of heads whose attention responds to the event (a carry), the most responsive first.

    A head responds if changing a token moves significantly more of its attention when that causes the event.
    """
    return [each.short for each in sensitivities(result) if each.low > 0]


def response_sentence(title: str, result: Specialisation, words: TaskWords, rests_on: str) -> Sentence:
    """Return a sentence on how many heads respond to the event (a carry) with their attention, and which one most."""
    first = leader(sensitivities(result), lambda each: (each.shift.mean, each.low, each.high), bound=0)
    top, n, event = first.top, 1 + len(first.others), event_name(words)
    doubt = f"{interval(top.low, top.high)} corrected for {n} heads, n = {top.shift.n:,}"
    moved = f"changing one token moves {number(100 * top.shift.mean)} percentage points more of its attention if that "
    moved += f"change makes a {event} ({doubt})"
    if not first.is_shown:
        text = f"It is undecided whether the attention of any head of {title} responds to a {event}. {top.short} "
        text += "responds most: "
        return Sentence(f"{text}{moved}. {ONE_SEED}", rests_on, is_decided=False)
    n_responding = len(responding_heads(result))
    text = f"{n_responding} of {counted(n, 'head')} of {title} respond to a {event}, {top.short} most: "
    last = f"{some([each.short for each in first.rivals])} may respond as much" if first.rivals else ""
    last = last or "no other head responds as much"
    return Sentence(f"{text}{moved}; {last}. {ONE_SEED}", rests_on)


@dataclass(frozen=True)
class TargetDifference:
    """How much more attention a head gives to a kind of key in examples with the event (a carry) than in others."""

    short: str
    target: str
    with_event: float
    without_event: float
    mean: float
    low: float
    high: float
    """Upper end of the 95 % CI of `mean`; `low` and `high` are Bonferroni-corrected for the number of comparisons."""
    n: int


def target_differences(result: Specialisation, words: TaskWords) -> list[TargetDifference]:
    """Return the difference in attention with and without the event (a carry), for every head and kind of key.

    The largest differences come first.
    """
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
        half = difference.half(1 - SIGNIFICANT / len(measured))
        ends = difference.mean - half, difference.mean + half
        differences.append(
            TargetDifference(name, target, event_mean, without_mean, difference.mean, *ends, difference.n)
        )
    return sorted(differences, key=lambda each: -abs(each.mean))


def difference_sentence(result: Specialisation, words: TaskWords, rests_on: str) -> Sentence | None:
    """Return a sentence on the head whose attention differs most between examples with and without the event (a carry).

    Return None if such differences were not measured.
    """
    differences, event = target_differences(result, words), event_name(words)
    if not differences:
        return None
    top, n = differences[0], sum(each.low > 0 or each.high < 0 for each in differences)
    shares = f"{share(top.with_event)} of its attention to the {top.target} when a {event} comes in and "
    shares += f"{share(top.without_event)} when none does"
    doubt = f"{interval(top.low, top.high)} corrected for {len(differences)} comparisons, n = {top.n:,}"
    clause = f"{top.short} gives {shares} (difference {100 * top.mean:+.1f} points, {doubt})"
    if top.low <= 0 <= top.high:
        text = f"Over all {words.examples}, it is undecided whether a {event} changes the attention of any head"
        return Sentence(f"{text}: {clause}.", rests_on, is_decided=False)
    text = f"Over all {words.examples}, {clause}. In {n} of {len(differences)} such comparisons, the difference is "
    text += f"significant. This is correlation, because {words.examples} with a {event} also differ in their tokens."
    return Sentence(text, rests_on)


# --- ablation ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Breaks:
    """How often answers turn from right to wrong when one head is ablated, with and without the event (a carry)."""

    short: str
    with_event: Proportion
    without_event: Proportion
    """Fraction of examples without the event (a carry) whose answers break, with a CI corrected for all heads."""
    n_decoded: int
    n_errors: int
    """Number of decoded answers in which every error is about the event, such as a carry that was lost."""

    @property
    def is_for_event(self) -> bool:
        """Return whether examples with the event (a carry) break more often than others, as the intervals are apart."""
        return self.with_event.low > self.without_event.high


def breaks_of(result: Ablation, words: TaskWords) -> list[Breaks]:
    """Return how often answers break (turn from right to wrong) when each head is ablated alone.

    Zero ablation is used if it was stored, otherwise another kind of ablation.
    """
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
            event_side, other_side = (Proportion.of(broken, n, 1 - SIGNIFICANT / len(profiles)) for broken, n in counts)
            n_decoded = profile.faults[0].n if profile.faults else 0
            breaks.append(Breaks(short(profile.head), event_side, other_side, n_decoded, profile.n_event_errors or 0))
    return sorted(breaks, key=lambda each: each.without_event.rate - each.with_event.rate)


def broken_sentences(breaks: list[Breaks], responding: list[str], words: TaskWords, rests_on: str) -> list[Sentence]:
    """Return sentences on heads without which examples with the event (a carry) break more often than others.

    `responding` are the heads whose attention responds to the event; a sentence compares them with these heads.
    """
    needed, first = [each.short for each in breaks if each.is_for_event], most_broken(breaks, words)
    which = f"{words.examples} with a {event_name(words)}"
    if not needed:
        text = f"It is undecided whether {which} break more often than others without some head: {first}."
        return [Sentence(text, rests_on, is_decided=False)]
    more = f"{which} also break more often than others without {some(needed[1:])}" if len(needed) > 1 else ""
    conclusion = Sentence(" ".join(filter(None, map(sentence, (first, more)))), rests_on)
    return [conclusion, *_agreement(responding, needed, words, rests_on)] if responding else [conclusion]


def error_sentences(breaks: list[Breaks], words: TaskWords, rests_on: str, most: int = 12) -> list[Sentence]:
    """Return a sentence on heads without which most broken answers are errors about the event, such as lost carries.

    It names at most `most` heads.
    """
    decoded = [each for each in breaks if each.n_decoded]
    if not decoded or words.event is None:
        return []
    shares = {
        each.short: Proportion.of(each.n_errors, each.n_decoded, 1 - SIGNIFICANT / len(decoded)) for each in decoded
    }
    ordered = dict(sorted(shares.items(), key=lambda item: -item[1].rate))
    mostly = [f"{head} ({_counts(each)})" for head, each in ordered.items() if each.low > 0.5]
    rarely = [f"{head} ({_counts(each)})" for head, each in ordered.items() if each.high < 0.5]
    unsure = [head for head, each in ordered.items() if each.low <= 0.5 <= each.high]
    event = words.event.name
    errors, clauses = f"{event} errors are", list[str]()
    if mostly:
        clauses.append(f"{errors} the majority of broken answers without {some(mostly, most)}")
    if rarely:
        few = "the minority" if mostly else f"{errors} the minority of broken answers"
        clauses.append(f"{few} without {some(rarely, min(most, 4))}")
    if unsure:
        whether = "" if mostly or rarely else f" whether {errors} the majority of broken answers"
        clauses.append(f"it is undecided{whether} without {some(unsure, min(most, 6))}")
    how = f"up to 100 answers per head; 95 % CIs corrected for {counted(len(decoded), 'head')}"
    text = sentence(f"{'; '.join(clauses)} ({how})")
    text += f" In a {event} error, {words.event.error}."
    return [Sentence(text, rests_on, is_decided=bool(mostly or rarely))]


def _counts(proportion: Proportion) -> str:
    return f"{proportion.correct:,} of {proportion.n:,}"


def most_broken(breaks: list[Breaks], words: TaskWords) -> str:
    """Return a clause on how many answers break without the head that examples with the event (a carry) need most."""
    top, event = breaks[0], event_name(words)
    sides = (top.with_event, f"with a {event}"), (top.without_event, "without one")
    counts = " and ".join(
        f"{_counts(side)} {words.examples} {which} ({percent(side.rate)}, {interval(side.low, side.high)})"
        for side, which in sides
    )
    doubt = f"95 % CI corrected for {counted(len(breaks), 'head')}"
    return f"without {top.short}, the answers to {counts} become wrong ({doubt})"


def _agreement(responding: list[str], needed: list[str], words: TaskWords, rests_on: str) -> list[Sentence]:
    """Return sentences on heads that both respond to the event (a carry) and are needed for it, and on the others.

    `responding` are heads whose attention responds to the event, `needed` those without which its answers break.
    """
    event = event_name(words)
    which = f"{words.examples} with a {event}"
    both = [name for name in responding if name in needed]
    only_needed = [name for name in needed if name not in responding]
    only_responding = [name for name in responding if name not in needed]
    clauses = []
    if only_needed:
        clauses.append(f"{which} need {some(only_needed)}, whose attention is not shown to respond to it")
    if only_responding:
        clauses.append(f"{some(only_responding, 4)} respond to a {event}, and {which} are not shown to need them")
    rest = f" {sentence('; '.join(clauses))}" if clauses else ""
    if not both:
        text = f"Attention and ablation agree on no head: no head that responds to a {event} is shown to be needed "
        return [Sentence(f"{text}more by {which} than by others.{rest}", rests_on, is_decided=False)]
    text = f"Attention and ablation agree on {some(both, 12)}: attention responds to a {event}, and without "
    them = "it" if len(both) == 1 else "them"
    return [Sentence(f"{text}{them} {which} break more often than others.{rest}", rests_on)]


def cost_sentence(responding: list[str], result: Ablation, words: TaskWords, rests_on: str) -> Sentence:
    """Return a sentence on how many of the heads that respond to the event (a carry) cost accuracy when ablated.

    It is used if the ablation does not store which examples break.
    """
    first, event = result.ranked_by, event_name(words)
    by_head = {each.short: each for each in result.effects(first, result.conditions[0].length)}
    effects = [by_head[name] for name in responding if name in by_head]
    least = IMPORTANT if result.unit == "points" else 0.0
    limit, n = f"over {limit_text(IMPORTANT)}" if least else "more than 0", min((each.n for each in effects), default=0)
    how = f"{limit} {removed_alone(first)}, by the whole 95 % CI (n = {n:,} or more)"
    costly = [f"{each.short} ({amount(each.drop, result.unit)})" for each in effects if each.low > least]
    heads = f"{counted(len(effects), 'head')} that respond{'s' * (len(effects) == 1)} to a {event}"
    if not costly:
        text = f"It is undecided whether the model uses the {heads}: none costs {how}."
        return Sentence(text, rests_on, is_decided=False)
    verb, them = ("costs", "it") if len(costly) == 1 else ("cost", "them")
    text = f"Of the {heads}, {some(costly)} {verb} {how}. So the model uses {them}, for the {event} or for something "
    text += "else."
    return Sentence(text, rests_on)


# --- the section of a report ------------------------------------------------------------------------------------------

SMALLEST_SHOWN = 0.0005
"""Smallest difference that the table does not print as 0.0 points."""


def section(results: ReportResults) -> Section | None:
    """Return the section on the heads that handle the task's event, such as a carry; None if that was not measured."""
    blocks, answers, title = list[Block](), list[Sentence](), ""
    for model_results in results.models:
        words = words_of(model_results.task)
        if words.event is None or not (_is_contrasted(model_results) or _breaks(model_results, words)):
            continue
        if not title:
            title = words.event.question
            blocks.append(_explanation(words, is_contrasted=_is_contrasted(model_results)))
        name = results.block_id("events", model_results)
        sentences = conclusions(model_results, words, name)
        answers.append(_answer(model_results, words, sentences[0]))
        blocks += [Conclusions(tuple(sentences)), *_shown(model_results, words, name)]
    return Section("events", title, tuple(blocks), answers[0]) if answers else None


def _explanation(words: TaskWords, *, is_contrasted: bool) -> Paragraph:
    assert words.event is not None, "asked about a task with an event"
    event = words.event.name
    contrast = (
        f"{words.event.contrast} A head responds to the {event} if its attention changes more in the first pair. "
        "That is correlation, not proof that the model uses what the head reads. "
    )
    ablation = (
        f"Ablation shows which {words.examples} break without a head: the whole model answers them right, and the "
    )
    return Paragraph(f"{contrast if is_contrasted else ''}{ablation}model without the head answers them wrong.")


def conclusions(model_results: ModelResults, words: TaskWords, rests_on: str) -> list[Sentence]:
    """Return sentences on heads whose attention responds to the event (a carry), and on heads that it depends on."""
    sentences: list[Sentence | None] = []
    responding: list[str] = []
    breaks = _breaks(model_results, words)
    if model_results.stats is not None and _is_contrasted(model_results):
        responding = responding_heads(model_results.stats)
        sentences.append(response_sentence(model_results.title, model_results.stats, words, rests_on))
        sentences.append(difference_sentence(model_results.stats, words, rests_on))
    if breaks:
        sentences += broken_sentences(breaks, responding, words, rests_on)
        sentences += error_sentences(breaks, words, rests_on)
    elif responding and model_results.ablation is not None:
        sentences.append(cost_sentence(responding, model_results.ablation, words, rests_on))
    return [each for each in sentences if each is not None]


def _answer(model_results: ModelResults, words: TaskWords, first: Sentence) -> Sentence:
    """Return one sentence on how attention responds to the event (a carry), and which answers break without a head."""
    breaks, text = _breaks(model_results, words), first.text.removesuffix(ONE_SEED).rstrip(". ")
    if _is_contrasted(model_results) and breaks and breaks[0].is_for_event:
        text += f"; {most_broken(breaks, words)}"
    return replace(first, text=briefly(text, model_results.settings))


def _is_contrasted(model_results: ModelResults) -> bool:
    """Return whether it was measured how the attention of a model's heads responds to the event (a carry)."""
    return model_results.stats is not None and bool(sensitivities(model_results.stats))


def _breaks(model_results: ModelResults, words: TaskWords) -> list[Breaks]:
    return [] if model_results.ablation is None else breaks_of(model_results.ablation, words)


# --- figure and table -------------------------------------------------------------------------------------------------


def _shown(model_results: ModelResults, words: TaskWords, name: str) -> list[Block]:
    """Return the figure on how attention responds to the event (a carry), and the table of heads.

    If it is not stored which examples break without a head, the command that measures it follows.
    """
    model, event, result = argument(model_results.name), event_name(words), model_results.stats
    blocks: list[Block] = []
    if result is not None and _is_contrasted(model_results):
        heads = some([f"{each.short} {each.shift.mean:.2f}" for each in sensitivities(result)], 8)
        caption = f"How much more the attention of each head of {model_results.title} changes if a changed token makes "
        caption += f"a {event}"
        command = f"headcount heads {model} --stats"
        blocks.append(Picture(f"{name}-moved", caption, f"Most: {heads}.", lambda: draw_sensitivity(result), command))
    blocks.append(_table(model_results, words, name))
    if not _breaks(model_results, words):
        text = f"It is not stored which {words.examples} break without a head of {model_results.title}. To measure it:"
        blocks.append(Commands((f"headcount ablate {model} --examples",), text))
    return blocks


def _table(model_results: ModelResults, words: TaskWords, name: str) -> DataTable:
    """Return a table with a row per head: its response to the event (a carry), and what breaks without this head."""
    assert words.event is not None, "asked about a task with an event"
    event, stats = words.event.name, model_results.stats
    responses = {} if stats is None else {each.short: each for each in sensitivities(stats)}
    largest = {} if stats is None else {each.short: each for each in reversed(target_differences(stats, words))}
    breaks = {each.short: each for each in _breaks(model_results, words)}
    rows = list[Row]()
    for head in dict.fromkeys((*responses, *breaks)):
        cells = [Cell("")] * 4
        if response := responses.get(head):
            shift, is_sure = response.shift, response.low > 0 or response.high < 0
            text = bracketed(shift.mean, response.low, response.high, scale=1, digits=3)
            cells = [Cell(f"{shift.beside:.3f}", shift.beside), Cell(f"{shift.across:.3f}", shift.across)]
            cells += [Cell(text, shift.mean, "strong" if is_sure else ""), Cell(f"{shift.n:,}", shift.n)]
        rows.append((head, *cells, _difference_cell(largest.get(head)), *_broken_cells(breaks.get(head))))
    largest_change = f"largest change with a {event} (points)"
    changes = f"moved without a {event}", f"moved with a {event}", "difference"
    moved = (*changes, "n", largest_change)
    broken = (f"broken with a {event}", f"broken without a {event}", f"{event} errors") if breaks else ()
    columns = ("head", *moved, *broken)
    note = (
        "Moved: the share of attention that moves to other keys (total variation) when one token changes, without or "
    )
    note += f"with a {event}. 95 % CIs hold for all heads at once; bold if 0 lies outside the CI."
    note += f" {event.capitalize()} errors: broken answers in which {words.event.error}." if breaks else ""
    command = f"headcount heads {argument(model_results.name)} --stats"
    caption = f"The heads of {model_results.title} and the {event}"
    return DataTable(name, caption, columns, tuple(row[: len(columns)] for row in rows), note, command)


def _difference_cell(difference: TargetDifference | None) -> Cell:
    if difference is None:
        return Cell("")
    is_sure = (difference.low > 0 or difference.high < 0) and abs(difference.mean) >= SMALLEST_SHOWN
    text = f"{difference.target} {bracketed(difference.mean, difference.low, difference.high)}"
    return Cell(text, abs(difference.mean), "strong" if is_sure else "")


def _broken_cells(breaks: Breaks | None) -> list[Cell]:
    if breaks is None:
        return [Cell("")] * 3
    sides = breaks.with_event, breaks.without_event
    shares = [Cell(f"{each.correct:,} of {each.n:,} ({percent(each.rate)})", each.rate) for each in sides]
    errors = f"{breaks.n_errors:,} of {breaks.n_decoded:,}" if breaks.n_decoded else ""
    return [*shares, Cell(errors, breaks.n_errors if errors else None)]


PART = section
