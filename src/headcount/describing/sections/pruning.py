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
from headcount.describing.story import Material, Subject, section_by_model
from headcount.describing.words import briefly
from headcount.figures.pruning import draw_pruning

EXPLANATION = (
    "Removing a head sets its output to zero. Heads are chosen on some examples and measured on others. At each step, "
    "greedy removal takes the head whose removal costs least, and measures all heads again. It is compared with "
    "simpler orders, with random orders, and with the best of as many random sets as greedy removal tried."
)


def section(material: Material) -> Section | None:
    """Describe every model whose heads were removed together."""
    subjects = material.with_("pruning")
    title = "Which heads can be removed together?"
    found = section_by_model(material, "pruning", title, EXPLANATION, subjects, _described)
    return found and replace(found, answer=_answer(material, subjects[0]))


def _answer(material: Material, subject: Subject) -> Sentence:
    """Say what can be removed, and what is left without all heads that are harmless alone."""
    result = subject.pruning
    assert result is not None, "only models with a pruning are described"
    greedy, n = greedy_sentence(subject.title, result), len(result.by_zero)
    text = greedy.text
    if n > 1 and result.by_zero_left.drop is not None:
        left = point_text(result, result.by_zero_left)
        text += f" Removing all {n} heads that are individually harmless leaves {left}."
    return Sentence(
        briefly(text, subject.settings), material.block_id("pruning", subject), is_decided=greedy.is_decided
    )


def _described(subject: Subject, name: str) -> tuple[list[Sentence], list[Block]]:
    result, command = subject.pruning, prune_command(subject)
    assert result is not None, "only models with a pruning are described"
    notices = [Notice("fail", f"{subject.title}: {result.audit}.")] if result.audit else []
    about = f"chosen on {result.chosen_on}, measured on {result.measured_on} (n = {result.n:,})"
    alt = " ".join(each.text for each in (greedy_sentence(subject.title, result), *harmless_sentences(result)))
    caption = f"What is left of {subject.title} as heads are removed: {about}"
    return conclusions(result, subject.title, name, subject.ablation), [
        *notices,
        *share_table(result, subject.title, f"{name}-shares", command),
        Picture(name, caption, alt, lambda: draw_pruning(result), command),
        curve_table(result, f"{name}-curves", command, subject.title),
    ]


PART = section
