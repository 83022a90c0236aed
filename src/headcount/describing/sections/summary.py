"""The first section of a report: its question, its models, how heads are named, and what was not measured."""

from __future__ import annotations

from headcount.describing.blocks import Block, Commands, Paragraph, Section
from headcount.describing.report import ModelResults, ReportResults
from headcount.describing.sections.reproduce import report_command
from headcount.describing.words import counted, some, stand_ins
from headcount.heads import HeadId, HeadSite
from headcount.tasks import words_of

LETTERS = {
    "E": "E0H1 is head 1 of layer 0 of the encoder",
    "D": "D0H1 is head 1 of the decoder's self-attention in layer 0",
    "X": "X0H1 is head 1 of the decoder's cross-attention in layer 0",
    "L": "L0H1 is head 1 of layer 0 in a model with one stack",
}
"""Maps the first letter of a head's short name to an explanation of such names."""
MOST_NAMED = 3
"""Largest number of omitted measurements that the summary names; the section on how to reproduce names all."""


def section(results: ReportResults) -> Section:
    """Return the summary: the question, the models, how heads are named, and what was left out to save time."""
    blocks: list[Block] = []
    for task in dict.fromkeys(each.task for each in results.models):
        titles = [each.title for each in results.models if each.task == task]
        models = f"{counted(len(titles), 'model')}: {some(titles)}."
        blocks.append(Paragraph(f"{words_of(task).question} {models}"))
    blocks += [Paragraph(key)] if (key := _key(results)) else []
    left_out = list(dict.fromkeys(words for each in results.models for words in each.not_measured))
    if left_out:
        text = f"To save time, this report leaves out {some(left_out, MOST_NAMED)}. To measure everything, run:"
        blocks.append(Commands((report_command(results.models, is_thorough=True),), text))
    return Section("summary", "Summary", tuple(blocks))


def _key(results: ReportResults) -> str:
    """Return sentences on how heads are named, and on what the kinds of ablation in this report do."""
    stacks = {site.short[0] for each in results.models for site in _sites(each)}
    names = [words for letter, words in LETTERS.items() if letter in stacks]
    text = "The name of a head says where it is, with layers and heads counted from 0: "
    naming = f"{text}{some(names)}." if names else ""
    ablations = [each.ablation for each in results.models if each.ablation is not None]
    replacements = dict.fromkeys(each.ranked_by for each in ablations)
    replacements |= dict.fromkeys("resample" for each in ablations if "resample" in each.replacements)
    in_points = any(each.unit == "points" for each in ablations)
    points = "A drop of 1 point means that accuracy falls by one percent of all examples." if in_points else ""
    return " ".join(filter(None, (naming, stand_ins(list(replacements)), points)))


def _sites(model: ModelResults) -> list[HeadSite]:
    """Return the attention blocks of a model whose attention patterns or ablated heads are in the report."""
    ablated = [] if model.ablation is None else [each.head for each in model.ablation.heads]
    shown = [head.head for each in model.patterns[:1] for site in each.sites for head in site.heads]
    return [HeadId.parse(head).site for head in (*shown, *ablated)]


PART = section
