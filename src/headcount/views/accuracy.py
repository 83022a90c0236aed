"""How often a model is right, by group, each share with its interval."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from headcount.views.style import BLUE, ORANGE, Page, plain

if TYPE_CHECKING:
    from headcount.statistics import Share
    from headcount.training.classification import Classification, ClassScores
    from headcount.training.evaluation import Evaluation, Scores


def draw_accuracy(evaluation: Evaluation | Classification, title: str) -> Figure:
    """One row per group."""
    rows, columns = evaluation.rows, evaluation.COLUMNS
    figure = Page(8, 0.32 * len(rows) + 1.0)
    axes = figure.subplots()
    looks = list(zip(reversed(columns), ((BLUE, "o"), (ORANGE, "s")), strict=False))
    for y, scores in enumerate(rows):
        for i, (key, (colour, marker)) in enumerate(looks):
            if share := getattr(scores, key):
                beside = 0.26 * (i - (len(looks) - 1) / 2)
                _dot(axes, share, y + beside, colour, marker, columns[key] if y == 0 else None)
    axes.set_yticks(range(len(rows)), [f"{plain(_name(s), 48)}  (n = {_n(evaluation, s):,})" for s in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set(xlabel="right (%), with 95 % Wilson interval")
    axes.grid(axis="x", alpha=0.25)
    figure.headline(title, size=12)
    if len(columns) > 1:
        figure.key(*axes.get_legend_handles_labels(), size=10)
    return figure


def accuracy_table(evaluation: Evaluation | Classification) -> Table:
    """The same as text."""
    table = Table(title=f"{evaluation.split} set", title_justify="left")
    table.add_column("group")
    for name in ("n", *evaluation.COLUMNS.values()):
        table.add_column(name, justify="right")
    for row in accuracy_rows(evaluation):
        table.add_row(*row)
    return table


def accuracy_rows(evaluation: Evaluation | Classification) -> list[tuple[str, ...]]:
    """Group, n, and one text per column."""
    return [
        (
            _name(scores),
            f"{_n(evaluation, scores):,}",
            *(_text(getattr(scores, key), _n(evaluation, scores)) for key in evaluation.COLUMNS),
        )
        for scores in evaluation.rows
    ]


def answers_note(evaluation: Evaluation | Classification) -> str:
    """How often a classifier gives each answer; empty for a model that writes its answers."""
    says = getattr(evaluation, "says", ())
    shares = ", ".join(f"“{each.group}” to {percent(each.right)}" for each in says)
    if constant := getattr(evaluation, "constant", None):
        return f"CONSTANT: it says “{constant}” to (nearly) everything ({shares})"
    return f"it says {shares}" if says else ""


def _n(evaluation: Evaluation | Classification, scores: Scores | ClassScores) -> int:
    """The last column is the one that is always asked."""
    share: Share = getattr(scores, list(evaluation.COLUMNS)[-1])
    return share.n


def _text(share: Share | None, n: int) -> str:
    """Teacher forcing may ask for fewer than there are, or for none."""
    if share is None:
        return "not asked"
    return percent(share) + (f", n={share.n:,}" if share.n < n else "")


def percent(share: Share) -> str:
    """`99.95 % [99.72, 99.99]`."""
    return f"{100 * share.rate:.2f} % [{100 * share.low:.2f}, {100 * share.high:.2f}]"


def _name(scores: Scores | ClassScores) -> str:
    return f"{scores.facet}: {scores.group}"


def _dot(axes: Axes, share: Share, y: float, colour: str, marker: str, label: str | None) -> None:
    doubt = [[100 * (share.rate - share.low)], [100 * (share.high - share.rate)]]
    axes.errorbar(
        100 * share.rate, y, xerr=doubt, fmt=marker, color=colour, markersize=5, capsize=2, linewidth=1, label=label
    )
