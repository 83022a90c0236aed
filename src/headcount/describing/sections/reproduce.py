"""How to reproduce the report: every command, in order, and what a quick report left out."""

from __future__ import annotations

from headcount.describing.blocks import Block, Commands, Paragraph, Section
from headcount.describing.commands import SAMPLE, commands_of, report_command, stretch_commands, train_command
from headcount.describing.report import ModelResults, ReportResults


def section(results: ReportResults) -> Section:
    """List the commands of each model, then those for several models."""
    blocks: list[Block] = [
        Paragraph(
            "Results with a seed are reproducible on the same kind of machine. A report reads the results that are "
            "stored with a model and measures the others, so the last command does everything but the training."
        )
    ]
    for model in results.models:
        if commands := commands_of(model):
            blocks.append(Commands(tuple(commands), f"{model.title}{_origin(model)}:"))
    if commands := stretch_commands(results.models):
        blocks.append(Commands(tuple(commands), "Accuracy by length:"))
    blocks.append(Commands((report_command(results.models),), "This report:"))
    left_out = [(each.title, "; ".join(each.not_measured)) for each in results.models if each.not_measured]
    for title, words in left_out:
        blocks.append(Paragraph(f"Not measured for {title}, to be quick: {words}."))
    return Section("reproduce", "How to reproduce this report", tuple(blocks))


def _origin(model: ModelResults) -> str:
    """Say why no command trains a model."""
    if train_command(model):
        return ""
    if model.name.startswith(SAMPLE):
        return ", which comes with the package"
    return ", which was cut from another run" if model.settings.get("pruned") else ", which was not trained here"


PART = section
