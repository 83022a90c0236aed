"""Why sinusoidal positions can go on and a table cannot: the identities, each with the error computed for it."""

from __future__ import annotations

from collections.abc import Sequence

from headcount.describing import identities
from headcount.describing.blocks import Block, Cell, Conclusions, DataTable, Formula, Paragraph, Section
from headcount.describing.identities import PLACES, STEPS
from headcount.describing.math_words import (
    as_computed,
    as_multiset,
    identity_sentences,
    multiset_sentences,
    proofs,
    reached,
    row_sums,
    untouched,
)
from headcount.describing.reaches import hardest, is_plain, reach_of, up_to
from headcount.describing.story import Material, Subject
from headcount.figures.length_generalisation import mark

TASKS = ("addition", "sortedness")
D_MODEL = 128
"""The exercise's width, for models that do not say theirs."""
PROMISES = {
    "sinusoidal": "one step for all positions: it can go on",
    "learned": "past training, rows that met no gradient",
    "none": "a function of the multiset: it cannot tell order at all",
    "length-normalised": "another step at every length",
}


def section(material: Material) -> Section | None:
    """Of models of the exercise."""
    subjects = [each for each in material.subjects if each.task in TASKS]
    if not subjects:
        return None
    width = _width(subjects)
    errors = identities.rotation_error(width), identities.kernel_error(width)
    measured = _measured(subjects)
    found = [*identity_sentences(width, *errors), *multiset_sentences(subjects), *reached(subjects)]
    computed = f"Computed for this report at d = {width}, in double precision: at most {{:.1e}} off, over all {{}}."
    formulas: list[Formula] = [
        identities.attention(row_sums(subjects)),
        identities.gate(proofs(subjects)),
        identities.encoding(as_computed(subjects)),
        identities.rotation(computed.format(errors[0], f"p up to {PLACES} and k up to {STEPS}")),
        identities.kernel(computed.format(errors[1], f"t and s up to {PLACES}")),
        identities.lookup(untouched(subjects)),
        *([identities.multiset(as_multiset(subjects))] if any(each.task == "sortedness" for each in subjects) else []),
    ]
    words = "What an encoding makes possible is mathematics; whether a model makes use of it is a measurement."
    blocks: list[Block] = [Paragraph(words), Conclusions(tuple(found)), *formulas, *measured]
    title = "Why sinusoidal can go on and a table cannot" if measured else "The mathematics"
    return Section("mathematics", title, tuple(blocks))


def _without_positions(subject: Subject) -> str:
    """Where order comes in, if not by positions."""
    causal = "its causal mask tells order: a number sees those before it alone"
    return f"nothing; {causal}" if subject.settings.get("causal") else "nothing; order comes in elsewhere"


def _width(subjects: Sequence[Subject]) -> int:
    """Of the first model with sinusoids, or else of the first that says."""
    ordered = sorted(subjects, key=lambda each: each.settings.get("encoding") != "sinusoidal")
    for each in ordered:
        table = each.positions.encoding.table if each.positions else None
        width = each.settings.get("d_model") or (len(table[0]) if table else 0)
        if isinstance(width, int) and width > 1:
            return width
    return D_MODEL


def _measured(subjects: Sequence[Subject]) -> list[DataTable]:
    rows: list[tuple[Cell | str, ...]] = []
    for each in subjects:
        result = each.stretch
        reach = reach_of(result, hardest([result])) if result else None
        if result is None or reach is None or result.encoding not in PROMISES or not result.trained:
            continue
        has_order = result.encoding == "none" and not is_plain(result)
        promise = _without_positions(each) if has_order else PROMISES[result.encoding]
        far = Cell(up_to(reach), reach.length)
        rows.append(
            (
                each.title,
                f"{result.label} ({mark(result)})",
                promise,
                Cell(str(result.trained[1]), result.trained[1]),
                far,
            )
        )
    if not rows:
        return []
    columns = ("model", "configuration", "what its encoding promises", "trained up to", "right on the hardest ones")
    caption = "What mathematics allows, and what was measured"
    return [DataTable("mathematics-measured", caption, columns, tuple(rows), "How far: see the section on reach.")]


PART = section
