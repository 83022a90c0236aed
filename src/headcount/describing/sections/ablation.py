"""What is each head worth? Ablated alone, with every replacement, and ranked with what the ranking can say."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headcount.describing.blocks import Block, Cell, Conclusions, DataTable, Paragraph, Picture, Section, Sentence
from headcount.describing.commands import ablate_command
from headcount.describing.story import Material, Subject
from headcount.describing.words import ONE_SEED, briefly, counted, percent, some
from headcount.figures.ablation import Costliest, action, costliest, costliest_sentence, draw_ranking, ranking

if TYPE_CHECKING:
    from headcount.analysis.ablation import Ablation, AblationCondition, Effect


def section(material: Material) -> Section | None:
    """Every model whose heads were ablated."""
    subjects = material.with_("ablation")
    if not subjects:
        return None
    blocks: list[Block] = [
        Paragraph(
            "Removing a head sets its output to zero where it meets the residual stream (zero ablation); heads are "
            "ranked by what that costs. Swapping replaces its output with its output on another example (resample "
            "ablation): the model is misled, so a head that can be removed for nothing may cost much here. Mean "
            "ablation keeps what the head outputs on average. Every ablation was proven to act, and is compared with "
            "the whole model on the same examples."
        )
    ]
    answers = []
    for subject in subjects:
        found = conclusions(subject, rests_on=material.block_id("ablation", subject))
        answers.append(replace(found[0], text=briefly(found[0].text, subject.settings)))
        blocks += [Conclusions(tuple(found)), *_shown(material, subject)]
    return Section("ablation", "What is each head worth alone?", tuple(blocks), answers[0])


def conclusions(subject: Subject, rests_on: str = "") -> list[Sentence]:
    """Say which head costs most to remove, whose swapped output misleads most, and how many heads are redundant."""
    result = subject.ablation
    assert result is not None, "asked of a model whose heads were ablated"
    condition = result.conditions[0]
    tops = [costliest(result, condition, each) for each in result.replacements]
    return [
        _costliest(subject.title, result, tops, rests_on),
        *([_redundant(result, condition, rests_on)] if tops[0].top.band else []),
        *_agreement([each for each in tops if each.is_shown], rests_on),
    ]


def _costliest(title: str, result: Ablation, tops: list[Costliest], rests_on: str) -> Sentence:
    """Say first what removing a head costs, then what swapping its output does."""
    first = next(each for each in tops if each.replacement == result.ranked_by)
    swapped = [each for each in tops if each.replacement == "resample" and each is not first]
    text = " ".join([costliest_sentence(result, first, title), *(costliest_sentence(result, each) for each in swapped)])
    return Sentence(f"{text} {ONE_SEED}", rests_on, first.is_decided)


def _redundant(result: Ablation, condition: AblationCondition, rests_on: str) -> Sentence:
    """Count the heads that cost under 1 point when they are removed alone, and those that no replacement harms."""
    first = result.effects(result.ranked_by, condition.length)
    redundant, undecided = ([e.short for e in first if e.band == band] for band in ("redundant", "undecided"))
    what = action(result.ranked_by)
    text = f"{what[:1].upper()}{what[1:]} alone costs under 1 point for {len(redundant)} of "
    text += f"{counted(len(first), 'head')} ({percent(len(redundant) / len(first))}), by the whole 95 % interval"
    text += f"; for {some(undecided)} it is undecided. " if undecided else ". "
    if len(result.replacements) > 1:
        harmless = result.harmless(condition.length)
        text += f"{len(harmless)} cost under 1 point with every replacement ({some(result.replacements)}). "
    return Sentence(f"{text}What can be removed together is another question.", rests_on)


def _agreement(tops: list[Costliest], rests_on: str) -> list[Sentence]:
    """Say whether the costliest head is the same whatever replaces its output."""
    heads = {each.replacement: each.top.short for each in tops}
    if len(heads) < 2:
        return []
    if len(names := set(heads.values())) == 1:
        return [Sentence(f"{names.pop()} costs most with every replacement ({some(list(heads))}).", rests_on)]
    pairs = some([f"{head} by {name}" for name, head in heads.items()])
    return [Sentence(f"The costliest head depends on the replacement: {pairs}.", rests_on, is_decided=False)]


def _shown(material: Material, subject: Subject) -> list[Block]:
    result, name = subject.ablation, material.block_id("ablation", subject)
    assert result is not None, "asked of a model whose heads were ablated"
    condition, command = result.conditions[0], ablate_command(subject)
    effects = {(each.head, each.replacement): each for each in result.heads if each.length == condition.length}
    rows: list[tuple[Cell | str, ...]] = []
    for i, head in enumerate(ranking(result, condition.length)):
        by_replacement = [effects[head, replacement] for replacement in result.replacements]
        first = effects[head, result.ranked_by]
        place = "-".join(map(str, dict.fromkeys((first.rank_low, first.rank_high))))
        cells = [_cell(result, each) for each in by_replacement]
        rows.append((Cell(first.short), Cell(place, i), *cells, first.band or ""))
    unit = "points" if result.unit == "points" else result.unit
    columns = (
        "head",
        "rank",
        *(f"{each} ({unit})" for each in result.replacements),
        f"band ({result.ranked_by})",
    )
    clean = percent(condition.clean) if result.is_accuracy else f"{condition.clean:.4g}"
    about = f"{condition.data}, n = {condition.n:,}, {clean} with all heads"
    note = "Drop with its 95 % interval, which is for one head by itself; bold where p < 0.05 after Holm correction "
    note += "over all heads. The rank is a range where intervals overlap. "
    if condition.decided_on:
        note += (
            f"Heads that change any answer were measured again, on {condition.decided_on}, which alone counts for them"
        )
        note += f" (by resample each with {condition.donors} donors). " if condition.donors > 1 else ". "
    note += " ".join(f"{each.capitalize()}: {action(each)}." for each in result.replacements)
    alt = costliest_sentence(result, costliest(result, condition, result.ranked_by))
    return [
        Picture(
            name,
            f"What each head of {subject.title} is worth alone: {about}",
            alt,
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
