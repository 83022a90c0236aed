"""The section of a report on attention blocks: where in the model are the important heads?"""

from __future__ import annotations

from headcount.describing.blocks import Block, Picture, Section, Sentence
from headcount.describing.commands import ablate_command
from headcount.describing.report import ModelResults, ReportResults, section_by_model
from headcount.describing.sites import block_table, by_block, conclusions, sites_of
from headcount.describing.words import amount, some
from headcount.figures.ablation import draw_map

EXPLANATION = (
    "An attention block is one layer of one kind of attention. The cost of a block is the mean drop of its heads, each "
    "ablated alone. Drops of single heads do not add up, because heads can replace each other or depend on each other. "
    "So this shows where the important heads are, and not what a whole block is worth."
)


def section(results: ReportResults) -> Section | None:
    """Describe every model whose heads were ablated and that has more than one attention block."""
    models = [each for each in results.with_result("ablation") if each.ablation and len(sites_of(each.ablation)) > 1]
    title = "Where in the model are the important heads?"
    return section_by_model(results, "sites", title, EXPLANATION, models, _described)


def _described(model: ModelResults, name: str) -> tuple[list[Sentence], list[Block]]:
    result, command = model.ablation, ablate_command(model)
    assert result is not None, "only models with an ablation are described"
    drops = [f"{each.name} {amount(each.estimate[0], result.unit)}" for each in by_block(result, result.ranked_by)]
    caption = f"Drop without each head of {model.title}: attention blocks down, heads across"
    alt = f"Mean drop per head: {some(drops, 12)}."
    return conclusions(result, model.title, name), [
        Picture(name, caption, alt, lambda: draw_map(result, result.conditions[0]), command),
        block_table(result, model.title, name, command),
    ]


PART = section
