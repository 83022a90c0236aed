"""How does each model represent position? Its encoding, what training changed, and untrained positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from headcount.describing.blocks import Block, Conclusions, DataTable, Paragraph, Picture, Section, Sentence
from headcount.describing.extrapolation import EXERCISE, is_plain
from headcount.describing.report import ModelResults, ReportResults
from headcount.describing.sections.audit import POSITIONS, notices
from headcount.describing.words import counted, percent, share, some
from headcount.errors import argument
from headcount.figures.positions import draw_positions, draw_side_by_side, heading, trained_on
from headcount.tasks import is_class_task

if TYPE_CHECKING:
    from headcount.analysis.positions import EncodingProfile, PositionsShown, TableRow

EXACT = 1e-3
"""Relative errors below this are rounding errors of single precision."""
SAME_DIRECTION = 1 - 1e-6
"""A cosine similarity above this means that a row changed its norm but not its direction."""
LIKE_GUESSING = 0.95
"""A prediction with at least this relative error counts as no better than predicting zeros."""


def describe(shown: PositionsShown) -> list[Block]:
    """Return report blocks on how one model represents position: sentences, then a table of questions and answers."""
    return [Conclusions(tuple(conclusions(shown.name, shown, "positions"))), positions_table("positions", shown)]


def conclusions(title: str, shown: PositionsShown, rests_on: str = "") -> list[Sentence]:
    """Return sentences on which rows of a learned position table were trained, or on the steps of another encoding."""
    if not shown.rows:
        return [_step(title, shown, rests_on)]
    return [_trained_rows(title, shown, rests_on), *_moved(shown, rests_on), *_next_row(shown, rests_on)]


def _trained_rows(title: str, shown: PositionsShown, rests_on: str) -> Sentence:
    """Return a sentence on how many positions have an untrained row, or no row, in a learned position table."""
    states = [row.state for row in shown.rows]
    n, never, beyond = len(states), states.count("never trained"), states.count("past the table")
    if not never + beyond:
        text = f"All {n} positions of {title} that are shown have a trained row in its position table."
        return Sentence(text, rests_on)
    parts = [f"{never} {'has' if never == 1 else 'have'} a row that was never trained"] if never else []
    if beyond:
        row = "the table's last row" if _is_repeated(shown.rows) else "a random row"
        parts.append(f"{beyond} {'lies' if beyond == 1 else 'lie'} beyond its table and get{'s' * (beyond == 1)} {row}")
    last = f"the last trained position is {shown.n_trained - 1}"
    return Sentence(f"Of {n} positions of {title} that are shown, {' and '.join(parts)}; {last}.", rests_on)


def _is_repeated(rows: Sequence[TableRow]) -> bool:
    """Return whether all positions beyond the end of the table get the same row."""
    norms = [row.norm for row in rows if row.state == "past the table"]
    return len(set(norms)) == 1 < len(norms)


def _moved(shown: PositionsShown, rests_on: str) -> list[Sentence]:
    """Return sentences on how far training moved rows of a learned table: rows that it used, and rows it never used."""
    trained, others = ([row for row in shown.rows if row.state == state] for state in ("trained", "never trained"))
    if not trained:
        return []
    if any(row.moved is None for row in (*trained, *others)):
        norms = [row.norm for row in trained]
        text = "The initial rows are not known, so it is undecided how far training moved them. The norms of trained "
        text += "rows are "
        return [Sentence(f"{text}{min(norms):.2f} to {max(norms):.2f}.", rests_on, is_decided=False)]
    text = f"Training moved the {counted(len(trained), 'trained row')} of the table by {_distances(trained)} from "
    text += "their initial values"
    if not others:
        return [Sentence(f"{text}.", rests_on)]
    text += f", and the {counted(len(others), 'untrained row')}"
    if not any(row.moved for row in others):
        return [Sentence(f"{text} not at all.", rests_on)]
    least = min(row.cosine for row in others if row.cosine is not None)
    direction = "their direction did not change, only their norm, as under weight decay"
    if least <= SAME_DIRECTION:
        direction = f"their direction changed (smallest cosine {least:.3f}), so they must have been trained after all"
    return [Sentence(f"{text} by {_distances(others)}: {direction}.", rests_on)]


def _distances(rows: Sequence[TableRow]) -> str:
    """Return the smallest and the largest distance between these rows and their initial values, as text."""
    moved = [row.moved for row in rows if row.moved is not None]
    return " to ".join(dict.fromkeys(f"{each:.2f}" for each in (min(moved), max(moved))))


def _next_row(shown: PositionsShown, rests_on: str) -> list[Sentence]:
    """Return a sentence on whether a linear map from each trained row of a table to the next predicts held-out rows."""
    linear = shown.encoding.shift.linear
    if linear is None:
        return []
    text = f"A linear map is fitted from each of the {linear.n_rows} trained rows to the next row. Its error on a "
    text += f"held-out step is {percent(linear.held_out)} of the step's size: "
    if linear.held_out >= LIKE_GUESSING:
        end = "no better than predicting a step of 0, so trained rows do not predict the next row."
        return [Sentence(f"{text}{end}", rests_on)]
    end = "better than predicting a step of 0, so trained rows partly predict the next row."
    return [Sentence(f"{text}{end}", rests_on)]


def _step(title: str, shown: PositionsShown, rests_on: str) -> Sentence:
    """Return a sentence on whether the similarity of two positions depends on their distance alone."""
    encoding, beyond = shown.encoding, shown.n_positions - shown.n_trained
    if encoding.acts_on == "nothing":
        text = f"All {shown.n_positions} positions are the same to {title}: its encoding does nothing."
        return Sentence(text, rests_on)
    unexplained = encoding.shift.variance_beyond_distance
    text = f"In {title}{'' if encoding.name in title else f' ({encoding.name})'}, the similarity of two positions "
    if unexplained >= EXACT:
        text += f"does not depend on their distance alone: the distance leaves {percent(unexplained)} of its variance "
        return Sentence(f"{text}unexplained, over {shown.n_positions} positions.", rests_on)
    text += "depends on their distance alone"
    text += f" in sequences of {encoding.at_length} tokens, but differs at other lengths" if encoding.at_length else ""
    text += f", also at the {beyond} positions beyond the last trained one" if beyond > 0 else ""
    if _is_rotation(encoding):
        text += ": one rotation maps the vector of every position to the vector k positions later (no entry "
        text += f"is off by more than {encoding.shift.rotation_error:.2g}; entries go up to "
        text += f"{encoding.shift.largest_entry:.2g})"
    return Sentence(f"{text}.", rests_on)


def _is_rotation(encoding: EncodingProfile) -> bool:
    """Return whether a step of k positions is the same rotation of the vector at every position, up to rounding."""
    shift = encoding.shift
    if shift.rotation_error is None or shift.largest_entry is None:
        return False
    return shift.rotation_error < EXACT * shift.largest_entry


# --- the table --------------------------------------------------------------------------------------------------------


def positions_table(name: str, shown: PositionsShown, title: str = "", command: str = "") -> DataTable:
    """Return a table of questions about a model's position encoding, each with its answer in words."""
    rows = tuple(positions_rows(shown))
    return DataTable(name, f"Positions of {title or shown.name}", ("question", "answer"), rows, command=command)


