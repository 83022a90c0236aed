"""What was asked, of which models; the answers of all sections stand below it."""

from __future__ import annotations

from headcount.reporting.blocks import Block, Notice, Paragraph, Section
from headcount.reporting.story import Material
from headcount.reporting.words import counted, some

QUESTIONS = {
    "addition": "A model is given a sum such as 374+814 and writes the answer digit by digit. Is it right, what do "
    "its heads look at, and which of them count?",
    "sortedness": "A model is given a sequence of numbers and says whether it is in order. It was trained on short "
    "sequences: which way of telling positions still works on long ones?",
}
OTHERS = "What do the heads of a model look at, and which of them count?"


def section(material: Material) -> Section:
    """Every report has it."""
    blocks: list[Block] = []
    for task in dict.fromkeys(each.task for each in material.subjects):
        models = [each for each in material.subjects if each.task == task]
        told = f"{counted(len(models), 'model')}: {some([each.title for each in models])}."
        blocks.append(Paragraph(f"{QUESTIONS.get(task or '', OTHERS)} {told}"))
    for subject in material.subjects:
        if subject.audit is not None and not subject.audit.is_sound:
            blocks.append(Notice("fail", f"{subject.title}: {subject.audit.summary}."))
    return Section("asked", "What was asked, and the answer", tuple(blocks))


PART = section
