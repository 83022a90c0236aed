"""How does each model represent position? Its encoding, the similarity of positions, and untrained rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headcount.describing.audit import POSITIONS, notices
from headcount.describing.blocks import Block, Conclusions, Paragraph, Picture, Section
from headcount.describing.extrapolation import EXERCISE, is_plain
from headcount.describing.positions import conclusions, positions_rows, positions_table
from headcount.describing.report import ModelResults, ReportResults
from headcount.describing.words import some
from headcount.errors import argument
from headcount.figures.positions import draw_positions, draw_side_by_side


def section(results: ReportResults) -> Section | None:
    """Build the section from every model whose positions were measured."""
    models = results.with_result("positions")
    if not models:
        return None
    blocks: list[Block] = [
        Paragraph(
            "An encoding adds a vector P(p) to the embedding at position p, rotates queries and keys, or biases "
            "attention scores. K(t, s) is the similarity of two positions under the encoding. Dashed lines mark the "
            "end of the trained positions."
        )
    ]
    blocks += _side_by_side(models)
    answers = []
    for model in models:
        shown = model.positions
        assert shown is not None, "only models whose positions were measured are in the section"
        sentences = conclusions(model.title, shown, results.block_id("positions", model))
        # The section on length generalisation has the notices of models that were measured at several lengths.
        warnings = [] if model.stretch else notices(model, [POSITIONS])
        blocks += [*warnings, Conclusions(tuple(sentences)), *_one_model(results, model)]
        answers.append((not shown.rows, not model.stretch, sentences[0]))
    answer = min(answers, key=lambda each: each[:2])[-1]  # prefer a learned table, and a model that may extrapolate
    return Section("positions", "How does each model represent position?", tuple(blocks), answer)


def _side_by_side(models: Sequence[ModelResults]) -> list[Picture]:
    """Draw the exercise's encodings side by side, as the report's models have them; nothing for fewer than two."""
    shown = {name: each.positions for name in EXERCISE for each in reversed(models) if _has_encoding(each, name)}
    encodings = [each for each in shown.values() if each is not None]
    if len(encodings) < 2:
        return []
    names = some([each.encoding.name for each in encodings])
    caption = f"Encodings side by side, as the models of this report have them: {names}"
    parts = [f"{each.encoding.name} acts on {each.encoding.acts_on}" for each in encodings]
    alt = f"What each encoding does at every position, and the similarity of two positions: {'; '.join(parts)}."
    return [Picture("positions-side-by-side", caption, alt, lambda: draw_side_by_side(encodings))]


def _has_encoding(model: ModelResults, name: str) -> bool:
    """Return whether this sorter has this encoding and is otherwise the exercise's model."""
    shown, result = model.positions, model.stretch
    if shown is None or shown.encoding.name != name or model.task != "sortedness":
        return False
    return result is None or is_plain(result)


def _one_model(results: ReportResults, model: ModelResults) -> list[Block]:
    """Build the figure and the table of one model; an encoding that does nothing has no figure."""
    shown, name = model.positions, results.block_id("positions", model)
    assert shown is not None, "only models whose positions were measured are in the section"
    command = f"headcount positions {argument(model.name)}"
    table = positions_table(f"{name}-table", shown, model.title, command)
    if shown.encoding.acts_on == "nothing":
        return [replace(table, id=name)]
    caption = f"Positions of {model.title}: {shown.encoding.name}, trained on 0 to {shown.n_trained - 1}"
    answers = " ".join(f"{question}: {answer}." for question, answer in positions_rows(shown)[2:4])
    alt = f"{caption}; {shown.n_positions} are shown. {answers}"
    return [Picture(name, caption, alt, lambda: draw_positions(shown), command), table]


PART = section
