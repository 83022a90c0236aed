"""What does each head attend to? A label is given where models that learned nothing attend less."""

from __future__ import annotations

from headcount.describing import roles, specialisation
from headcount.describing.blocks import Block, Section, Sentence
from headcount.describing.story import Material, Subject, section_by_model
from headcount.errors import argument

EXPLANATION = (
    "A label says what a head attends to, on average over many examples. It does not say that the model uses what the "
    "head reads: ablation shows that. A head without a label may have a role that has no name here."
)


def section(material: Material) -> Section | None:
    """Describe every model whose heads were measured, in the terms of its task or of any text."""
    subjects = [*material.with_("stats"), *(each for each in material.with_("roles") if not each.stats)]
    return section_by_model(material, "roles", "What does each head attend to?", EXPLANATION, subjects, _describe)


def _describe(subject: Subject, name: str) -> tuple[list[Sentence], list[Block]]:
    """Return the conclusions, figures and tables about the heads of one model."""
    title, command = subject.title, f"headcount heads {argument(subject.name)} --stats"
    if subject.stats is not None:
        picture = specialisation.stats_picture(subject.stats, title, name, command)
        table = specialisation.stats_table(subject.stats, title, name, command)
        return specialisation.conclusions(subject.stats, title, name), [picture, table]
    assert subject.roles is not None, "the heads were measured"
    tables = (make(subject.roles, title, name, command) for make in roles.TABLES)
    blocks = [*roles.maps(subject.roles, title, name, command), *filter(None, tables)]
    return roles.conclusions(subject.roles, title, name), blocks


PART = section