def positions_rows(shown: PositionsShown) -> list[tuple[str, str]]:
    """Return questions about a model's position encoding as pairs of a question and its answer in words."""
    encoding, shift = shown.encoding, shown.encoding.shift
    rows = [
        ("encoding", f"{heading(encoding)}; acts on {encoding.acts_on}"),
        ("positions", trained_on(shown)),
        *((f"rows {state}", _row_words(shown, state)) for state in dict.fromkeys(row.state for row in shown.rows)),
    ]
    if shift.rotation_error is not None:
        rows.append(("is a step of k positions one rotation?", _rotation_words(encoding)))
    if (linear := shift.linear) is not None:
        fitted, held_out, rotation = share(linear.fitted), percent(linear.held_out), percent(linear.rotation)
        exact = (
            " (there are fewer steps than dimensions, so some map always fits)"
            if linear.n_rows <= linear.d_model
            else ""
        )
        verdict = " (no better than predicting 0)" if linear.held_out >= LIKE_GUESSING else ""
        text = f"fitted on rows 0 to {linear.n_rows - 1}, its error is {fitted} of the step's size on these "
        text += f"rows{exact} and {held_out} on held-out rows{verdict}; the error of the best rotation is {rotation}"
        rows.append(("is a step to the next row one linear map?", text))
    return [*rows, ("does similarity depend on distance alone?", _kernel_words(encoding))]


