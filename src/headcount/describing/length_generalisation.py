"""How far does each model extrapolate, and what makes it fail? Sentences and tables about accuracy by length.

Models with built-in structure of the task are never ranked against models that have to learn everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from headcount.describing.blocks import Block, Cell, Conclusions, DataTable, Paragraph, Row, Sentence
from headcount.describing.extrapolation import (
    EXERCISE,
    HARDEST,
    PATTERNS,
    Extrapolation,
    accuracy_cell,
    accuracy_words,
    at_training_lengths,
    extrapolation_of,
    failure_causes,
    hardest_kind,
    is_accurate,
    is_decided,
    is_inaccurate,
    is_plain,
    kind_words,
)
from headcount.describing.words import counted, interval_cell, percent, some
from headcount.figures.length_generalisation import given_structure, size_range
from headcount.limits import ACCURATE

if TYPE_CHECKING:
    from headcount.analysis.length_generalisation import LengthResult, Stretch
    from headcount.analysis.pooling_comparison import PooledModel
    from headcount.stats import Proportion

TableId = Callable[[str], str]
"""A function that maps the name of a kind of negative (unsorted sequence), or `causes`, to the id of its table."""
ANSWER_START = "Trained on lengths"
"""First words of the sentence on which of three encodings extrapolate: sinusoidal, learned, and none."""
EASIEST = "shuffle"
ENCODING_WORDS = {"none": "a model without positions"}
"""Maps an encoding to the words for a model that has it, if they are not `a model with ENCODING positions`."""
LENGTHS = (32, 64, 128, 256)
"""Sequence lengths at which the university exercise asks for the accuracy."""
UNCHANGED = 1e-3
"""Changes of a logit below this size are taken as rounding errors."""
INTERVALS = "Brackets: 95 % Wilson intervals."
MARKED = f"Bold or starred: the model is accurate there, as the whole interval lies above {percent(ACCURATE, 0)}."


class Model(NamedTuple):
    """One model's results by length, with the name that reports print for it."""

    title: str
    result: Stretch

    @property
    def marked_title(self) -> str:
        """Return the model's name and, in brackets, the structure of the task that is built into the model."""
        return f"{self.title} ({given_structure(self.result)})"


Tested = tuple[Model, Extrapolation]
"""A model, and how far it extrapolates on one kind of negative (unsorted sequence)."""


def describe(result: Stretch) -> list[Block]:
    """Return report blocks on how far one model extrapolates: sentences and tables by length."""
    model, kind = Model(result.name, result), hardest_kind([result])
    sentences = conclusions([model], kind, lambda name: "stretch-causes" if name == "causes" else "stretch-accuracy")
    return [
        *([Conclusions(tuple(sentences))] if sentences else []),
        _accuracy_by_length(result),
        recall_table("stretch-classes", [model], kinds_of([result])),
        _predictions_by_length(result),
        *_changed_alone(result),
        *_shifted_ids(result),
        *map(Paragraph, _notes(result)),
    ]


def kinds_of(results: Iterable[Stretch]) -> list[str]:
    """Return all kinds of negatives (unsorted sequences) that were tested in any of these results."""
    return list(dict.fromkeys(cell.negative for result in results for cell in result.cells))


# --- sentences --------------------------------------------------------------------------------------------------------


def conclusions(models: Sequence[Model], kind: str, table: TableId) -> list[Sentence]:
    """Return sentences on which encodings extrapolate, which models extrapolate farthest, and why each model fails."""
    tested = [(each, reach) for each in models if (reach := extrapolation_of(each.result, kind))]
    generic = [(model.title, reach) for model, reach in tested if not model.result.hard_codes]
    given = [(model.marked_title, reach) for model, reach in tested if model.result.hard_codes]
    return [
        *_exercise(tested, table(kind)),
        *_farthest(generic, "models without built-in structure of the task", table(kind)),
        *_farthest(given, "models with built-in structure of the task", table(kind)),
        *(_one_model(*each, table(kind)) for each in tested),
        *_easy_kind(tested, table),
        *_one_answer(tested, table(kind)),
        *(each for one in tested for each in _failure(*one, table("causes"))),
    ]


