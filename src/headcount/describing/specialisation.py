"""What do heads attend to, in the terms of the model's task? Labels of heads, sentences, and a table of all heads."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from headcount.describing.blocks import Block, Cell, Conclusions, DataTable, Picture, Row, Sentence
from headcount.describing.words import counted, interval, percent, plus_minus, sentence, share, some
from headcount.figures.specialisation import caption, draw_stats, find_measure, measures_of
from headcount.figures.style import HALF_CI
from headcount.tasks import target_meanings
from headcount.tasks.base import with_article

if TYPE_CHECKING:
    from headcount.analysis.attention_contrasts import ContrastShift
    from headcount.analysis.head_labels import MeasureMean
    from headcount.analysis.specialisation import HeadStats, Specialisation

PART_OF_LABEL = re.compile(r"(mostly|partly) (.+?)(?: in ([^()]+))? \(")
"""Regular expression for a head's label: strength, target and columns; a label for all columns names no column."""
Attending = tuple["HeadStats", "MeasureMean | None", str]
"""A head, its attention to a target (None if not measured), and the position of the queries ("" for all of them)."""


def describe(result: Specialisation) -> list[Block]:
    """Return report blocks on what heads attend to: sentences, the figure, and the table of all heads."""
    return [
        Conclusions(tuple(conclusions(result, result.name, "heads"))),
        stats_picture(result, result.name, "heads"),
        stats_table(result, result.name, "heads"),
    ]


def conclusions(result: Specialisation, title: str, rests_on: str) -> list[Sentence]:
    """Return sentences on how many heads have a label, and on which heads attend to each target (kind of token)."""
    n, labelled = len(result.heads), [head for head in result.heads if head.label]
    error_rate = (
        f"on average, at most {percent(result.calibration.error_rate)} of models that learned nothing get any label"
    )
    doubt = f"(n = {result.n:,} examples; {error_rate})"
    if not labelled:
        text = f"It is undecided what the heads of {title} attend to: none of {n} heads prefers one kind of token "
        text += "clearly more than heads of models that learned nothing "
        return [Sentence(f"{text}{doubt}.", rests_on, is_decided=False)]
    text = f"{len(labelled)} of {counted(n, 'head')} of {title} have a label, because they prefer one kind of token "
    text += "clearly "
    text += f"more than heads of models that learned nothing; {n - len(labelled)} "
    text += f"{'has' if n - len(labelled) == 1 else 'have'} none {doubt}."
    return [Sentence(text, rests_on), *(Sentence(each, rests_on) for each in _targets(result))]


def _targets(result: Specialisation) -> list[str]:
    """Return one sentence per target (kind of key) that heads attend to; the target of most heads comes first."""
    heads_by_target: dict[tuple[str, str, bool], list[Attending]] = {}
    for head in result.heads:
        parts = PART_OF_LABEL.findall(head.label)
        if head.label and not parts:  # it names no target: attention is spread
            heads_by_target.setdefault(("", head.label, False), []).append((head, head.find("entropy share"), ""))
        for strength, target, columns in parts:
            for column in columns.split(", ") if columns else ("",):
                measure = head.find(target, column or "all")
                heads_by_target.setdefault((strength, target, bool(columns)), []).append((head, measure, column))
    ordered = sorted(heads_by_target.items(), key=lambda item: (item[0][2], -len(item[1])))
    return [_target(strength, target, heads) for (strength, target, _), heads in ordered]


def _target(strength: str, target: str, heads: list[Attending]) -> str:
    """Return a sentence that names the heads which attend to a target, with the largest attention weight among them."""
    names = some([f"{head.short} ({column})" if column else head.short for head, _, column in heads], 8)
    verb = "attends" if len(heads) == 1 else "attend"
    meanings = target_meanings()
    meaning = f", {meanings[target]}" if target in meanings else ""
    text = f"{names} {verb} {strength} to the {target}{meaning}"
    text = text if strength else f"{names} {verb} evenly: {target}"
    text = f"Only for queries at the position in brackets, {text}" if heads[0][2] else text
    measured = [(head, measure, column) for head, measure, column in heads if measure is not None]
    if not measured:
        return f"{text}."
    head, most, column = max(measured, key=lambda each: each[1].mean)
    which = "" if len(heads) == 1 else f"{head.short}{f' at {with_article(column)}' if column else ''} most, with "
    is_near_all = most.mean > 0.999  # to a tenth of a percent an interval would say no more
    doubt = "" if is_near_all else f"{interval(max(most.mean - most.half(), 0), min(most.mean + most.half(), 1))}; "
    even = "" if most.even is None else f"; uniform attention would give {percent(most.even)}"
    what = "of its attention" if strength else "of the largest entropy"
    return f"{text}: {which}{share(most.mean)} {what} ({doubt}n = {most.n:,}{even})."


def stats_picture(result: Specialisation, title: str, name: str, command: str = "") -> Picture:
    """Return the figure with every attention measure of every head; its alternative text lists the labels of heads."""
    labels = [f"{head.short} {head.label}" for head in result.heads if head.label]
    words = f"What each head of {title} attends to: {result.weighting}, {result.data}, n = {result.n:,}"
    alt = f"Labels: {some(labels, 40)}."
    return Picture(f"{name}-map", words, alt, partial(draw_stats, result), command)


def stats_table(result: Specialisation, title: str, name: str, command: str = "") -> DataTable:
    """Return a table with the label of each head and its attention measures in percent."""
    measures = measures_of(result)
    rows = list[Row]()
    for head in result.heads:
        rows.append((head.short, head.label, *(_cell(find_measure(result, head, each)) for each in measures)))
    words = f"Heads of {title}: {result.weighting}, mean ± {HALF_CI} over {result.n:,} examples ({result.data})"
    columns = ("head", "label", *(f"{each} (%)" for each in measures))
    return DataTable(name, words, columns, tuple(rows), sentence(caption(result)), command)


def _cell(measure: MeasureMean | ContrastShift | None) -> Cell:
    """Return a table cell with a measure of a head in percent; empty if it was not measured for this head."""
    return Cell("") if measure is None else Cell(plus_minus(measure.mean, measure.half()), measure.mean)
