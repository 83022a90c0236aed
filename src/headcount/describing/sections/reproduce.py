"""How to make it again: every command that made what is shown, in order."""

from __future__ import annotations

from headcount.describing.blocks import Block, Commands, Paragraph, Section
from headcount.describing.commands import SAMPLE, commands_of, on_flag, stretch_commands, train_command
from headcount.describing.story import Material, Subject
from headcount.errors import argument


def section(material: Material) -> Section | None:
    """Each model by itself, then what was made of several."""
    blocks: list[Block] = [
        Paragraph(
            "Whatever has a seed gives the same again on the same kind of machine. A report reads what is stored with "
            "a model and makes what is missing, so that the last command does all above it but the training."
        )
    ]
    for subject in material.subjects:
        commands = tuple(commands_of(subject))
        if commands:
            blocks.append(Commands(commands, f"{subject.title}{_origin(subject)}:"))
    if lengths := stretch_commands(material.subjects):
        blocks.append(Commands(tuple(lengths), "How far models reach:"))
    names = [argument(each.name) for each in material.subjects]
    data = dict.fromkeys(each.data_flags for each in material.subjects if each.data_flags)
    texts = dict.fromkeys(on_flag(text) for each in material.subjects for text in each.texts)
    made = " ".join(["headcount report", *names, *data, *texts])
    blocks.append(Commands((made,), "This report:"))
    return Section("reproduce", "How to make it again", tuple(blocks))


def _origin(subject: Subject) -> str:
    """Why there is no command that trains it."""
    if train_command(subject):
        return ""
    if subject.name.startswith(SAMPLE):
        return ", which comes with the package"
    return ", which was cut from another run" if subject.settings.get("pruned") else ", a model of others"


PART = section