def _exercise(tested: Sequence[Tested], rests_on: str) -> list[Sentence]:
    """Return a sentence on which of the encodings sinusoidal, learned and none extrapolate.

    Return no sentence unless models with at least two of them were trained on the same lengths.
    """
    by_encoding = [(model.result.encoding, reach) for model, reach in tested if _is_asked(model.result)]
    trained = {model.result.trained for model, _ in tested if _is_asked(model.result)}
    if len(dict(by_encoding)) < 2 or len(trained) > 1 or not (span := trained.pop()):
        return []
    return [exercise_answer(by_encoding, span, rests_on)]


def exercise_answer(
    by_encoding: Sequence[tuple[str, Extrapolation]], trained: tuple[int, int], rests_on: str
) -> Sentence:
    """Return a sentence on which of sinusoidal, learned and no positions extrapolate beyond the training lengths."""
    groups = {
        ENCODING_WORDS.get(name, f"a model with {name} positions"): [
            reach for encoding, reach in by_encoding if encoding == name
        ]
        for name in EXERCISE
        if name in dict(by_encoding)
    }
    parts = list[str]()
    for name, reaches in groups.items():
        runs = f" ({counted(len(reaches), 'run')})" if len(reaches) > 1 else ""
        lengths = some(list(dict.fromkeys(reach.words for reach in reaches)))
        parts.append(f"{name}{runs} {'' if parts else 'is accurate '}{lengths}")
    verdict, is_clear = _who_extrapolates(groups, trained[1])
    n = size_range(cell.n for _, reach in by_encoding for cell in reach.cells)
    seeds = "one seed each" if len(by_encoding) == len(groups) else f"{len(by_encoding)} runs"
    kind = kind_words(by_encoding[0][1].kind)
    kind += " (two neighbours exchanged)" if by_encoding[0][1].kind == HARDEST else ""
    text = f"{ANSWER_START} {trained[0]} to {trained[1]} and tested on {kind}, {some(parts)}"
    return Sentence(f"{text}: {verdict} (n = {n} per length, {seeds}).", rests_on, is_clear)


def _who_extrapolates(groups: Mapping[str, Sequence[Extrapolation]], longest: int) -> tuple[str, bool]:
    """Return a clause on which encodings extrapolate in all runs, in some or in none, and whether that is decided."""
    always, sometimes, undecided, never = list[str](), list[str](), list[str](), list[str]()
    for name, reaches in groups.items():
        n = sum(reach.length > longest for reach in reaches)
        if any(reach.length <= longest < reach.longest_possible for reach in reaches):
            undecided.append(name)
        elif n == len(reaches):
            always.append(name)
        elif n:
            sometimes.append(f"{name} in {n} of {len(reaches)} runs")
        else:
            never.append(name)
    if len(never) == len(groups):
        return f"{'neither' if len(never) == 2 else 'none'} of them extrapolates", True
    does = [*always, *sometimes]
    parts = [f"{some(does)} extrapolate{'s' if len(does) == 1 else ''}"] if does else []
    if undecided:
        parts.append(f"it is undecided whether {some(undecided)} extrapolate{'s' if len(undecided) == 1 else ''}")
    others = f", {some(never)} {'does' if len(never) == 1 else 'do'} not" if never else ""
    return ", and ".join(parts) + others, not undecided


def other_extrapolators(models: Sequence[Model], kind: str, answer: Sentence) -> list[str]:
    """Return a sentence that names models which extrapolate, besides those with the encodings in `EXERCISE`.

    Return none unless `answer` is the sentence on these encodings.
    """
    if not answer.text.startswith(ANSWER_START):
        return []
    names = []
    for title, result in models:
        reach = extrapolation_of(result, kind)
        if _is_asked(result) or not reach or not reach.last_accurate or not result.trained:
            continue
        if reach.length > result.trained[1]:
            who = f"{title} ({given_structure(result)})"
            names.append(f"{who} {reach.words} ({accuracy_words(reach.last_accurate)})")
    return [f"Other models are accurate beyond the training lengths: {some(names)}."] if names else []


def _is_asked(result: Stretch) -> bool:
    """Return whether a model has an encoding in `EXERCISE`, and otherwise the standard sortedness architecture."""
    return is_plain(result) and result.encoding in EXERCISE


