"""How do poolings compare? The same encodings under several poolings, and what a pooling gives away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from headcount.describing.blocks import Block, Cell, Conclusions, DataTable, Paragraph, Picture, Section, Sentence
from headcount.describing.reaches import EXERCISE, RIGHT, at, is_right, is_wrong, named, within_training
from headcount.describing.recipes import losses_table
from headcount.describing.sections.reach import LENGTHS, length_cells, sizes, span
from headcount.describing.story import Material, Subject
from headcount.describing.words import percent, some
from headcount.figures.length_generalisation import draw_poolings, given_away

if TYPE_CHECKING:
    from headcount.analysis.length_generalisation import LengthResult, Stretch
    from headcount.analysis.poolings import PooledModel
    from headcount.runs.folder import TrainingRecord

Model: TypeAlias = "PooledModel | Stretch"
"""A model of a stored comparison, or one of the report's own."""

KIND, EASY = "adjacent", "transpositions"
"""The hardest kind of unsorted sequence, one pair of neighbours in the wrong order; and report 003's kind."""
WITHOUT = "none"
"""The encoding that does nothing."""
DIFFER = ("encoding", "pooling", "seed", "steps")
"""Settings in which compared models may differ."""
TABLE = "poolings-{}"
"""The id of the table of a kind of negative."""


def section(material: Material) -> Section | None:
    """Compare poolings if the models of the report, or stored comparisons, have at least two."""
    models = pooled_models(material)
    if not models:
        return None
    found = conclusions(models)
    losses = _records(models)
    blocks: list[Block] = [
        Paragraph(
            "Pooling turns the vectors of all positions into one. Mean, max and score-max know no order: without an "
            "encoding, such a model sees which numbers there are and not where, so 50 % is a theorem. Report 003 pools "
            "[min, least difference of neighbours, mean difference of neighbours, first, last] instead "
            "(`neighbour-difference`). Differences of neighbours contain the order itself."
        ),
        Conclusions(tuple(found)),
        *(_table(models, kind) for kind in (KIND, EASY) if _results(models, kind)),
        _picture(models),
        *([replace(losses_table("poolings-losses", losses), is_folded=True)] if losses else []),
    ]
    n_seeds = len({each.seed for each in models})
    answer = replace(found[0], text=f"{found[0].text[:-1]} ({'one seed' if n_seeds == 1 else f'{n_seeds} seeds'}).")
    return Section("poolings", "How do poolings compare?", tuple(blocks), answer)


def pooled_models(material: Material) -> tuple[Model, ...]:
    """Return the models of stored comparisons, else the report's own where they differ in pooling; nothing if none."""
    stored = [model for each in material.subjects if each.poolings is not None for model in each.poolings.models]
    models: list[Model] = [*dict.fromkeys(stored)] or [*_own(material)]
    models = [each for each in models if any(cell.length <= LENGTHS[-1] for cell in _cells(each, KIND))]
    encodings, poolings = (list(dict.fromkeys(getattr(each, name) for each in models)) for name in DIFFER[:2])
    if len(poolings) < 2:
        return ()
    return tuple(sorted(models, key=lambda each: (poolings.index(each.pooling), encodings.index(each.encoding))))


def _own(material: Material) -> list[Stretch]:
    """Return the report's own models with the exercise's encodings whose other settings are those of the first."""
    subjects = [each for each in material.subjects if _is_compared(each)]
    first = _others(subjects[0]) if subjects else {}
    return [each.stretch for each in subjects if each.stretch and _others(each) == first]


def _is_compared(subject: Subject) -> bool:
    result = subject.stretch
    if result is None or result.encoding not in EXERCISE:
        return False
    return result.label == f"{result.encoding}, {result.pooling}"


def _others(subject: Subject) -> dict[str, object]:
    return {name: value for name, value in subject.settings.items() if name not in DIFFER}


# --- in words ---------------------------------------------------------------------------------------------------------


def conclusions(models: Sequence[Model]) -> list[Sentence]:
    """Say whether a pooling gives the answer away, then on each kind of negative whether any pooling extrapolates."""
    return [*_given_away(models), *(_beyond(models, kind) for kind in (KIND, EASY) if _results(models, kind))]


def _given_away(models: Sequence[Model]) -> list[Sentence]:
    """Say of each pooling that gives structure away whether the model without positions is right."""
    without = {each.pooling: each for each in models if each.encoding == WITHOUT}
    results = {name: within_training(_cells(each, KIND), each.trained) for name, each in without.items()}
    plain = {name: each for name, each in results.items() if each is not None and not without[name].hard_codes}
    given = {name: each for name, each in results.items() if each is not None and without[name].hard_codes}
    sentences = []
    for name, result in given.items():
        beside = f" With {some(list(plain))} pooling it is right on {_range(list(plain.values()))}." if plain else ""
        gift = f"This pooling gives away the {some(list(without[name].hard_codes))}"
        if is_right(result):
            end = f"{gift}, so a comparison of encodings under it does not test the encoding."
        elif is_wrong(result):
            end = f"{gift}, but that alone does not solve the task: the encoding still matters."
        else:
            end = f"{gift}; whether that alone solves the task is undecided."
        text = f"With {name} pooling, the model without positions {_told(result)}.{beside} {end}"
        sentences.append(Sentence(text, TABLE.format(KIND), is_right(result) or is_wrong(result)))
    return sentences