def _row_words(shown: PositionsShown, state: str) -> str:
    """Return in words what training did to those rows of a learned table that have a state, such as `never trained`."""
    rows = [row for row in shown.rows if row.state == state]
    span = f"{rows[0].position} to {rows[-1].position}"
    if state == "past the table":
        return f"{span}: {'the last row, repeated' if _is_repeated(rows) else 'random rows, as the table has none'}"
    if not any(row.moved is not None for row in rows):  # the initial rows are not known
        norms = [row.norm for row in rows]
        return f"{span}: norms of {min(norms):.2f} to {max(norms):.2f}"
    least = min(row.cosine for row in rows if row.cosine is not None)
    direction = "same direction" if least > SAME_DIRECTION else f"smallest cosine {least:.3f}"
    return f"{span}: moved by {_distances(rows)} from their initial values, {direction}"


def _rotation_words(encoding: EncodingProfile) -> str:
    """Return in words whether one rotation maps every position vector P(p) to P(p + k)."""
    shift, at = encoding.shift, f", at length {encoding.at_length}" if encoding.at_length else ""
    error, scale = f"{shift.rotation_error:.2g}", f"(entries of P: up to {shift.largest_entry:.2g})"
    if not _is_rotation(encoding):
        return f"no: with the sinusoids' rotation R_k, entries of P(p + k) - R_k P(p) reach {error} {scale}"
    text = f"yes{at}: with one rotation R_k for all p, no entry of P(p + k) - R_k P(p) is larger than {error} {scale}"
    if at:
        return f"{text}. At other lengths, the rotation R_k is different"
    return f"{text}. A step is the same beyond the trained positions; whether the model uses that was not tested"


def _kernel_words(encoding: EncodingProfile) -> str:
    """Return in words how much of the variance of K(t, s), the similarity of positions, is unexplained by distance."""
    if encoding.acts_on == "nothing":
        return "yes: all positions are the same"
    shift, among = encoding.shift, encoding.shift.variance_beyond_distance_trained
    trained = "" if among is None else f" (among trained positions {among:.2f})"
    verdict = "yes" if shift.variance_beyond_distance < EXACT else "no"
    text = f"{verdict}: the distance t - s leaves {shift.variance_beyond_distance:.2f} of the variance "
    text += f"unexplained{trained}"
    return f"{text}; largest deviation {shift.deviation:.2g}. {encoding.kernel_is}"


# --- the section of a report ------------------------------------------------------------------------------------------


def section(results: ReportResults) -> Section | None:
    """Return the section on the position encodings of all models for which they were measured; None without any."""
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
    """Return a figure that compares the encodings sinusoidal, learned and none, if the report has two of them."""
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
    """Return whether a model is a classifier with the named encoding and otherwise the standard architecture."""
    shown, result = model.positions, model.stretch
    if shown is None or shown.encoding.name != name or not is_class_task(model.task):
        return False
    return result is None or is_plain(result)


def _one_model(results: ReportResults, model: ModelResults) -> list[Block]:
    """Return the figure and the table on a model's position encoding; an encoding without effect has no figure."""
    shown, name = model.positions, results.block_id("positions", model)
    assert shown is not None, "only models whose positions were measured are in the section"
    command = f"headcount positions {argument(model.name)}"
    table = positions_table(f"{name}-table", shown, model.title, command)
    if shown.encoding.acts_on == "nothing":
        return [replace(table, id=name)]
    caption = f"Positions of {model.title}: {shown.encoding.name}, trained on positions 0 to {shown.n_trained - 1}"
    answers = " ".join(f"{question}: {answer}." for question, answer in positions_rows(shown)[2:4])
    alt = f"{caption}; {shown.n_positions} are shown. {answers}"
    return [Picture(name, caption, alt, lambda: draw_positions(shown), command), table]


PART = section
