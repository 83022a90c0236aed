"""Try it: the trained models of a report run in the page, where readers type examples and switch heads off."""

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
    """Return the section in which the page runs models, or None if it can run none."""
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
    """Return blocks on models that read and write equal tokens, so that one figure can show all of them."""
    first = models[0].live
    assert first is not None, "these models are live"
    words, is_class = first.task.words, first.task.kind == "class"
    typed = f"Type a {words['example']}" if first.task.script else f"Choose one of the {words['examples']}"
    typed = f"Change the row of {words['symbols']}" if is_class else typed
    text = f"{typed}. Click on a head to switch it off: heads decide which tokens the model looks at. "
    text += "The model runs in this page, without a network."
    text = text if is_first else f"{typed}."
    single = [each.title for each in models if each.live and each.live.precision == "single"]
    exact = f"; in single precision for {' and '.join(single)}, where rounding would change an answer" if single else ""
    caption = f"Weights are rounded to half precision{exact}. "
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
    """Return, by the head's short name, the drop without it as a bare number; the page writes the unit above."""
    return {head: text.partition(" ")[0] for head, text in worth(model).items()}


def _harmless(model: ModelResults) -> tuple[str, ...]:
    """Return the short names of heads that are redundant when ablated alone."""
    result = model.ablation
    if result is None:
        return ()
    effects = result.effects(result.ranked_by, result.conditions[0].length)
    return tuple(short(each.head) for each in effects if each.band == "redundant")


def _routes(model: ModelResults) -> tuple[dict[str, Any], ...]:
    """Return, for each way of the task's event (1s to 10s), a title and the heads that move the event."""
    if model.routes is None:
        return ()
    found = []
    for way in model.routes.ways:
        heads = [{"short": each.what, "share": each.moved.share} for each in model.routes.movers(way.name)]
        if heads:
            found.append({"title": f"from the {way.source} into the {way.read}", "heads": heads})
    return tuple(found)


def _examples(model: ModelResults) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """Return three things: examples that the report names, wrong answers that `verify` found, and what it proved."""
    wrong = tuple(each.example for each in getattr(model.certificate, "wrong", ())[:MOST_WRONG])
    return tuple(model.texts), wrong, "" if model.certificate is None else proved_briefly(model.certificate)


PART = section