def _farthest(reaches: Sequence[tuple[str, Extrapolation]], what: str, rests_on: str) -> list[Sentence]:
    """Return a sentence on which of several models extrapolates farthest; `what` is the noun for them: `models`."""
    if len(reaches) < 2:
        return []
    longest, kind = max(reach.length for _, reach in reaches), kind_words(reaches[0][1].kind)
    leaders = [(name, reach) for name, reach in reaches if reach.length == longest]
    rivals = [f"{name} {reach.words}" for name, reach in reaches if reach.longest_possible > longest]
    if not longest:
        n = size_range(cell.n for _, reach in reaches for cell in reach.cells)
        text = f"None of {len(reaches)} {what} is shown to be accurate on {kind} at any length (n = {n})."
        return [Sentence(text, rests_on, is_decided=not rivals)]
    last = leaders[0][1].last_accurate
    assert last is not None, "the longest accurate length is not 0"
    length = f"{longest:,} ({accuracy_words(last) if len(leaders) == 1 else f'n = {last.n:,}'})"
    names = some([name for name, _ in leaders])
    if rivals:
        text = f"It is undecided which of {len(reaches)} {what} extrapolates farthest on {kind}: {names} up to {length}"
        return [Sentence(f"{text}; {some(rivals)}.", rests_on, is_decided=False)]
    verb = "extrapolates" if len(leaders) == 1 else "extrapolate"
    return [Sentence(f"Of {len(reaches)} {what}, {names} {verb} farthest on {kind}: up to {length}.", rests_on)]


def _one_model(model: Model, reach: Extrapolation, rests_on: str) -> Sentence:
    """Return a sentence on up to which length a model is accurate, with its accuracy there and at the next length."""
    result, seed = model.result, "one seed" if model.result.encoding else "one model"
    kind = f"sorted against unsorted sequences ({kind_words(reach.kind)})"
    text = f"On {kind}, {model.title} ({given_structure(result)}; {seed}) is"
    if reach.undecided:
        first = reach.undecided[0]
        certain = f" accurate up to {reach.length:,};" if reach.last_accurate else " accurate at no length for certain;"
        text += f"{certain} from {first.length:,} on, it is undecided whether it is ({accuracy_words(first)})"
    elif reach.last_accurate is None:
        first = reach.cells[0]
        is_trained = result.trained is not None and first.length <= result.trained[1]
        which = "any tested length, not even at training lengths" if is_trained else "any tested length"
        text += f" not accurate at {which}: at {first.length:,}, {accuracy_words(first)}"
    elif reach.first_inaccurate is None:
        text += f" accurate {reach.words} ({accuracy_words(reach.last_accurate)})"
    else:
        first = reach.first_inaccurate
        text += f" accurate up to {reach.length:,} ({accuracy_words(reach.last_accurate)}) but not at {first.length:,} "
        text += f"({accuracy_words(first)})"
    refused = some([f"{length:,}" for length in result.refused_lengths], 4)
    text += f"; it does not accept length {refused}" if result.refused_lengths else ""
    return Sentence(f"{text}.", rests_on, is_decided=not reach.undecided)


def _easy_kind(tested: Sequence[Tested], table: TableId) -> list[Sentence]:
    """Return a sentence that names models which extrapolate only on the easiest kind of negative (full shuffles)."""
    parts = []
    for (title, result), reach in tested:
        easy = extrapolation_of(result, EASIEST)
        if easy and easy.last_accurate and reach.kind != EASIEST and easy.length > reach.longest_possible:
            shuffled = f"{title} is accurate on them {easy.words} ({accuracy_words(easy.last_accurate)})"
            parts.append(f"{shuffled}, but on {kind_words(reach.kind)} {reach.words}")
    if not parts:
        return []
    text = f"{kind_words(EASIEST).capitalize()} are easy: {'; '.join(parts)}. It is easier to detect disorder than to "
    return [Sentence(f"{text}verify order.", table(EASIEST))]


def _one_answer(tested: Sequence[Tested], rests_on: str) -> list[Sentence]:
    """Return a sentence on the lengths at which models give nearly every example the same answer."""
    parts: list[str] = []
    cells: list[LengthResult] = []
    for (title, _), reach in tested:
        constant = [cell for cell in reach.cells if cell.constant]
        for answer in dict.fromkeys(cell.constant_class for cell in constant):
            lengths = some([f"{cell.length:,}" for cell in constant if cell.constant_class == answer], 4)
            parts.append(f"{title} answers “{answer}” at {lengths}")
        cells += constant
    if not parts:
        return []
    n = size_range(cell.n for cell in cells)
    text = f"At some lengths a model gives (nearly) every sequence the same answer: {'; '.join(parts)} (n = {n} each)"
    return [Sentence(f"{text}. There, 50 % accuracy shows only that half of the sequences are sorted.", rests_on)]


