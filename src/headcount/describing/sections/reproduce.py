"""How to reproduce the report: every command, in order, and what a quick report left out."""

from __future__ import annotations

from headcount.describing.blocks import Block, Commands, Paragraph, Section
from headcount.describing.commands import SAMPLE, commands_of, report_command, stretch_commands, train_command
from headcount.describing.story import Material, Subject


def section(material: Material) -> Section:
    """List the commands of each model, then those for several models."""
    blocks: list[Block] = [
        Paragraph(
            "Results with a seed are reproducible on the same kind of machine. A report reads the results that are "
            "stored with a model and measures the others, so the last command does everything but the training."
        )
    ]
    for subject in material.subjects:
        if commands := commands_of(subject):
            blocks.append(Commands(tuple(commands), f"{subject.title}{_origin(subject)}:"))
    if commands := stretch_commands(material.subjects):
        blocks.append(Commands(tuple(commands), "Accuracy by length:"))
    blocks.append(Commands((report_command(material.subjects),), "This report:"))
    left_out = [(each.title, "; ".join(each.not_measured)) for each in material.subjects if each.not_measured]
    for title, words in left_out:
        blocks.append(Paragraph(f"Not measured for {title}, to be quick: {words}."))
    return Section("reproduce", "How to reproduce this report", tuple(blocks))


def _origin(subject: Subject) -> str:
    """Say why no command trains a model."""
    if train_command(subject):
        return ""
    if subject.name.startswith(SAMPLE):
        return ", which comes with the package"
    return ", which was cut from another run" if subject.settings.get("pruned") else ", which was not trained here"


PART = section
