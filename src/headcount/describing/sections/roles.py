"""What does each head do? What it attends to, where that passes a bar that models which learned nothing do not."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from headcount.describing.blocks import Block, Cell, Conclusions, DataTable, Paragraph, Picture, Section, Sentence
from headcount.describing.role_words import role_blocks, role_sentences
from headcount.describing.story import Material, Subject
from headcount.describing.words import ONE_SEED, briefly, counted, interval, percent, share, some
from headcount.errors import argument
from headcount.figures.head_stats import SPREAD, draw_stats

if TYPE_CHECKING:
    from headcount.analysis.labels import MeasureMean
    from headcount.analysis.specialisation import HeadStats, Specialisation

MEANINGS = {
    "operator": "the plus sign",
    "diagonal": "the token at its own place",
    "aligned column": "the digits that the digit at hand is made of",
    "carry column": "the next lower column, which makes the carry",
    "previous output": "the token that was written just before",
    "left neighbour": "the number to the left",
    "right neighbour": "the number to the right",
    "itself": "the number at its own place",
    "equal numbers": "other numbers of the same value",
}
"""Targets that tasks name; one that is not here speaks for itself."""
PART_OF_LABEL = re.compile(r"(mostly|partly) (.+?)(?: in ([^()]+))? \(")
"""How much, of what, and (unless over all) in which columns."""


def section(material: Material) -> Section | None:
    """Every model whose heads were measured, in the words of its task or in those of any text."""
    measured, named = material.with_("stats"), [each for each in material.with_("roles") if not each.stats]
    if not (measured or named):
        return None
    blocks: list[Block] = [
        Paragraph(
            "A label says where a head attends, on average over many examples. It does not say that the model uses "
            "what the head reads there: that is for ablation to show. A head without a label may well have a role that "
            "has no name here."
        )
    ]
    answers = []
    for subject in (*measured, *named):
        name = material.block_id("roles", subject)
        found = conclusions(subject, name) if subject.stats else role_sentences(subject, name)
        answers.append(Sentence(briefly(found[0].text, subject.settings), name, found[0].is_decided))
        shown = _shown(subject, name) if subject.stats else role_blocks(subject, name)
        blocks += [Conclusions(tuple(found)), *shown]
    return Section("roles", "What does each head do?", tuple(blocks), answers[0])


def conclusions(subject: Subject, rests_on: str) -> list[Sentence]:
    """How many heads have a label, and for each target which heads attend to it, and how much."""
    result = subject.stats
    assert result is not None, "asked of a model whose heads were measured"
    n, labelled = len(result.heads), [head for head in result.heads if head.label]
    bar = f"of which on average at most {100 * result.calibration.error_rate:.2g} % would get any label"
    if not labelled:
        text = (
            f"What the heads of {subject.title} do is undecided: none of {n} attends to anything that the task names "
        )
        text += f"more than those of models that learned nothing do ({bar}; n = {result.n:,})."
        return [Sentence(text, rests_on, is_decided=False)]
    text = f"{len(labelled)} of {counted(n, 'head')} of {subject.title} attend to something that the task names, more "
    text += f"than heads of models that learned nothing ({bar}; n = {result.n:,}); {n - len(labelled)} have no label. "
    text += ONE_SEED
    return [Sentence(text, rests_on), *(Sentence(each, rests_on) for each in _targets(result))]


Attending = tuple["HeadStats", "MeasureMean | None", str]
"""A head, what it gives to a target, and where: in one column, or nothing if that is over all."""


def _targets(result: Specialisation) -> list[str]:
    """A sentence for each target, overall or in columns; what most heads attend to first."""
    found: dict[tuple[str, str, bool], list[Attending]] = {}
    for head in result.heads:
        parts = PART_OF_LABEL.findall(head.label)
        if head.label and not parts:  # it names no target: attention is spread
            found.setdefault(("", head.label, False), []).append((head, head.find(SPREAD[0]), ""))
        for word, target, columns in parts:
            for column in columns.split(", ") if columns else ("",):
                measure = head.find(target, column or "all")
                found.setdefault((word, target, bool(columns)), []).append((head, measure, column))
    ordered = sorted(found.items(), key=lambda item: (item[0][2], -len(item[1])))
    return [_target(word, target, heads) for (word, target, _), heads in ordered]


def _target(word: str, target: str, heads: list[Attending]) -> str:
    """Which heads, what it means, and the most of it with its interval."""
    names = some([f"{head.short} ({column})" if column else head.short for head, _, column in heads], 8)
    verb = "attends" if len(heads) == 1 else "attend"
    meaning = f", {MEANINGS[target]}" if target in MEANINGS else ""
    text = f"{names} {verb} {word} to the {target}{meaning}" if word else f"{names} {verb} to all alike: {target}"
    text = f"In single columns, {text}" if heads[0][2] else text
    measured = [(head, measure, column) for head, measure, column in heads if measure is not None]
    if not measured:
        return f"{text}."
    head, most, column = max(measured, key=lambda each: each[1].mean)
    which = "" if len(heads) == 1 else f"the most {head.short}{f' in the {column}' if column else ''} with "
    is_near_all = most.mean > 0.999  # to a tenth of a per cent an interval would say no more
    doubt = "" if is_near_all else f"{interval(max(most.mean - most.half(), 0), min(most.mean + most.half(), 1))}; "
    even = "" if most.even is None else f"; if attention were even, {percent(most.even)}"
    what = "of its attention" if word else "of the largest entropy"
    return f"{text}: {which}{share(most.mean)} {what} ({doubt}n = {most.n:,}{even})."


def _shown(subject: Subject, name: str) -> list[Block]:
    """A picture of all measures, and the same as a table to sort."""
    result = subject.stats
    assert result is not None, "asked of a model whose heads were measured"
    command = f"headcount heads {argument(subject.name)} --stats"
    labels = [f"{head.short} {head.label}" for head in result.heads if head.label]
    alt = f"Labels: {some(labels, 40)}."
    caption = f"What each head of {subject.title} attends to: {result.weighting}, {result.data}, n = {result.n:,}"
    targets = dict.fromkeys(each.measure for head in result.heads for each in head.measures if each.even is not None)
    contrast = [result.contrast.name] if result.contrast else []
    columns = ("head", "label", *(f"{each} (%)" for each in (*targets, *SPREAD, *contrast)))
    rows = tuple(
        (head.short, head.label or Cell("", mark="weak"), *_cells(head, (*targets, *SPREAD), contrast))
        for head in result.heads
    )
    note = f"Mean over examples ± half of its 95 % interval. {result.calibration.words.capitalize()}."
    note += f" {contrast[0].capitalize()}: {result.contrast.words}." if result.contrast else ""
    return [
        Picture(f"{name}-map", caption, alt, lambda: draw_stats(result), command),
        DataTable(name, f"Heads of {subject.title}, one by one", columns, rows, note, command),
    ]


def _cells(head: HeadStats, measures: tuple[str, ...], contrast: list[str]) -> list[Cell]:
    """In per cent; empty where a head cannot have it."""
    found = [*(head.find(each) for each in measures), *(head.sensitivity() for _ in contrast)]
    return [
        Cell("") if each is None else Cell(f"{100 * each.mean:z.1f} ± {100 * each.half():.1f}", each.mean)
        for each in found
    ]


PART = section
