"""What is each head worth? Ablated alone, with every replacement, and ranked with what the ranking can say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from headcount.reporting.blocks import Block, Cell, Conclusions, DataTable, Paragraph, Picture, Section, Sentence
from headcount.reporting.commands import ablate_command
from headcount.reporting.story import Material, Subject
from headcount.reporting.words import ONE_SEED, amount, briefly, counted, interval, percent, some
from headcount.views.ablation import QUESTIONS, draw_ranking, ranking

if TYPE_CHECKING:
    from headcount.analysis.ablation import Ablation, Condition, Effect


def section(material: Material) -> Section | None:
    """Every model whose heads were ablated."""
    subjects = material.with_("ablation")
    if not subjects:
        return None
    blocks: list[Block] = [
        Paragraph(
            "A head is ablated where it meets the residual stream: its output is replaced by zero (can it be cut "
            "out?), by its mean (can it be cut out if its mean stays?), or by its output on another example (does the "
            "model use what it says here?). Every ablation was proven to have acted, and is compared with the whole "
            "model on the same examples."
        )
    ]
    answers = []
    for subject in subjects:
        found = conclusions(subject, rests_on=material.block_id("ablation", subject))
        answers.append(replace(found[0], text=briefly(found[0].text, subject.settings)))
        blocks += [Conclusions(tuple(found)), *_shown(material, subject)]
    return Section("ablation", "What is each head worth alone?", tuple(blocks), answers[0])


def conclusions(subject: Subject, rests_on: str = "") -> list[Sentence]:
    """Which head costs most and how sure that is; how many are redundant; whether replacements agree."""
    result = subject.ablation
    assert result is not None, "asked of a model whose heads were ablated"
    condition = result.conditions[0]
    first = sorted(_effects(result, condition, result.replacements[0]), key=lambda each: -each.drop)
    tops = _tops(result, condition)
    return [
        _costliest(subject.title, result, first, tops, rests_on),
        *([_redundant(result, condition, rests_on)] if first[0].band else []),
        *([_agreement(tops, rests_on)] if len(tops) > 1 else []),
    ]


def _tops(result: Ablation, condition: Condition) -> dict[str, str]:
    """The costliest head by each replacement that any head is shown to cost something by."""
    found = {each: _effects(result, condition, each) for each in result.replacements}
    tops = {name: max(effects, key=lambda each: each.drop) for name, effects in found.items()}
    return {name: top.short for name, top in tops.items() if top.low > 0}


def _costliest(title: str, result: Ablation, effects: list[Effect], tops: Mapping[str, str], rests_on: str) -> Sentence:
    """The first of the ranking, if there is one; and which it is by other replacements."""
    top, replacement = effects[0], result.replacements[0]
    doubt = interval(top.low, top.high) if result.unit == "points" else interval(top.low, top.high, 1, 3)
    cost = f"{amount(top.drop, result.unit)} ({doubt}; n = {top.n:,}; by {replacement})"
    if top.low <= 0:
        text = f"Whether any head of {title} matters alone is undecided: the costliest, {top.short}, costs {cost}."
        return Sentence(text, rests_on, is_decided=False)
    rivals = [each.short for each in effects[1:] if each.rank_low == 1]
    if rivals:
        text = f"Which head of {title} matters most is undecided: {top.short} costs {cost}, and "
        text += f"{some(rivals, 4)} may cost as much by their intervals. {ONE_SEED}"
        return Sentence(text, rests_on, is_decided=False)
    others = [f"by {name} it is {head}" for name, head in tops.items() if head != top.short]
    text = f"In {title}, {top.short} matters most: without it {cost} are lost{''.join(f'; {each}' for each in others)}."
    return Sentence(f"{text} {ONE_SEED}", rests_on)


def _redundant(result: Ablation, condition: Condition, rests_on: str) -> Sentence:
    """By their intervals, in every way; and who is undecided."""
    n, harmless = len(ranking(result, condition.length)), result.harmless(condition.length)
    bands: dict[str, set[str | None]] = {}
    for each in result.heads:
        if each.length == condition.length:
            bands.setdefault(each.short, set()).add(each.band)
    undecided = [
        head for head, found in bands.items() if "undecided" in found and not found & {"important", "critical"}
    ]
    ways = f"by {some(result.replacements)}" + (" alike" if len(result.replacements) > 1 else "")
    text = f"{len(harmless)} of {counted(n, 'head')} cost under 1 point alone {ways}, by the whole interval"
    verb = "is" if len(undecided) == 1 else "are"
    text += f"; whether {some(undecided)} {verb} among them is undecided. " if undecided else ". "
    text += "That is each by itself: what can go together is another question."
    return Sentence(text, rests_on)


def _agreement(tops: Mapping[str, str], rests_on: str) -> Sentence:
    """Whether the costliest head is the same whatever replaces it."""
    if len(names := set(tops.values())) == 1:
        return Sentence(f"{names.pop()} costs most with every replacement ({some(list(tops))}).", rests_on)
    told = some([f"{head} by {name}" for name, head in tops.items()])
    return Sentence(f"The costliest head depends on the replacement: {told}.", rests_on, is_decided=False)


def _effects(result: Ablation, condition: Condition, replacement: str) -> list[Effect]:
    return [each for each in result.heads if (each.length, each.replacement) == (condition.length, replacement)]


def _shown(material: Material, subject: Subject) -> list[Block]:
    result, name = subject.ablation, material.block_id("ablation", subject)
    assert result is not None, "asked of a model whose heads were ablated"
    condition, command = result.conditions[0], ablate_command(subject)
    effects = {(each.head, each.replacement): each for each in result.heads if each.length == condition.length}
    rows: list[tuple[Cell | str, ...]] = []
    for i, head in enumerate(ranking(result, condition.length)):
        mine = [effects[head, replacement] for replacement in result.replacements]
        place = "-".join(map(str, dict.fromkeys((mine[0].rank_low, mine[0].rank_high))))
        rows.append((Cell(mine[0].short), Cell(place, i), *(_cell(result, each) for each in mine), mine[0].band or ""))
    unit = "points" if result.unit == "points" else result.unit
    columns = (
        "head",
        "rank",
        *(f"{each} ({unit})" for each in result.replacements),
        f"band ({result.replacements[0]})",
    )
    clean = percent(condition.clean) if result.is_accuracy else f"{condition.clean:.4g}"
    about = f"{condition.data}, n = {condition.n:,}, {clean} with all heads"
    note = "Drop with its 95 % interval; bold where p < 0.05, corrected over heads. Rank: by the intervals of all. "
    if condition.decided_on:
        note += (
            f"Heads that change any answer were measured again, on {condition.decided_on}, which alone counts for them"
        )
        note += f" (by resample each with {condition.donors} donors). " if condition.donors > 1 else ". "
    note += " ".join(f"{QUESTIONS[each].capitalize()} {each}." for each in result.replacements if each in QUESTIONS)
    first = effects[ranking(result, condition.length)[0], result.replacements[0]]
    told = f"The costliest is {first.short}, {_cell(result, first).text} {unit} by {result.replacements[0]}."
    return [
        Picture(
            name,
            f"What each head of {subject.title} is worth alone: {about}",
            told,
            lambda: draw_ranking(result, condition),
            command,
        ),
        DataTable(
            f"{name}-ranking", f"Ranking of the heads of {subject.title}: {about}", columns, tuple(rows), note, command
        ),
    ]


def _cell(result: Ablation, effect: Effect) -> Cell:
    """`16.60 [14.99, 18.30]`."""
    scale, digits = (100, 2) if result.unit == "points" else (1, 4)
    drop, low, high = (f"{scale * each:.{digits}f}" for each in (effect.drop, effect.low, effect.high))
    return Cell(f"{drop} [{low}, {high}]", scale * effect.drop, "strong" if effect.p < 0.05 else "")


PART = section
