"""What does each head attend to? A label is given where models that learned nothing attend less."""

from __future__ import annotations

from headcount.describing import roles, specialisation
from headcount.describing.blocks import Block, Conclusions, Paragraph, Section, Sentence
from headcount.describing.story import Material
from headcount.describing.words import briefly
from headcount.errors import argument


def section(material: Material) -> Section | None:
    """Describe every model whose heads were measured, in the terms of its task or of any text."""
    subjects = [*material.with_("stats"), *(each for each in material.with_("roles") if not each.stats)]
    if not subjects:
        return None
    blocks: list[Block] = [
        Paragraph(
            "A label says what a head attends to, on average over many examples. It does not say that the model uses "
            "what the head reads: ablation shows that. A head without a label may have a role that has no name here."
        )
    ]
    answers = list[Sentence]()
    for subject in subjects:
        title, name = subject.title, material.block_id("roles", subject)
        command = f"headcount heads {argument(subject.name)} --stats"
        if subject.stats is not None:
            sentences = specialisation.conclusions(subject.stats, title, name)
            shown: list[Block] = [
                specialisation.stats_picture(subject.stats, title, name, command),
                specialisation.stats_table(subject.stats, title, name, command),
            ]
        elif subject.roles is not None:
            sentences = roles.conclusions(subject.roles, title, name)
            tables = (roles.named_table, roles.unnamed_table, roles.heads_table)
            shown = roles.maps(subject.roles, title, name, command)
            shown += filter(None, (table(subject.roles, title, name, command) for table in tables))
        answers.append(Sentence(briefly(sentences[0].text, subject.settings), name, sentences[0].is_decided))
        blocks += [Conclusions(tuple(sentences)), *shown]
    return Section("roles", "What does each head attend to?", tuple(blocks), answers[0])


PART = section