def _failure(model: Model, reach: Extrapolation, rests_on: str) -> list[Sentence]:
    """Return sentences on what makes a model fail at its first inaccurate length.

    The candidates are untrained position ids, small gaps between numbers, and the length itself.
    """
    causes = failure_causes(model.result, reach)
    if causes is None:
        return []
    first, ids, gaps = causes
    text = (
        f"Why does {model.title} fail at length {first.length:,}? On sequences of {ids.length} numbers with the last "
    )
    text += f"position ids of length {first.length:,}, it {_brief(ids)}. On equally long sequences with gaps "
    text += f"between neighbours as small as at length {first.length:,}, it {_brief(gaps)}. "
    if is_accurate(ids) and is_accurate(gaps):
        verdict = "Neither of the two alone makes it fail: the cause is the length itself, or several causes together"
    elif is_inaccurate(ids) and is_inaccurate(gaps):
        verdict = "Each of the two alone makes it fail"
    else:
        verdict = f"{_effect('Untrained position ids', ids)}; {_effect('small gaps', gaps)}"
    is_clear = is_decided(ids) and is_decided(gaps)
    return [Sentence(f"{text}{verdict}.", rests_on, is_clear)]


def _brief(cell: LengthResult) -> str:
    """Return a verb phrase on a model at one length: `has 98 % accuracy (...)`, or `answers “sorted” to everything`."""
    accuracy, _, doubt = accuracy_words(cell).partition(", ")
    return f"{accuracy.removeprefix('it ')} ({doubt})" if cell.constant else f"has {accuracy} accuracy ({doubt})"


def _effect(cause: str, cell: LengthResult) -> str:
    """Return a clause on whether one cause alone makes a model fail; `cell` is its accuracy with only this cause."""
    if not is_decided(cell):
        return f"it is undecided whether {cause[:1].lower()}{cause[1:]} alone make it fail"
    return f"{cause} alone {'make' if is_inaccurate(cell) else 'do not make'} it fail"


# --- tables of several models -----------------------------------------------------------------------------------------


def accuracy_table(models: Sequence[Model], kind: str, command: str = "") -> DataTable:
    """Return a table of accuracy on one kind of negative (unsorted sequence): a row per model, a column per length."""
    results = [each.result for each in models]
    lengths = sorted({cell.length for result in results for cell in result.cells if cell.negative == kind})
    rows, sizes = list[Row](), set[int]()
    for title, result in models:
        cells = {cell.length: cell for cell in result.cells if cell.negative == kind}
        if cells:
            sizes |= {cell.n for cell in cells.values()}
            shown = [accuracy_cell(cells.get(length), _reason(result, length)) for length in lengths]
            rows.append((title, given_structure(result), *shown))
    draws = some([str(draw) for draw in sorted({result.draw for result in results})])
    note = f"n = {size_range(sizes)} sequences per cell (random draw {draws}). {INTERVALS} {MARKED}"
    columns = ("model", "structure of the task", *(f"{length:,}" for length in lengths))
    caption = f"Accuracy (%) by length; unsorted sequences: {kind_words(kind)}"
    return DataTable(f"reach-{kind}", caption, columns, tuple(rows), note, command)


def _reason(result: Stretch, length: int) -> str:
    """Return in a word why a model has no accuracy at a length: `refused` by the model, or `not measured`."""
    return "refused" if length in result.refused_lengths else "not measured"


def exercise_table(models: Sequence[Model], kind: str, command: str = "") -> list[DataTable]:
    """Return a table of accuracy at the lengths in `LENGTHS`; no table if none of them was measured."""
    measured = [
        (each.marked_title, each.result)
        for each in models
        if any(cell.negative == kind and cell.length in LENGTHS for cell in each.result.cells)
    ]
    caption = f"Accuracy (%) at the exercise's lengths; unsorted sequences: {kind_words(kind)}"
    return [lengths_table("reach-lengths", caption, "model", measured, kind, command)] if measured else []


