"""The section of a report on ablation: how important is each head alone?"""

from __future__ import annotations

from headcount.describing.ablation import conclusions, costliest, leader_text, ranking_table, warnings
from headcount.describing.blocks import Block, Picture, Section, Sentence
from headcount.describing.commands import ablate_command
from headcount.describing.report import ModelResults, ReportResults, section_by_model
from headcount.figures.ablation import draw_ranking

EXPLANATION = (
    "Zero ablation removes a head: it sets the head's output to zero where it enters the residual stream. Heads are "
    "ranked by what that costs. Resample ablation replaces the output with the head's output on another example. This "
    "misleads the model, so a head that can be removed for nothing may cost much here. Mean ablation keeps the head's "
    "mean output. Every ablation was verified to act, and is compared with the whole model on the same examples."
)


def section(results: ReportResults) -> Section | None:
    """Describe every model whose heads were ablated."""
    models = results.with_result("ablation")
    return section_by_model(results, "ablation", "How important is each head alone?", EXPLANATION, models, _described)


def _described(model: ModelResults, name: str) -> tuple[list[Sentence], list[Block]]:
    result = model.ablation
    assert result is not None, "only models with an ablation are described"
    condition, command = result.conditions[0], ablate_command(model)
    alt = leader_text(result, result.ranked_by, costliest(result, condition, result.ranked_by))
    caption = f"Drop without each head of {model.title}, one head at a time ({condition.data}, n = {condition.n:,})"
    return conclusions(result, condition, model.title, name), [
        *warnings(result, condition),
        Picture(name, caption, alt, lambda: draw_ranking(result, condition), command),
        ranking_table(result, condition, f"{name}-ranking", command, model.title),
    ]


PART = section
