"""How far does each encoding extrapolate? Accuracy by length and kind of unsorted sequence, and why models fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from headcount.describing.blocks import Block, Conclusions, Paragraph, Picture, Section
from headcount.describing.extrapolation import extrapolation_of, hardest_kind, is_plain, kind_words
from headcount.describing.length_generalisation import (
    Model,
    accuracy_table,
    causes_table,
    conclusions,
    exercise_table,
    kinds_of,
    other_extrapolators,
    recall_table,
)
from headcount.describing.report import ModelResults, ReportResults
from headcount.describing.sections.audit import BEYOND, POSITIONS, SHORTCUTS, notices
from headcount.describing.sections.reproduce import stretch_command
from headcount.describing.words import percent
from headcount.figures.length_generalisation import draw_dispersion, draw_stretch, given_structure
from headcount.limits import ACCURATE

if TYPE_CHECKING:
    from headcount.analysis.length_generalisation import Stretch


def section(report_results: ReportResults) -> Section | None:
    """Return the section on how far models extrapolate; None if no model was measured at several lengths."""
    all_models = [each for each in report_results.models if each.stretch is not None and each.stretch.cells]
    if not all_models:
        return None
    models = [Model(each.title, each.stretch) for each in all_models if each.stretch is not None]
    results = [each.result for each in models]
    kind, command = hardest_kind(results), stretch_command(all_models)
    kinds = sorted(kinds_of(results), key=lambda each: each != kind)
    sentences = conclusions(models, kind, lambda each: f"reach-{each}")
    blocks: list[Block] = [
        Paragraph(
            "Half of the sequences at every length are sorted. The others are unsorted in one of several ways, each "
            "measured separately: a full shuffle breaks the order nearly everywhere, a single adjacent swap at one "
            f"pair. A model is called accurate at a length if the whole 95 % CI of its accuracy lies above "
            f"{percent(ACCURATE, 0)}. Where a model gives every sequence the same answer, the tables show that answer "
            "instead of an accuracy. Some models have structure of the task built in, such as attention that reaches "
            "only the neighbours of a number. They are marked, and are not ranked against models that have to learn "
            "everything."
        ),
        Conclusions(tuple(sentences)),
        *exercise_table(models, kind, command),
        _curves(models, kind, command),
        *(notice for each in all_models for notice in notices(each, [BEYOND, POSITIONS, SHORTCUTS])),
        *(accuracy_table(models, each, command) for each in kinds),
        recall_table("reach-classes", models, kinds, command),
        *causes_table(models, kind, command),
        *_dispersions(report_results, all_models, kind),
    ]
    answer = replace(sentences[0], text=" ".join([sentences[0].text, *other_extrapolators(models, kind, sentences[0])]))
    return Section("reach", "How far does each encoding extrapolate?", tuple(blocks), answer)


def _curves(models: Sequence[Model], kind: str, command: str) -> Picture:
    results = _on_common_lengths([each.result for each in models])
    spans = sorted({each.trained for each in results if each.trained})
    shaded = f"; training lengths are shaded ({', '.join(f'{low} to {high}' for low, high in spans)})" if spans else ""
    reaches = [
        f"{title}: {reach.words}" for title, result in models if (reach := extrapolation_of(result, kind)) is not None
    ]
    alt = f"Accuracy against length. Accurate on {kind_words(kind)}: {'; '.join(reaches)}."
    return Picture("reach-curves", f"Accuracy by length{shaded}", alt, lambda: draw_stretch(results), command)


def _on_common_lengths(results: Sequence[Stretch]) -> list[Stretch]:
    """Return the results, reduced to lengths that all runs of a group have; runs of a group differ only in their seed.

    The figure of accuracy by length draws each group as one line.
    """
    shared: dict[tuple[object, ...], set[tuple[str, int]]] = {}
    for each in results:
        have = {(cell.negative, cell.length) for cell in each.cells}
        group = each.label, each.hard_codes, each.recipe
        shared[group] = shared.get(group, have) & have
    keep = [shared[each.label, each.hard_codes, each.recipe] for each in results]
    return [
        replace(each, cells=tuple(cell for cell in each.cells if (cell.negative, cell.length) in kept))
        for each, kept in zip(results, keep, strict=True)
    ]


def _dispersions(report_results: ReportResults, all_models: Sequence[ModelResults], kind: str) -> list[Picture]:
    """Return figures of attention and confidence by length, for at most two models.

    These are the first model without built-in structure of the task, and the one of them that extrapolates farthest.
    Models with built-in structure are drawn only if there are no others.
    """
    generic = [each for each in all_models if each.stretch and not each.stretch.hard_codes] or list(all_models)
    plain = [each for each in generic if each.stretch and is_plain(each.stretch)] or generic
    farthest = max(generic, key=lambda each: _length(each, kind))
    shown = [plain[0], *([farthest] if _length(farthest, kind) > _length(plain[0], kind) else [])]
    return [_dispersion(report_results.block_id("reach-attention", each), each, kind) for each in shown]


def _length(model: ModelResults, kind: str) -> int:
    """Return the longest length up to which a model is accurate on one kind of negative (unsorted sequence), or 0."""
    reach = extrapolation_of(model.stretch, kind) if model.stretch else None
    return reach.length if reach else 0


def _dispersion(name: str, model: ModelResults, kind: str) -> Picture:
    result = model.stretch
    assert result is not None, "only models that were measured at several lengths are drawn"
    reach = extrapolation_of(result, kind)
    accurate = f"it is accurate {reach.words}" if reach else "the tables have its accuracy"
    alt = f"Attention and confidence of {model.title} against length; on {kind_words(kind)} {accurate}."
    caption = f"{model.title} ({given_structure(result)}): attention and confidence as sequences grow"
    return Picture(name, caption, alt, lambda: draw_dispersion(result), stretch_command([model]))


PART = section