def lengths_table(
    name: str, caption: str, column: str, models: Sequence[tuple[str, Stretch | PooledModel]], kind: str, command: str
) -> DataTable:
    """Return a table of accuracy over all training lengths and at each length in `LENGTHS`, with a row per model."""
    rows, sizes = list[Row](), set[int]()
    for title, model in models:
        cells = [each for each in model.cells if each.negative == kind]
        by_length = {each.length: each for each in cells}
        shown = [at_training_lengths(cells, model.trained), *(by_length.get(length) for length in LENGTHS)]
        rows.append((title, *map(accuracy_cell, shown)))
        sizes |= {each.n for each in cells}
    spans = {model.trained for _, model in models}
    only = spans.pop() if len(spans) == 1 else None
    columns = (column, f"{only[0]}-{only[1]}" if only else "training lengths", *map(str, LENGTHS))
    note = f"n = {size_range(sizes)} sequences per length, half of them sorted; all training lengths share one column. "
    note += f"{INTERVALS} {MARKED}"
    return DataTable(name, caption, columns, tuple(rows), note, command, is_narrow=True)


def recall_table(name: str, models: Sequence[Model], kinds: Sequence[str], command: str = "") -> DataTable:
    """Return a table of accuracy by length on sorted sequences, and on unsorted sequences of each kind.

    A table of several models has at most three lengths of each: the last training length, the next one, the longest.
    """
    is_alone, rows = len(models) == 1, list[Row]()
    for title, result in models:
        cells = {(cell.length, cell.negative): cell for cell in result.cells}
        lengths = sorted({cell.length for cell in result.cells}) if is_alone else _lengths_around(result)
        for length in lengths:
            shares = list[Cell]()
            for _, possible, class_index in _recall_columns(kinds):
                cell = next((cells[length, kind] for kind in possible if (length, kind) in cells), None)
                shares.append(_share_cell(cell.recall[class_index] if cell else None))
            rows.append((*([] if is_alone else [title]), _count(length), *shares))
    columns = (*([] if is_alone else ["model"]), "length", *(heading for heading, _, _ in _recall_columns(kinds)))
    note = "All kinds of unsorted sequences are tested with the same sorted sequences, except the hard patterns, which "
    note += "have sorted sequences of their own. "
    note += INTERVALS
    return DataTable(name, "Accuracy (%) on each class", columns, tuple(rows), note, command)


def _recall_columns(kinds: Sequence[str]) -> Iterator[tuple[str, list[str], int]]:
    """Yield, for each column of the table of accuracy by class: heading, kinds of example, and index of the class."""
    negatives = [kind for kind in kinds if kind != PATTERNS]
    if negatives:
        yield "sorted", negatives, -1
    yield from ((kind_words(kind), [kind], 0) for kind in negatives)
    if PATTERNS in kinds:
        yield from ((f"{name}, hard patterns", [PATTERNS], i) for name, i in (("sorted", -1), ("unsorted", 0)))


def _lengths_around(result: Stretch) -> list[int]:
    """Return three of the tested lengths: the last training length, the first one beyond it, and the longest one."""
    lengths = sorted({cell.length for cell in result.cells})
    longest = result.trained[1] if result.trained else 0
    inside, beyond = ([x for x in lengths if (x <= longest) == is_inside] for is_inside in (True, False))
    return sorted({*inside[-1:], *beyond[:1], *lengths[-1:]})


def _count(n: int) -> Cell:
    return Cell(f"{n:,}", n)


def _share_cell(share: Proportion | None) -> Cell:
    if share is None:
        return Cell("not measured", None, "weak")
    return interval_cell(share.rate, share.low, share.high)


def causes_table(models: Sequence[Model], kind: str, command: str = "") -> list[DataTable]:
    """Return a table on why each model fails at its first inaccurate length; no table if that was not measured."""
    rows: list[Row] = []
    for title, result in models:
        reach = extrapolation_of(result, kind)
        causes = failure_causes(result, reach) if reach else None
        if causes is not None:
            rows.append((title, _count(causes[0].length), *map(accuracy_cell, causes)))
    if not rows:
        return []
    caption = "Why models fail: accuracy (%) at the first inaccurate length, and with one possible cause alone; "
    caption += f"unsorted sequences: {kind_words(kind)}"
    columns = ("model", "length", "at that length", "with its last position ids alone", "with its small gaps alone")
    note = (
        "The last two columns have accuracies on sequences of the longest training length, which get either the last "
    )
    note += "position ids of the longer length, or gaps between neighbouring numbers that are as small as there."
    return [DataTable("reach-causes", caption, columns, tuple(rows), note, command)]


# --- tables of one model ----------------------------------------------------------------------------------------------


