"""How small can the margin of a model with mean pooling be at each length? Describe its worst sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headcount.describing.blocks import Cell, DataTable, Picture, Sentence
from headcount.describing.words import counted, some
from headcount.describing.wrong_answers import abbreviated, in_range, mistake
from headcount.figures.worst_margins import draw_worst_margins

if TYPE_CHECKING:
    from headcount.analysis.worst_margins import ConstantStretches, WorstCase, WorstMargins
    from headcount.training.evaluation import WrongAnswer

TABLE, FIGURE = "worst-margins", "worst-margins-by-length"


def conclusions(result: WorstMargins, title: str, rests_on: str = "") -> list[Sentence]:
    """Return sentences on the verdict, on the sequences of training lengths, and on long runs of one token."""
    sentences = [_verdict(result, title), training_lengths(result), *constant_stretches(result)]
    return [Sentence(each.text, rests_on or each.rests_on, each.is_decided) for each in sentences]


def details(result: WorstMargins) -> list[DataTable | Picture]:
    """Return a table with the sequence that has the smallest margin at each length, and a figure of these margins."""
    caption, text = "Smallest margin over all sequences of each length", training_lengths(result).text
    return [margin_table(result), Picture(FIGURE, caption, text, lambda: draw_worst_margins(result))]


def clearest(result: WorstMargins) -> WrongAnswer:
    """Return the shortest wrong sequence of a training length, or of any length if no training length has one."""
    return in_range(result.wrong, result.trained)


def _verdict(result: WorstMargins, title: str) -> Sentence:
    lengths = _lengths([row.length for row in result.rows])
    if result.wrong:
        return Sentence(f"Refuted: {mistake(clearest(result), title)}.", TABLE)
    if result.verdict == "undecided":
        text = f"Undecided: rounding errors ({result.rounding:.1e} logits) could change an answer of {title} at "
        return Sentence(f"{text}{lengths}.", TABLE, is_decided=False)
    text = f"Right at these lengths: {title} is right on every {result.example} of {lengths}."
    return Sentence(f"{text} This does not prove that it is right at any other length.", TABLE)


def training_lengths(result: WorstMargins) -> Sentence:
    """Return a sentence on whether all sequences of training lengths are right, and on the first wrong length."""
    shortest, longest = result.trained
    trained = f"the training lengths ({shortest} to {longest})"
    if result.right_when_trained is None:
        return Sentence(f"Not all of {trained} were examined.", TABLE, is_decided=False)
    if result.right_when_trained:
        text = f"At {trained}, the model is right on every {result.example}."
        first = result.first_wrong_length
        more = "" if first is None else f" The shortest wrong {result.example} has length {first:,}."
        return Sentence(text + more, TABLE)
    wrong = [row.length for row in result.rows if shortest <= row.length <= longest and not row.is_right]
    n = longest - shortest + 1
    return Sentence(f"The model is wrong on some {result.example} at {len(wrong)} of {n} training lengths.", TABLE)


def constant_stretches(result: WorstMargins) -> list[Sentence]:
    """Return sentences on what constant stretches (one token repeated many times) prove about long sequences."""
    constants, (first, last) = result.constants, result.classes
    if constants is None:
        return []
    rule = (
        "A model with mean pooling can be right at every length only if each token of a constant stretch (one token "
        f"repeated many times) adds exactly 0 to the lead of the class “{first}”. A constant {result.example} is "
        f"{last}, so the stretch must not add more than 0. A broken pair before a long stretch makes the "
        f"{result.example} {first}, so the stretch must not add less than 0."
    )
    return [Sentence(rule), Sentence(_constant_words(constants), TABLE)]


def _constant_words(constants: ConstantStretches) -> str:
    """Return sentences on what one repeated token adds to the lead of a class, and which answer is wrong for it."""
    if constants.wrong_from is None:
        return f"In this model, each of {counted(len(constants.leads), 'token')} adds exactly 0 when repeated."
    (low, smallest), (high, largest) = constants.smallest, constants.largest
    size = f"In this model, a repeated token adds between {smallest:.2g} ({low}) and {largest:.2g} logits ({high})"
    beginning = f"`{constants.beginning}` and then only" if constants.beginning else "nothing but"
    where = f"from length {constants.wrong_from:,} on"
    text = f"{size}. Therefore, {beginning} `{constants.token}` is answered wrong {where}"
    if constants.shown is None:
        return f"{text}. This follows from these numbers by calculation; the model was not run at such a length."
    return f"{text}: at length {constants.shown_length:,}, the model answers {constants.shown.predicted}."


def margin_table(result: WorstMargins) -> DataTable:
    """Return a table with the sequence that has the smallest margin, for each class and each length."""
    first, last = result.classes
    columns = ["length"]
    for name in (last, first):
        columns += [f"smallest margin, {name}", f"on the {name} {result.example}"]
    rows = tuple((Cell(f"{row.length:,}", row.length), *_cells(row.last), *_cells(row.first)) for row in result.rows)
    note = "A margin is the logit of the right class minus the logit of the other class; it is below 0 where the "
    note += "answer is wrong (marked). `59 x 63` means that 59 is repeated 63 times. Each margin is the smallest over "
    note += f"all {result.example}s of a length, up to rounding errors ({result.rounding:.1e} logits)."
    caption = f"Smallest margin (logits) over all {result.example}s of each length"
    return DataTable(TABLE, caption, tuple(columns), rows, note)


def _cells(case: WorstCase | None) -> tuple[Cell, Cell]:
    if case is None:
        return Cell("none"), Cell("")
    return Cell(f"{case.margin:.3g}", case.margin, "" if case.is_right else "strong"), Cell(abbreviated(case.example))


def _lengths(lengths: list[int]) -> str:
    """Return lengths as text, with consecutive lengths as a range: `lengths 1 to 16, 32 and 64`."""
    ranges: list[list[int]] = []
    for length in lengths:
        if ranges and length == ranges[-1][-1] + 1:
            ranges[-1][1:] = [length]
        else:
            ranges.append([length])
    texts = [" to ".join(f"{end:,}" for end in ends) for ends in ranges]
    return f"{'length' if len(lengths) == 1 else 'lengths'} {some(texts, most=len(texts))}"
