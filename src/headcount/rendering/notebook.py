"""Results as a notebook shows them: the section of a report that tells of them, in a frame of its own, offline.

A frame, so that neither its style nor its scripts meet those of the notebook, and its policy holds.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from headcount.describing import SECTIONS
from headcount.describing.blocks import Block, Cell, DataTable, Picture, Section
from headcount.describing.markup import escaped
from headcount.describing.story import Material, Story, Subject
from headcount.errors import InputError
from headcount.figures.plotting import plot
from headcount.rendering.page import html_page
from headcount.results import Result

HEIGHT = 620
"""Pixels of a frame where the notebook does not let its script make the frame as high as its content."""
TITLES = {"longest chain": "the adder", "sorted": "the sorter"}
"""The name of a model whose result does not name it, by a group that only results on its task have."""
TOLD = {
    "Ablation": ("ablation", "ablation"),
    "Attention": ("patterns", "patterns"),
    "Audit": ("audit", "audit"),
    "Certificate": ("certificate", "certificate"),
    "Classification": ("evaluation", "training"),
    "Evaluation": ("evaluation", "training"),
    "HeadRoles": ("roles", "roles"),
    "PoolingComparison": ("poolings", "poolings"),
    "PositionsShown": ("positions", "positions"),
    "Pruning": ("pruning", "pruning"),
    "Specialisation": ("stats", "roles"),
    "Stretch": ("stretch", "reach"),
}
"""By the name of a result's class, or of one that it inherits: what it is of a subject, and the section about that."""
MOST_ROWS = 200
FRAME = "headcount-frame"
"""The class by which a page's script knows that its frame may grow (static/report.js)."""


def result_html(result: Result) -> str:
    """A frame with the result."""
    section, name = _section(result) or _plain(result), _name(result)
    title = name if getattr(result, "name", "") else name.capitalize()  # a path stays as it is
    page = html_page(Story(title, "", (section,), ""))
    look = f'class="{FRAME}" width="100%" height="{HEIGHT}"'
    return f'<iframe srcdoc="{escaped(page)}" title="{escaped(name)}" {look}></iframe>'


def _name(result: Result) -> str:
    """Return the model's name; of a result that has none, what kind of model it is about."""
    if name := getattr(result, "name", ""):
        return str(name)
    words = {word for row in getattr(result, "rows", ()) for word in (row.facet, row.group)}
    return next((title for word, title in TITLES.items() if word in words), "the model")


def _section(result: Result) -> Section | None:
    """As a report on this alone would have it; None if no section is about such results."""
    names = [each.__name__ for each in type(result).__mro__]
    field, name = next((TOLD[each] for each in names if each in TOLD), ("", ""))
    if not field:
        return None
    known: Any = (result,) if field == "patterns" else result
    task = "sortedness" if field == "stretch" else "addition"
    weights = str(getattr(result, "weights_sha256", ""))
    name_in_commands = str(getattr(result, "name", "") or "RUN")
    subject = Subject(name_in_commands, _name(result), weights, task, **{field: known})
    found: Section | None = SECTIONS.get(name)(Material(_name(result), (subject,), ""))
    return found


def _plain(result: Result) -> Section:
    """Its figure, if it has one, and its table."""
    rows = result.to_rows()[:MOST_ROWS]
    columns = tuple(dict.fromkeys(name for row in rows for name in row))
    cells = tuple(tuple(_cell(row.get(name)) for name in columns) for row in rows)
    blocks: list[Block] = [DataTable("table", type(result).__name__, columns, cells)]
    try:
        figure = plot(result)
    except InputError:  # it has none
        return Section("result", type(result).__name__, tuple(blocks))
    picture = Picture(
        "figure", type(result).__name__, f"The table below has its numbers: {len(rows)} rows.", partial(_same, figure)
    )
    return Section("result", type(result).__name__, (picture, *blocks))


def _same(figure: Any) -> Any:
    return figure


def _cell(value: Any) -> Cell:
    if isinstance(value, float | int) and not isinstance(value, bool):
        return Cell(f"{value:.4g}" if isinstance(value, float) else f"{value:,}", float(value))
    return Cell("" if value is None else str(value))
