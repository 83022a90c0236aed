"""The section "Try it": the report's models run in the HTML page, where readers type examples and switch heads off."""

from __future__ import annotations

from typing import Any

from headcount.describing.blocks import Block, LiveEntry, LiveModels, Paragraph, Section
from headcount.describing.report import ModelResults, ReportResults
from headcount.describing.sections.patterns import worth
from headcount.describing.verification import proved_briefly
from headcount.describing.words import short
from headcount.errors import argument

MOST_WRONG = 2
"""Number of wrong answers of one model that get a button in the page."""


def section(results: ReportResults) -> Section | None:
    """Return the section in which the HTML page runs the report's models, or None if it can run none of them."""
    models = results.with_result("live")
    if not models:
        return None
    blocks: list[Block] = []
    groups: dict[Any, list[ModelResults]] = {}
    for model in models:
        assert model.live is not None, "these models are live"
        groups.setdefault(model.live.task.form, []).append(model)
    for i, group in enumerate(groups.values()):
        same_task = [form for form in groups if form[0] == group[0].task]
        blocks += _task_blocks(group, f"-{i}" if len(same_task) > 1 else "", is_first=not i)
    return Section("live", "Try it", tuple(blocks))


def _task_blocks(models: list[ModelResults], suffix: str, *, is_first: bool) -> list[Block]:
    """Return report blocks with one interactive figure for several models that read and write the same tokens."""
    first = models[0].live
    assert first is not None, "these models are live"
    words, is_class = first.task.words, first.task.kind == "class"
    typed = f"Type a {words['example']}" if first.task.script else f"Choose one of the {words['examples']}"
    typed = f"Change the row of {words['symbols']}" if is_class else typed
    text = f"{typed}. Click on an attention head to switch it off and see how the answer changes. "
    text += "The model runs in this page, without a network connection."
    text = text if is_first else f"{typed}."
    single = [each.title for each in models if each.live and each.live.precision == "single"]
    exact = f", except those of {' and '.join(single)}, for which rounding would change an answer" if single else ""
    caption = f"The weights in this page are rounded to half precision{exact}. "
    caption += "Proofs are about the unrounded weights."
    command = f"headcount report {' '.join(argument(each.name) for each in models)} --live-only"
    return [
        Paragraph(text),
        LiveModels(f"live-{first.task.name}{suffix}", caption, tuple(map(_entry, models)), command),
    ]


def _entry(model: ModelResults) -> LiveEntry:
    assert model.live is not None, "the model is live"
    return LiveEntry(model.title, model.live, _worth(model), _harmless(model), _routes(model), *_examples(model))


def _worth(model: ModelResults) -> dict[str, str]:
    """Return a mapping from a head's short name to the drop without this head, as text without its unit."""
    return {head: text.partition(" ")[0] for head, text in worth(model).items()}


def _harmless(model: ModelResults) -> tuple[str, ...]:
    """Return the short names of heads that are redundant: each costs under 1 point when it is ablated alone."""
    result = model.ablation
    if result is None:
        return ()
    effects = result.effects(result.ranked_by, result.conditions[0].length)
    return tuple(short(each.head) for each in effects if each.band == "redundant")


def _routes(model: ModelResults) -> tuple[dict[str, Any], ...]:
    """Return each route of the task's event, such as the carry from 1s to 10s: a title, and the heads that move it."""
    if model.routes is None:
        return ()
    found = []
    for way in model.routes.ways:
        heads = [{"short": each.what, "share": each.moved.share} for each in model.routes.movers(way.name)]
        if heads:
            found.append({"title": f"from the {way.source} into the {way.read}", "heads": heads})
    return tuple(found)


def _examples(model: ModelResults) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """Return the examples that the report names, wrong answers that `headcount verify` found, and what it proved."""
    wrong = tuple(each.example for each in getattr(model.certificate, "wrong", ())[:MOST_WRONG])
    return tuple(model.texts), wrong, "" if model.certificate is None else proved_briefly(model.certificate)


PART = section
