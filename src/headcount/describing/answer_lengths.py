"""How far does a model that answers token by token extrapolate? Sentences and tables on exact match by length."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headcount.describing.blocks import Block, Cell, Conclusions, DataTable, Paragraph, Sentence
from headcount.describing.words import interval_cell, percent, rate, some
from headcount.stats import Proportion

if TYPE_CHECKING:
    from headcount.analysis.answer_lengths import AnswerStretch

GOOD = 0.95
"""Exact match from which on a model counts as right at a length; published results on addition use this threshold."""
ACCURACY, CHAINS = "answer-lengths", "answer-groups"


def describe(result: AnswerStretch) -> list[Block]:
    """Return report blocks on the exact match of one model by length: sentences, and tables by kind of example."""
    kinds = list(dict.fromkeys(cell.kind for cell in result.cells))
    by_kind = {(cell.length, cell.kind): cell.exact for cell in result.cells}
    lengths = sorted({cell.length for cell in result.cells})
    rows: list[tuple[Cell | str, ...]]
    rows = [(f"{length:,}", *(_cell(by_kind.get((length, kind))) for kind in kinds)) for length in lengths]
    blocks: list[Block] = [
        Conclusions(tuple(_sentences(result, lengths))),
        DataTable(ACCURACY, f"Exact match (%) of {result.name} by length", (f"{result.unit}", *kinds), tuple(rows)),
    ]
    if result.groups:
        groups = list(dict.fromkeys(each.group for each in result.groups))
        groups.sort(key=lambda text: int(text.partition("-")[0]))
        by_group = {(each.length, each.group): each.exact for each in result.groups}
        rows = [(f"{length:,}", *(_cell(by_group.get((length, group))) for group in groups)) for length in lengths]
        caption = f"Exact match (%) of {result.name} by {result.facet} and length, all kinds together"
        blocks.append(DataTable(CHAINS, caption, (f"{result.unit}", *groups), tuple(rows), is_folded=True))
    built_in = some(list(result.hard_codes)) if result.hard_codes else ""
    structure = f"The model has built-in structure of the task: {built_in}." if built_in else ""
    notes = [
        "Brackets: 95 % Wilson intervals.",
        f"{result.n_decoded:,} of these answers were also decoded token by token, with equal results.",
        structure,
        f"The model does not accept the lengths {some([f'{each:,}' for each in result.refused_lengths])}."
        if result.refused_lengths
        else "",
    ]
    return [*blocks, Paragraph(" ".join(filter(None, notes)))]


def _cell(exact: Proportion | None) -> Cell | str:
    return "-" if exact is None else interval_cell(exact.rate, exact.low, exact.high)


def _sentences(result: AnswerStretch, lengths: list[int]) -> list[Sentence]:
    """Return sentences on up to which length the model is right, and on the kind of example at which it fails next."""
    solved = 0
    for length in lengths:
        if any(cell.exact.rate < GOOD for cell in result.cells if cell.length == length):
            break
        solved = length
    trained = f" It was trained on {result.trained[0]} to {result.trained[1]} {result.unit}." if result.trained else ""
    if solved:
        cells = [cell for cell in result.cells if cell.length == solved]
        worst = min(cells, key=lambda cell: cell.exact.rate)
        beyond = "at every measured length" if solved == lengths[-1] else f"up to {solved:,} {result.unit}"
        text = f"{result.name} has at least {percent(GOOD, 0)} exact match on every kind of example {beyond}: the "
        first = f"{text}lowest is {rate(worst.exact)}, on the kind “{worst.kind}”.{trained}"
    else:
        first = f"{result.name} has less than {percent(GOOD, 0)} exact match on some kind of example at every length."
        first += trained
    sentences = [Sentence(first, rests_on=ACCURACY)]
    if solved != lengths[-1]:
        length = next(each for each in lengths if each > solved)
        worst = min((cell for cell in result.cells if cell.length == length), key=lambda cell: cell.exact.rate)
        text = (
            f"At {length:,} {result.unit}, on examples of the kind “{worst.kind}”, it is right on {rate(worst.exact)}."
        )
        sentences.append(Sentence(text, rests_on=ACCURACY))
    return sentences
