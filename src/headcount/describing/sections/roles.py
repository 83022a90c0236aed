"""What does each head attend to? A label is given where models that learned nothing attend less."""

from __future__ import annotations

from headcount.describing import roles, specialisation
from headcount.describing.blocks import Block, Section, Sentence
from headcount.describing.report import ModelResults, ReportResults, section_by_model
from headcount.errors import argument

EXPLANATION = (
    "A label says what a head attends to, on average over many examples. It does not say that the model uses what the "
    "head reads: ablation shows that. A head without a label may have a role that has no name here."
)


def section(results: ReportResults) -> Section | None:
    """Describe every model whose heads were measured, in the terms of its task or of any text."""
    models = [*results.with_result("stats"), *(each for each in results.with_result("roles") if not each.stats)]
    return section_by_model(results, "roles", "What does each head attend to?", EXPLANATION, models, _describe)


def _describe(model: ModelResults, name: str) -> tuple[list[Sentence], list[Block]]:
    """Return the conclusions, figures and tables about the heads of one model."""
    title, command = model.title, f"headcount heads {argument(model.name)} --stats"
    if model.stats is not None:
        picture = specialisation.stats_picture(model.stats, title, name, command)
        table = specialisation.stats_table(model.stats, title, name, command)
        return specialisation.conclusions(model.stats, title, name), [picture, table]
    assert model.roles is not None, "the heads were measured"
    tables = (make(model.roles, title, name, command) for make in roles.TABLES)
    blocks = [*roles.maps(model.roles, title, name, command), *filter(None, tables)]
    return roles.conclusions(model.roles, title, name), blocks


PART = section
