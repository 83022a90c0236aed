"""Accuracy by digit, by carries and by size, under teacher forcing and free-running, each with its interval."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from headcount.views.style import BLUE, ORANGE

if TYPE_CHECKING:
    from headcount.statistics import Share
    from headcount.training.evaluation import Evaluation, Scores


def draw_accuracy(evaluation: Evaluation, title: str) -> Figure:
    """One row per group."""
    rows = _rows(evaluation)
    figure = Figure(figsize=(8, 0.32 * len(rows) + 1.8), layout="constrained")
    axes = figure.subplots()
    for y, scores in enumerate(rows):
        _dot(axes, scores.free_running, y - 0.13, BLUE, "o", "free-running" if y == 0 else None)
        if scores.teacher_forced:
            _dot(axes, scores.teacher_forced, y + 0.13, ORANGE, "s", "teacher-forced" if y == 0 else None)
    axes.set_yticks(range(len(rows)), [f"{_name(s)}  (n = {s.free_running.n:,})" for s in rows])
    axes.invert_yaxis()
    axes.set(xlabel="right (%), with 95 % Wilson interval", title=title)
    axes.grid(axis="x", alpha=0.25)
    figure.legend(frameon=False, loc="outside lower center", ncols=2)
    return figure


def accuracy_table(evaluation: Evaluation) -> Table:
    """The same as text."""
    table = Table(title=f"{evaluation.split} set", title_justify="left")
    table.add_column("group")
    table.add_column("n", justify="right")
    table.add_column("teacher-forced", justify="right")
    table.add_column("free-running", justify="right")
    for row in accuracy_rows(evaluation):
        table.add_row(*row)
    return table


def accuracy_rows(evaluation: Evaluation) -> list[tuple[str, str, str, str]]:
    """Group, n, teacher-forced, free-running."""
    return [
        (
            _name(scores),
            f"{scores.free_running.n:,}",
            _forced(scores),
            percent(scores.free_running),
        )
        for scores in _rows(evaluation)
    ]


def _forced(scores: Scores) -> str:
    """Teacher forcing may ask for fewer than there are, or for none."""
    if scores.teacher_forced is None:
        return "not asked"
    fewer = scores.teacher_forced.n < scores.free_running.n
    return percent(scores.teacher_forced) + (f", n={scores.teacher_forced.n:,}" if fewer else "")


def percent(share: Share) -> str:
    """`99.95 % [99.72, 99.99]`."""
    return f"{100 * share.rate:.2f} % [{100 * share.low:.2f}, {100 * share.high:.2f}]"


def _rows(evaluation: Evaluation) -> list[Scores]:
    return [evaluation.exact, *evaluation.digits, *evaluation.groups]


def _name(scores: Scores) -> str:
    return f"{scores.facet}: {scores.group}"


def _dot(axes: Axes, share: Share, y: float, colour: str, marker: str, label: str | None) -> None:
    doubt = [[100 * (share.rate - share.low)], [100 * (share.high - share.rate)]]
    axes.errorbar(
        100 * share.rate, y, xerr=doubt, fmt=marker, color=colour, markersize=5, capsize=2, linewidth=1, label=label
    )
