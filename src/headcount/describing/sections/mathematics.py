"""Why do sinusoidal encodings extrapolate and learned tables not? The identities, each with its numerical error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from headcount.describing.blocks import Block, Cell, Conclusions, DataTable, Paragraph, Section
from headcount.describing.extrapolation import extrapolation_of, hardest_kind, is_plain
from headcount.describing.mathematics import (
    ATTENTION,
    GATE,
    KERNEL,
    LEARNED,
    MULTISET,
    PLACES,
    ROTATION,
    SINUSOIDAL,
    STEPS,
    extrapolation_sentences,
    identity_sentences,
    kernel_error,
    multiset_accuracies,
    multiset_sentences,
    proofs,
    rotation_error,
    row_sums,
    table_errors,
    untrained_rows,
)
from headcount.describing.report import ModelResults, ReportResults
from headcount.figures.length_generalisation import given_structure

if TYPE_CHECKING:
    from headcount.analysis.length_generalisation import Stretch

TASKS = ("addition", "sortedness")
D_MODEL = 128
"""The exercise's width, for models whose width is not known."""
TITLE = "Why sinusoidal encodings extrapolate and learned tables do not"
PREDICTIONS = {
    "sinusoidal": "the same step at every position: can extrapolate",
    "learned": "untrained rows beyond the training lengths: cannot extrapolate",
    "none": "sees only the multiset of numbers: cannot tell order at all",
    "length-normalised": "a different step at every length",
}
"""What the mathematics predicts, by encoding."""


def section(results: ReportResults) -> Section | None:
    """Build the section from the models of the exercise's tasks."""
    models = [each for each in results.models if each.task in TASKS]
    if not models:
        return None
    width = _width(models)
    errors = rotation_error(width), kernel_error(width)
    measured = _measured(models)
    sentences = [*identity_sentences(width, *errors), *multiset_sentences(models), *extrapolation_sentences(models)]
    computed = f"Computed at d = {width} in double precision: the largest error is {{:.1e}} over all {{}}."
    formulas = [
        replace(ATTENTION, error=row_sums(models)),
        replace(GATE, error=proofs(models)),
        replace(SINUSOIDAL, error=table_errors(models)),
        replace(ROTATION, error=computed.format(errors[0], f"p up to {PLACES} and k up to {STEPS}")),
        replace(KERNEL, error=computed.format(errors[1], f"t and s up to {PLACES}")),
        replace(LEARNED, error=untrained_rows(models)),
    ]
    if any(each.task == "sortedness" for each in models):
        formulas.append(replace(MULTISET, error=multiset_accuracies(models)))
    words = "Mathematics says what an encoding makes possible. Only a measurement says whether a model uses it."
    blocks: list[Block] = [Paragraph(words), Conclusions(tuple(sentences)), *formulas, *measured]
    return Section("mathematics", TITLE if measured else "The mathematics", tuple(blocks))


def _width(models: Sequence[ModelResults]) -> int:
    """Return the width of the first sinusoidal model, else that of the first model whose width is known."""
    ordered = sorted(models, key=lambda each: each.settings.get("encoding") != "sinusoidal")
    for each in ordered:
        table = each.positions.encoding.table if each.positions else None
        width = each.settings.get("d_model") or (len(table[0]) if table else 0)
        if isinstance(width, int) and width > 1:
            return width
    return D_MODEL


def _measured(models: Sequence[ModelResults]) -> list[DataTable]:
    """Build the table of predictions and measured lengths; nothing if no model has both."""
    rows: list[tuple[Cell | str, ...]] = []
    for each in models:
        result = each.stretch
        reach = extrapolation_of(result, hardest_kind([result])) if result else None
        if result is None or reach is None or result.encoding not in PREDICTIONS or not result.trained:
            continue
        rows.append(
            (
                each.title,
                f"{result.label} ({given_structure(result)})",
                _prediction(each, result),
                Cell(str(result.trained[1]), result.trained[1]),
                Cell(reach.words, reach.length),
            )
        )
    if not rows:
        return []
    columns = ("model", "configuration", "prediction for its encoding", "trained up to", "accurate on the hardest kind")
    note = "The section on length generalisation has the accuracies."
    return [DataTable("mathematics-measured", "Prediction and measurement", columns, tuple(rows), note)]


def _prediction(model: ModelResults, result: Stretch) -> str:
    """Return what the mathematics predicts; without positions, order may still enter through a mask."""
    if result.encoding != "none" or is_plain(result):
        return PREDICTIONS[result.encoding]
    if model.settings.get("causal"):
        return "none: its causal mask tells order, because a number sees only the numbers before it"
    return "none: order enters elsewhere"


PART = section
