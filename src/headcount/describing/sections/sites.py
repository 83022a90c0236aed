"""The section of a report on attention blocks: where in the model are the important heads?"""

from __future__ import annotations

from headcount.describing.blocks import Block, Picture, Section, Sentence
from headcount.describing.commands import ablate_command
from headcount.describing.sites import block_table, by_block, conclusions, sites_of
from headcount.describing.story import Material, Subject, section_by_model
from headcount.describing.words import amount, some
from headcount.figures.ablation import draw_map

EXPLANATION = (
    "An attention block is one layer of one kind of attention. The cost of a block is the mean drop of its heads, each "
    "ablated alone. Drops of single heads do not add up, because heads can replace each other or depend on each other. "
    "So this shows where the important heads are, and not what a whole block is worth."
)


def section(material: Material) -> Section | None:
    """Describe every model whose heads were ablated and that has more than one attention block."""
    subjects = [each for each in material.with_("ablation") if each.ablation and len(sites_of(each.ablation)) > 1]
    title = "Where in the model are the important heads?"
    return section_by_model(material, "sites", title, EXPLANATION, subjects, _described)


def _described(subject: Subject, name: str) -> tuple[list[Sentence], list[Block]]:
    result, command = subject.ablation, ablate_command(subject)
    assert result is not None, "only models with an ablation are described"
    drops = [f"{each.name} {amount(each.estimate[0], result.unit)}" for each in by_block(result, result.ranked_by)]
    caption = f"Drop without each head of {subject.title}: attention blocks down, heads across"
    alt = f"Mean drop per head: {some(drops, 12)}."
    return conclusions(result, subject.title, name), [
        Picture(name, caption, alt, lambda: draw_map(result, result.conditions[0]), command),
        block_table(result, subject.title, name, command),
    ]


PART = section