def _told(result: LengthResult) -> str:
    """`is right on 99.2 % at training lengths (95 % interval 98.1 to 99.7, n = 600)`, or gives one answer."""
    if result.constant:
        return f"answers “{result.constant_class}” to everything at training lengths (n = {result.n:,})"
    share, _, rest = at(result).partition(", ")
    return f"is right on {share} at training lengths ({rest})"


def _range(results: Sequence[LengthResult]) -> str:
    """`48.0 to 51.2 %`."""
    shares = sorted(each.accuracy for each in results)
    ends = dict.fromkeys((f"{100 * shares[0]:.1f}", f"{100 * shares[-1]:.1f}"))
    return f"{' to '.join(ends)} %"


def _beyond(models: Sequence[Model], kind: str) -> Sentence:
    """Say which models are right at the longest of the exercise's lengths."""
    results = _results(models, kind)
    right, unclear = ([each for each in results if test(each[1])] for test in (is_right, _is_unclear))
    what = f"at {results[0][1].length:,} numbers on {named(kind)}"
    sentences = []
    if len(right) == len(results):
        sentences = [f"All {len(results)} models are right {what}."]
    elif right:
        sentences = [
            f"{len(right)} of {len(results)} models {'is' if len(right) == 1 else 'are'} right {what}: {_list(right)}."
        ]
    elif not unclear:
        best = max(results, key=lambda each: (not each[1].constant, each[1].accuracy))
        sentences = [f"No pooling makes any of these {len(results)} models right {what}. The best is {_list([best])}."]
    if unclear:
        is_are = "is" if len(unclear) == 1 else "are"
        sentences.append(f"Whether {_list(unclear)} {is_are} right {what} is undecided.")
    return Sentence(" ".join(sentences), TABLE.format(kind), not unclear)


def _is_unclear(result: LengthResult) -> bool:
    return not is_right(result) and not is_wrong(result)


def _list(results: Sequence[tuple[Model, LengthResult]]) -> str:
    """`mean with sinusoidal (97.0 %, 95 % interval 93.6 to 98.6, n = 200)`."""
    return some([f"{model.pooling} with {model.encoding} ({at(result)})" for model, result in results], 12)


def _results(models: Sequence[Model], kind: str) -> list[tuple[Model, LengthResult]]:
    """Return every model's result at the longest of the exercise's lengths that were measured."""
    lengths = [cell.length for model in models for cell in _cells(model, kind) if cell.length <= LENGTHS[-1]]
    longest = max(lengths, default=0)
    return [(model, cell) for model in models for cell in _cells(model, kind) if cell.length == longest]


# --- table and picture ------------------------------------------------------------------------------------------------


def _cells(model: Model, kind: str) -> list[LengthResult]:
    return [cell for cell in model.cells if cell.negative == kind]


def _title(model: Model) -> str:
    """`mean, sinusoidal`."""
    return f"{model.pooling}, {model.encoding}"


def _table(models: Sequence[Model], kind: str) -> DataTable:
    rows: list[tuple[Cell | str, ...]] = [
        (f"{_title(each)} ({given_away(each)})", *length_cells(each.cells, kind, each.trained)) for each in models
    ]
    columns = ("pooling, encoding (gives away)", span([each.trained for each in models]), *map(str, LENGTHS))
    caption = f"Accuracy (%) by pooling, encoding and length; unsorted sequences are {named(kind)}"
    seeds = sorted({each.seed for each in models})
    steps = sorted({record.steps for _, record in _records(models) if record.steps is not None})
    note = f"{sizes([each.cells for each in models], kind)} 95 % Wilson intervals; bold where the whole interval lies "
    note += f"above {percent(RIGHT, 0)}. Seed {some([str(each) for each in seeds])}, one model per row"
    ends = " to ".join(f"{each:,}" for each in dict.fromkeys((*steps[:1], *steps[-1:])))
    note += f", trained for {ends} steps (below)." if steps else "."
    words = ["headcount lab --only sortedness", *([f"--seed {seeds[0]}"] if seeds[0] else [])]
    command = " ".join(words) if steps else ""
    return DataTable(TABLE.format(kind), caption, columns, tuple(rows), note, command, is_narrow=True)


def _records(models: Sequence[Model]) -> list[tuple[str, TrainingRecord]]:
    """Return the training records of a stored comparison; the report's own models have theirs in another section."""
    return [(_title(each), record) for each in models if (record := getattr(each, "training", None)) is not None]


def _picture(models: Sequence[Model]) -> Picture:
    caption = "Poolings on the same encodings; dashed lines are poolings that give structure away"
    ends = [f"{_title(each)}: {at(max(_cells(each, KIND), key=lambda cell: cell.length))}" for each in models]
    alt = f"Accuracy against length, a panel for each encoding. At the longest length, {'; '.join(ends)}."
    return Picture("poolings-curves", caption, alt, lambda: draw_poolings(models, KIND))


PART = section
