"""How do poolings compare? Accuracy by pooling and encoding, and the structure of the task that poolings build in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from headcount.describing.blocks import Block, Conclusions, DataTable, Paragraph, Picture, Section, Sentence
from headcount.describing.extrapolation import (
    EXERCISE,
    HARDEST,
    accuracy_words,
    at_training_lengths,
    is_accurate,
    is_decided,
    is_inaccurate,
    kind_words,
)
from headcount.describing.length_generalisation import LENGTHS, lengths_table
from headcount.describing.report import ModelResults, ReportResults
from headcount.describing.sections.training import losses_table
from headcount.describing.words import number, some
from headcount.figures.length_generalisation import draw_poolings, given_structure, size_range

if TYPE_CHECKING:
    from headcount.analysis.length_generalisation import LengthResult, Stretch
    from headcount.analysis.pooling_comparison import PooledModel
    from headcount.runs.folder import TrainingRecord

Model: TypeAlias = "PooledModel | Stretch"
"""A model with its accuracy by length: one of a stored comparison of poolings, or one of the models of this report."""

KIND, EASY = HARDEST, "transpositions"
"""The hardest kind of negative (unsorted sequence), and the easier kind that published report 003 used."""
WITHOUT = "none"
"""The name of the encoding of models that have no position encoding."""
DIFFER = ("encoding", "pooling", "seed", "steps")
"""Settings in which compared models may differ; all other settings must be equal."""
TABLE = "poolings-{}"
"""The id of the table on one kind of negative (unsorted sequence)."""


def section(results: ReportResults) -> Section | None:
    """Return the section that compares poolings; None unless there are models with at least two poolings."""
    models = pooled_models(results)
    if not models:
        return None
    sentences = conclusions(models)
    losses = _records(models)
    blocks: list[Block] = [
        Paragraph(
            "Pooling turns the vectors of all positions into one vector. Mean, max and score-max pooling ignore order: "
            "without a position encoding, such a model sees which numbers occur but not where, so by a theorem its "
            "accuracy is 50 %. Report 003, one of five published solutions of this exercise, pools [min, smallest "
            "difference of neighbours, mean difference of neighbours, first, last] instead. Here this is called "
            "neighbour-difference pooling. Differences of neighbours reveal the order itself."
        ),
        Conclusions(tuple(sentences)),
        *(_table(models, kind) for kind in (KIND, EASY) if _results(models, kind)),
        _picture(models),
        *([replace(losses_table("poolings-losses", losses), is_folded=True)] if losses else []),
    ]
    n_seeds = len({each.seed for each in models})
    seeds = "one seed" if n_seeds == 1 else f"{n_seeds} seeds"
    answer = replace(sentences[0], text=f"{sentences[0].text[:-1]} ({seeds}).")
    return Section("poolings", "How do poolings compare?", tuple(blocks), answer)


def pooled_models(results: ReportResults) -> tuple[Model, ...]:
    """Return the models whose poolings are compared, sorted by pooling; none if all have the same pooling.

    They come from stored comparisons of poolings or, if there are none, from the models of the report.
    """
    stored = [model for each in results.models if each.poolings is not None for model in each.poolings.models]
    models: list[Model] = [*dict.fromkeys(stored)] or [*_own(results)]
    models = [each for each in models if any(cell.length <= LENGTHS[-1] for cell in _cells(each, KIND))]
    encodings, poolings = (list(dict.fromkeys(getattr(each, name) for each in models)) for name in DIFFER[:2])
    if len(poolings) < 2:
        return ()
    return tuple(sorted(models, key=lambda each: (poolings.index(each.pooling), encodings.index(each.encoding))))


def _own(results: ReportResults) -> list[Stretch]:
    """Return the accuracy by length of those models of the report whose poolings can be compared.

    These models have encodings in `EXERCISE`, and the settings of the first of them except for those in `DIFFER`.
    """
    models = [each for each in results.models if _is_compared(each)]
    first = _others(models[0]) if models else {}
    return [each.stretch for each in models if each.stretch and _others(each) == first]


def _is_compared(model: ModelResults) -> bool:
    """Return whether a model can be compared with others: its encoding is in `EXERCISE`, its attention is ordinary."""
    result = model.stretch
    if result is None or result.encoding not in EXERCISE:
        return False
    return result.label == f"{result.encoding}, {result.pooling}"


def _others(model: ModelResults) -> dict[str, object]:
    """Return those settings of a model that must be the same in all compared models."""
    return {name: value for name, value in model.settings.items() if name not in DIFFER}


# --- in words ---------------------------------------------------------------------------------------------------------


def conclusions(models: Sequence[Model]) -> list[Sentence]:
    """Return sentences on whether a pooling alone solves the task, and on which models extrapolate."""
    return [*_given_away(models), *(_beyond(models, kind) for kind in (KIND, EASY) if _results(models, kind))]


def _given_away(models: Sequence[Model]) -> list[Sentence]:
    """Return sentences on whether each pooling with built-in structure makes a model without positions accurate."""
    without = {each.pooling: each for each in models if each.encoding == WITHOUT}
    results = {name: at_training_lengths(_cells(each, KIND), each.trained) for name, each in without.items()}
    plain = {name: each for name, each in results.items() if each is not None and not without[name].hard_codes}
    given = {name: each for name, each in results.items() if each is not None and without[name].hard_codes}
    sentences = []
    for name, result in given.items():
        others = f" With {some(list(plain))} pooling it has {_range(list(plain.values()))}." if plain else ""
        gift = f"This pooling builds in the {some(list(without[name].hard_codes))}"
        if is_accurate(result):
            end = f"{gift}, so a comparison of encodings under this pooling does not test the encodings."
        elif is_inaccurate(result):
            end = f"{gift}, but that alone does not solve the task: the encoding still matters."
        else:
            end = f"{gift}; it is undecided whether that alone solves the task."
        text = f"With {name} pooling, the model without positions {_accuracy(result)}.{others} {end}"
        sentences.append(Sentence(text, TABLE.format(KIND), is_decided(result)))
    return sentences


def _accuracy(result: LengthResult) -> str:
    """Return a verb phrase on a model at training lengths: `has 98 % accuracy ...`, or `answers “sorted” to ...`."""
    if result.constant:
        return f"answers “{result.constant_class}” to everything at training lengths (n = {result.n:,})"
    share, _, doubt = accuracy_words(result).partition(", ")
    return f"has {share} accuracy at training lengths ({doubt})"


def _range(results: Sequence[LengthResult]) -> str:
    """Return the lowest and the highest accuracy, such as `49.2 to 51.0 %`."""
    shares = sorted(each.accuracy for each in results)
    return f"{' to '.join(dict.fromkeys(number(100 * each) for each in (shares[0], shares[-1])))} %"


def _beyond(models: Sequence[Model], kind: str) -> Sentence:
    """Return a sentence on which models are accurate at the longest of the `LENGTHS` that was measured."""
    results = _results(models, kind)
    right = [each for each in results if is_accurate(each[1])]
    unclear = [each for each in results if not is_decided(each[1])]
    what = f"at length {results[0][1].length:,} on {kind_words(kind)}"
    n, sentences = len(results), []
    if len(right) == n:
        sentences = [f"{'The model is' if n == 1 else f'All {n} models are'} accurate {what}."]
    elif right:
        sentences = [
            f"{len(right)} of {n} models {_is(right)} accurate {what}. {'It has' if len(right) == 1 else 'They have'} "
            f"{_list(right)}."
        ]
    elif not unclear:
        best = max(results, key=lambda each: (not each[1].constant, each[1].accuracy))
        sentences = [
            f"None of these {n} models, which differ in pooling and encoding, is accurate {what}. The most accurate "
            f"one has {_list([best])}."
        ]
    if unclear:
        which = "the model" if len(unclear) == 1 else f"the {len(unclear)} models"
        sentences.append(f"It is undecided whether {which} with {_list(unclear)} {_is(unclear)} accurate {what}.")
    return Sentence(" ".join(sentences), TABLE.format(kind), not unclear)


def _is(models: Sequence[object]) -> str:
    return "is" if len(models) == 1 else "are"


def _list(results: Sequence[tuple[Model, LengthResult]]) -> str:
    """Return a list of models in words, each with its pooling, its encoding and its accuracy."""
    return some([f"{_described(model)} ({accuracy_words(result)})" for model, result in results], 12)


def _described(model: Model) -> str:
    """Return the pooling and the encoding of a model: `mean pooling with sinusoidal positions`."""
    positions = "without positions" if model.encoding == WITHOUT else f"with {model.encoding} positions"
    return f"{model.pooling} pooling {positions}"


def _results(models: Sequence[Model], kind: str) -> list[tuple[Model, LengthResult]]:
    """Return pairs of a model and its result at the longest of the `LENGTHS` that was measured."""
    lengths = [cell.length for model in models for cell in _cells(model, kind) if cell.length <= LENGTHS[-1]]
    longest = max(lengths, default=0)
    return [(model, cell) for model in models for cell in _cells(model, kind) if cell.length == longest]


# --- table and picture ------------------------------------------------------------------------------------------------


def _cells(model: Model, kind: str) -> list[LengthResult]:
    """Return the results of a model on one kind of negative (unsorted sequence), one for each length."""
    return [cell for cell in model.cells if cell.negative == kind]


def _title(model: Model) -> str:
    """Return the name of a model in this comparison, such as `mean, sinusoidal`."""
    return f"{model.pooling}, {model.encoding}"


def _table(models: Sequence[Model], kind: str) -> DataTable:
    """Return a table of accuracy by model and length; its note has the seeds and the number of training steps."""
    seeds = sorted({each.seed for each in models})
    steps = [record.steps for _, record in _records(models) if record.steps is not None]
    flags = ["headcount lab --only sortedness", *([f"--seed {seeds[0]}"] if seeds[0] else [])]
    command = " ".join(flags) if steps else ""
    caption = f"Accuracy (%) by pooling, encoding and length; unsorted sequences: {kind_words(kind)}"
    rows = [(f"{_title(each)} ({given_structure(each)})", each) for each in models]
    table = lengths_table(TABLE.format(kind), caption, "pooling, encoding (structure of the task)", rows, kind, command)
    trained = (
        f", trained for {size_range(steps)} steps (the table of final losses has the steps of each model)"
        if steps
        else ""
    )
    note = f"{table.note} Seed {some([str(each) for each in seeds])}, one model per row{trained}."
    return replace(table, note=note)


def _records(models: Sequence[Model]) -> list[tuple[str, TrainingRecord]]:
    """Return names and training records of the models in a stored comparison; models of the report are left out."""
    return [(_title(each), record) for each in models if (record := getattr(each, "training", None)) is not None]


def _picture(models: Sequence[Model]) -> Picture:
    """Return the figure of accuracy against length for all models; its text lists accuracies at the longest length."""
    caption = "Accuracy by length for each pooling and encoding; dashed: models with built-in structure of the task"
    ends = [
        f"{_title(each)}: {accuracy_words(max(_cells(each, KIND), key=lambda cell: cell.length))}" for each in models
    ]
    alt = f"Accuracy against length, a panel for each encoding. At the longest length, {'; '.join(ends)}."
    return Picture("poolings-curves", caption, alt, lambda: draw_poolings(models, KIND))


PART = section
