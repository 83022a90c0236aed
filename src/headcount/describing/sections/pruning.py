"""The section of a report on pruning: which heads can be removed together?"""

from __future__ import annotations

from dataclasses import replace

from headcount.describing.blocks import Block, Notice, Picture, Section, Sentence
from headcount.describing.commands import prune_command
from headcount.describing.pruning import (
    conclusions,
    curve_table,
    greedy_sentence,
    harmless_sentences,
    point_text,
    share_table,
)
from headcount.describing.report import ModelResults, ReportResults, section_by_model
from headcount.describing.words import briefly
from headcount.figures.pruning import draw_pruning

EXPLANATION = (
    "Removing a head sets its output to zero. Heads are chosen on some examples and measured on others. At each step, "
    "greedy removal takes the head whose removal costs least, and measures all heads again. It is compared with "
    "simpler orders, with random orders, and with the best of as many random sets as greedy removal tried."
)


def section(results: ReportResults) -> Section | None:
    """Describe every model whose heads were removed together."""
    models = results.with_result("pruning")
    title = "Which heads can be removed together?"
    found = section_by_model(results, "pruning", title, EXPLANATION, models, _described)
    return found and replace(found, answer=_answer(results, models[0]))


def _answer(results: ReportResults, model: ModelResults) -> Sentence:
    """Say what can be removed, and what is left without all heads that are harmless alone."""
    result = model.pruning
    assert result is not None, "only models with a pruning are described"
    greedy, n = greedy_sentence(model.title, result), len(result.by_zero)
    text = greedy.text
    if n > 1 and result.by_zero_left.drop is not None:
        left = point_text(result, result.by_zero_left)
        text += f" Removing all {n} heads that are individually harmless leaves {left}."
    return Sentence(briefly(text, model.settings), results.block_id("pruning", model), is_decided=greedy.is_decided)


def _described(model: ModelResults, name: str) -> tuple[list[Sentence], list[Block]]:
    result, command = model.pruning, prune_command(model)
    assert result is not None, "only models with a pruning are described"
    notices = [Notice("fail", f"{model.title}: {result.audit}.")] if result.audit else []
    about = f"chosen on {result.chosen_on}, measured on {result.measured_on} (n = {result.n:,})"
    alt = " ".join(each.text for each in (greedy_sentence(model.title, result), *harmless_sentences(result)))
    caption = f"What is left of {model.title} as heads are removed: {about}"
    return conclusions(result, model.title, name, model.ablation), [
        *notices,
        *share_table(result, model.title, f"{name}-shares", command),
        Picture(name, caption, alt, lambda: draw_pruning(result), command),
        curve_table(result, f"{name}-curves", command, model.title),
    ]


PART = section
