"""Show a result in a notebook: the section that a report has about it, in an HTML frame that works offline.

The frame separates the style and the scripts of headcount's page from those of the notebook.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headcount.describing import SECTIONS, answer_lengths, claims, matching, weights
from headcount.describing.blocks import Block, Cell, DataTable, Picture, Section
from headcount.describing.report import ModelResults, Report, ReportResults
from headcount.errors import InputError
from headcount.figures.plotting import plot
from headcount.rendering.page import escaped, html_page
from headcount.results import Result
from headcount.tasks import TASKS, words_of

HEIGHT = 620
"""Height of the frame in pixels, used if the notebook forbids scripts to fit the frame to its content."""
SECTION_OF = {
    "Ablation": ("ablation", "ablation"),
    "Attention": ("patterns", "patterns"),
    "Audit": ("audit", "audit"),
    "Certificate": ("certificate", "certificate"),
    "Classification": ("evaluation", "training"),
    "ContextCertificate": ("certificate", "certificate"),
    "CounterexampleSearch": ("certificate", "certificate"),
    "Evaluation": ("evaluation", "training"),
    "HeadRoles": ("roles", "roles"),
    "PoolingComparison": ("poolings", "poolings"),
    "PositionsShown": ("positions", "positions"),
    "Pruning": ("pruning", "pruning"),
    "Routes": ("routes", "routes"),
    "Specialisation": ("stats", "roles"),
    "Stretch": ("stretch", "reach"),
    "WorstMargins": ("certificate", "certificate"),
}
"""Maps the class name of a result to two names: its field in `ModelResults`, and the section that describes it."""
DESCRIBED: Mapping[str, Callable[[Any], list[Block]]] = {
    "AnswerStretch": answer_lengths.describe,
    "ClaimResult": claims.describe,
    "ClaimsResult": claims.describe_all,
    "HeadWeights": weights.describe,
    "Matching": matching.describe,
}
"""Maps the class name of a result that has no section in a report to the function that describes it as blocks."""
MOST_ROWS = 200
FRAME = "headcount-frame"
"""The CSS class of frames whose height the script of the page may change (static/report.js)."""


def result_html(result: Result) -> str:
    """Return the description of a result as an HTML frame, which a notebook can show."""
    name = _name(result)
    title = name if getattr(result, "name", "") else name.capitalize()  # a path stays as it is
    section = _section(result) or Section("result", type(result).__name__, tuple(_blocks(result)))
    return frame(Report(title, "", (section,), ""), name)


def frame(report: Report, name: str) -> str:
    """Return an HTML frame that shows a report; `name` describes the frame to readers who cannot see it."""
    attributes = f'class="{FRAME}" width="100%" height="{HEIGHT}"'
    return f'<iframe srcdoc="{escaped(html_page(report))}" title="{escaped(name)}" {attributes}></iframe>'


@dataclass(frozen=True)
class Frame:
    """A report that a notebook shows if it is the last value of a cell."""

    report: Report

    def _repr_html_(self) -> str:
        return frame(self.report, self.report.title)


def _name(result: Result) -> str:
    """Return the name of the model that a result is about; if it has none, return a noun such as `the adder`."""
    if name := getattr(result, "name", ""):
        return str(name)
    groups = {word for row in getattr(result, "rows", ()) for word in (row.facet, row.group)}
    tasks = (words_of(task) for task in TASKS.names())
    return next((words.model for words in tasks if words.mark in groups), "the model")


def _section(result: Result) -> Section | None:
    """Return the section that a report would have about this result alone, or None for results without a section."""
    classes = [each.__name__ for each in type(result).__mro__]
    field, name = next((SECTION_OF[each] for each in classes if each in SECTION_OF), ("", ""))
    if not field:
        return None
    value: Any = (result,) if field == "patterns" else result
    weights = str(getattr(result, "weights_sha256", ""))
    name_in_commands = str(getattr(result, "name", "") or "RUN")
    model = ModelResults(name_in_commands, _name(result), weights, None, **{field: value})
    section: Section | None = SECTIONS.get(name)(ReportResults(_name(result), (model,), ""))
    return section


def _blocks(result: Result) -> list[Block]:
    """Return the blocks that describe a result without a section in a report, or else its figure and its table."""
    kind = type(result).__name__
    if kind in DESCRIBED:
        return DESCRIBED[kind](result)
    rows = result.to_rows()[:MOST_ROWS]
    columns = tuple(dict.fromkeys(name for row in rows for name in row))
    cells = tuple(tuple(_cell(row.get(name)) for name in columns) for row in rows)
    table = DataTable("table", kind, columns, cells)
    try:
        figure = plot(result)
    except InputError:  # it has none
        return [table]
    alt = f"The table below has the numbers of this figure, in {len(rows)} rows."
    return [Picture("figure", kind, alt, lambda: figure), table]


def _cell(value: Any) -> Cell:
    if isinstance(value, float | int) and not isinstance(value, bool):
        return Cell(f"{value:.4g}" if isinstance(value, float) else f"{value:,}", float(value))
    return Cell("" if value is None else str(value))