def _by_length(result: Stretch) -> list[tuple[Cell, list[LengthResult]]]:
    """Return pairs of a length, as a table cell, and its results, in the order in which lengths were measured."""
    lengths = dict.fromkeys(cell.length for cell in result.cells)
    return [(_count(x), [cell for cell in result.cells if cell.length == x]) for x in lengths]


def _kind_columns(result: Stretch) -> list[str]:
    return [kind_words(kind) for kind in kinds_of([result])]


def _accuracy_by_length(result: Stretch) -> DataTable:
    """Return a table of accuracy by length and kind of negative (unsorted sequence)."""
    trained = f"trained on {result.trained[0]}-{result.trained[1]}" if result.trained else "training lengths not known"
    name = result.name if result.label in result.name else f"{result.name}: {result.label}"
    caption = f"{name} ({given_structure(result)}), {trained}, random draw {result.draw}. Accuracy (%) by kind of "
    caption += "unsorted sequence"
    rows = [(length, _count(cells[0].n), *map(accuracy_cell, cells)) for length, cells in _by_length(result)]
    return DataTable("stretch-accuracy", caption, ("length", "n", *_kind_columns(result)), tuple(rows), MARKED)


def _predictions_by_length(result: Stretch) -> DataTable:
    """Return a table of how often the model predicts the last class (sorted) at each length, rightly or wrongly."""
    rows = [(length, *(_share_cell(cell.answers[-1]) for cell in cells)) for length, cells in _by_length(result)]
    caption = f"Sequences that are classified as “{result.classes[-1]}” (%), right or wrong"
    return DataTable("stretch-predictions", caption, ("length", *_kind_columns(result)), tuple(rows))


def _changed_alone(result: Stretch) -> list[DataTable]:
    """Return a table of accuracy on sequences of the longest training length that imitate longer sequences.

    They have either the small gaps between numbers, or the last position ids, of a longer sequence. Return no table if
    this was not measured.
    """
    if not result.cropped_results or not result.trained:
        return []
    kind, longest = result.cropped_results[0].negative, result.trained[1]
    gaps = {cell.length: cell for cell in result.cropped_results}
    ids = {each.first + longest: each.cell for each in result.ids}
    whole = {cell.length: cell for cell in result.cells if cell.negative == kind}
    columns = {"with its gaps": gaps, **({"with its last position ids": ids} if ids else {}), "whole length": whole}
    rows = ((_count(x), *(accuracy_cell(cells.get(x), "refused") for cells in columns.values())) for x in gaps)
    caption = f"Accuracy (%) on {kind_words(kind)}: {longest} numbers with gaps or position ids of a longer sequence"
    return [DataTable("stretch-causes", caption, ("length", *columns), tuple(rows))]


def _shifted_ids(result: Stretch) -> list[DataTable]:
    """Return a table of accuracy with shifted position ids; no table if the ids do not change any logit."""
    if not _depends_on_ids(result):
        return []
    n = result.ids[0].cell.length
    rows: list[Row] = []
    for first, cell, moved in ((each.first, each.cell, each.moved) for each in result.ids):
        rows.append((f"{first}-{first + n - 1}", *map(_share_cell, cell.recall[::-1]), Cell(f"{moved:.2g}", moved)))
    columns = ("position ids", "sorted", kind_words(result.ids[0].cell.negative), "largest change of a logit")
    caption = f"Accuracy (%) on the same sequences of {n} numbers with other position ids"
    return [DataTable("stretch-ids", caption, columns, tuple(rows))]


def _depends_on_ids(result: Stretch) -> bool:
    """Return whether other position ids change a logit of the model by more than a rounding error."""
    return any(each.moved > UNCHANGED for each in result.ids)


def _notes(result: Stretch) -> list[str]:
    """Return notes on lengths and position ids that the model does not accept, and on ids that change no answer."""
    notes = []
    if result.refused_lengths:
        notes.append(f"{result.name} does not accept these lengths: {', '.join(map(str, result.refused_lengths))}.")
    if result.refused_first_ids:
        ids = ", ".join(map(str, result.refused_first_ids))
        notes.append(f"{result.name} does not accept position ids that begin at {ids}.")
    elif result.ids and not _depends_on_ids(result):
        largest, last = max(each.moved for each in result.ids), result.ids[-1].first
        text = f"The first position id, from 0 to {last:,}, does not matter to {result.name}"
        notes.append(f"{text}: the largest change of a logit is {largest:.1g}.")
    return notes
