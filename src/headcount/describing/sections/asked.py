"""What was asked, of which models; the answers of all sections stand below it."""

from __future__ import annotations

from headcount.describing.blocks import Block, Commands, Notice, Paragraph, Section
from headcount.describing.story import IN_MEMORY, Material, Subject
from headcount.describing.words import counted, some, stand_ins
from headcount.errors import argument
from headcount.heads import HeadId, HeadSite

QUESTIONS = {
    "addition": "A model is given a sum such as 374+814 and writes the answer digit by digit. Is it right, what do "
    "its heads look at, and which of them count?",
    "sortedness": "A model is given a sequence of numbers and says whether it is in order. It was trained on short "
    "sequences: which way of telling positions still works on long ones?",
}
LETTERS = {
    "E": "E0H1 is head 1 of layer 0 of the encoder",
    "D": "D0H1 is one of the decoder's self-attention",
    "X": "X0H1 is one of the decoder's attention to the encoder",
    "L": "L0H1 is head 1 of layer 0 where there is one stack",
}
"""What short names of heads begin with."""
OTHERS = "What do the heads of a model look at, and which of them count?"


def _key(material: Material) -> str:
    """How heads are called, and what an ablation does."""
    stacks = {site.short[0] for each in material.subjects for site in _sites(each)}
    named = [words for letter, words in LETTERS.items() if letter in stacks]
    called = f"Heads are called by where they are, counted from 0: {some(named)}. " if named else ""
    results = [each.ablation for each in material.with_("ablation") if each.ablation]
    ways = dict.fromkeys(each.ranked_by for each in results)
    ways |= dict.fromkeys("resample" for each in results if "resample" in each.replacements)
    ablated = stand_ins(list(ways))
    in_points = any(each.ablation.unit == "points" for each in material.with_("ablation") if each.ablation)
    points = "A point is a hundredth of all examples." if in_points else ""
    return " ".join(filter(None, (called.strip(), ablated, points)))


def _sites(subject: Subject) -> list[HeadSite]:
    """Those that are shown or ablated."""
    ablated = [] if subject.ablation is None else [each.head for each in subject.ablation.heads]
    shown = [head.head for each in subject.patterns[:1] for site in each.sites for head in site.heads]
    return [HeadId.parse(head).site for head in (*shown, *ablated)]


def section(material: Material) -> Section:
    """Every report has it."""
    blocks: list[Block] = []
    for task in dict.fromkeys(each.task for each in material.subjects):
        models = [each for each in material.subjects if each.task == task]
        told = f"{counted(len(models), 'model')}: {some([each.title for each in models])}."
        blocks.append(Paragraph(f"{QUESTIONS.get(task or '', OTHERS)} {told}"))
    blocks += [Paragraph(key)] if (key := _key(material)) else []
    for subject in material.subjects:
        if subject.audit is not None and not subject.audit.is_sound:
            whose = subject.title if len(material.subjects) == 1 else f"The audit finds fault with {subject.title}"
            blocks.append(Notice("fail", f"{whose}: {subject.audit.summary}."))
    blocks += [_left_out(material)] if any(each.not_measured for each in material.subjects) else []
    return Section("asked", "What was asked, and the answer", tuple(blocks))


def _left_out(material: Material) -> Commands:
    """Name what there was no time for, with the command that measures it."""
    several = len(material.subjects) > 1
    lists = [
        f"{each.title}: {'; '.join(each.not_measured)}" if several else "; ".join(each.not_measured)
        for each in material.subjects
        if each.not_measured
    ]
    names = [argument(each.name) for each in material.subjects]
    data = dict.fromkeys(each.data_flags for each in material.subjects if each.data_flags)
    command = " ".join(["headcount report", *names, *data, "--thorough"])
    if any(each.name == IN_MEMORY for each in material.subjects):
        command = "headcount.report(..., thorough=True)"
    return Commands((command,), f"Not measured, to keep this report quick: {'. '.join(lists)}. To measure everything:")


PART = section
