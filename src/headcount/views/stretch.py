"""How far models reach: accuracy against length, and what explains it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from headcount.views.style import GREY, PALETTE, Page

if TYPE_CHECKING:
    from headcount.analysis.dispersion import Look
    from headcount.analysis.extrapolation import Cell, Stretch
    from headcount.statistics import Share

MARKERS = "osD^vP*Xhd"


def mark(result: Stretch) -> str:
    """Whether the model was given structure: never rank one that was against one that was not, unmarked."""
    return f"given: {', '.join(result.gives)}" if result.gives else "generic"


def draw_stretch(results: Sequence[Stretch]) -> Figure:
    """One panel per kind of negative, one line per configuration, a band over its seeds."""
    kinds = list(dict.fromkeys(cell.negative for result in results for cell in result.cells))
    figure = Page(3.4 * len(kinds) + 0.6, 4.2)
    panels = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for kind, axes in zip(kinds, panels, strict=True):
        for i, (name, group) in enumerate(_groups(results)):
            beside = 1.04 ** (i - (_n_groups(results) - 1) / 2)  # equal lines side by side, not on top of each other
            _draw_line(axes, name, group, kind, PALETTE[i % len(PALETTE)], MARKERS[i % len(MARKERS)], beside)
        for trained in {result.trained for result in results}:
            _frame(axes, trained)
        axes.set(title=f"negatives: {kind}", ylim=(-3, 103))
        axes.axhline(50, color=GREY, linewidth=0.8, linestyle=":")
    panels[0].set_ylabel("right (%), half of the examples sorted")
    figure.key(*panels[0].get_legend_handles_labels(), columns=1 if _n_groups(results) < 5 else 2, size=10)
    sizes = sorted({cell.n for result in results for cell in result.cells})
    n = " to ".join(f"{size:,}" for size in dict.fromkeys((sizes[0], sizes[-1])))
    figure.headline(
        f"How far it reaches (n = {n} per point; shaded: trained lengths; ×: one answer to everything)", size=12
    )
    return figure


def _groups(results: Sequence[Stretch]) -> list[tuple[str, list[Stretch]]]:
    """Runs that differ only in their seed, together; where several groups have one label, with the name of a run."""
    groups: dict[tuple[object, ...], list[Stretch]] = {}
    for result in results:
        groups.setdefault((result.label, result.gives, result.recipe), []).append(result)
    labels = [label for label, *_ in groups]
    return [
        (group[0].label if labels.count(group[0].label) == 1 else f"{group[0].run}: {group[0].label}", group)
        for group in groups.values()
    ]


def _n_groups(results: Sequence[Stretch]) -> int:
    return len(_groups(results))


def _draw_line(
    axes: Axes, name: str, group: Sequence[Stretch], kind: str, colour: str, marker: str, beside: float
) -> None:
    """The mean over seeds with the range; a single run with its Wilson intervals."""
    cells = [[cell for cell in result.cells if cell.negative == kind] for result in group]
    lengths = [beside * cell.length for cell in cells[0]]
    rates = np.array([[100 * cell.accuracy for cell in row] for row in cells])
    if len(group) > 1:
        low, high = rates.min(axis=0), rates.max(axis=0)
    else:
        low, high = (np.array([100 * getattr(cell, end) for cell in cells[0]]) for end in ("low", "high"))
    over = f", {len(group)} seeds: mean and range" if len(group) > 1 else ", 95 % interval"
    axes.fill_between(lengths, low, high, color=colour, alpha=0.15, linewidth=0)
    label = f"{name}  ({mark(group[0])}{over})"
    axes.plot(lengths, rates.mean(axis=0), color=colour, marker=marker, markersize=4, linewidth=1.3, label=label)
    constant = [(beside * cell.length, 100 * cell.accuracy) for row in cells for cell in row if cell.constant]
    axes.plot(*np.array(constant).reshape(-1, 2).T, "x", color=colour, markersize=9, markeredgewidth=1.6)


def draw_dispersion(result: Stretch) -> Figure:
    """Where attention still goes, and the lead of the right class, against length."""
    figure = Page(15, 4.2)
    neighbours, alike, leads = figure.subplots(1, 3)
    for i, head in enumerate(dict.fromkeys(look.head for look in result.looks)):
        looks = [look for look in result.looks if look.head == head]
        _draw_head(neighbours, looks, [look.left + look.right for look in looks], i)
        _draw_head(alike, looks, [look.alike for look in looks], i)
    neighbours.set(ylabel="attention (%)", title="on the two neighbours")
    alike.set(ylabel="attention (%)", title="on equal numbers: the largest so far, and itself")
    for i, kind in enumerate(dict.fromkeys(cell.negative for cell in result.cells)):
        _draw_lead(leads, [cell for cell in result.cells if cell.negative == kind], 0, i + 1, f"unsorted: {kind}")
    one_kind = [cell for cell in result.cells if cell.negative == result.cells[0].negative]
    _draw_lead(leads, one_kind, 1, 0, "sorted")
    leads.axhline(0, color=GREY, linewidth=0.8)
    leads.set(ylabel="mean lead of the right class (logits)", title="How sure is it? (below 0: mostly wrong)")
    for axes in (neighbours, alike, leads):
        _frame(axes, result.trained)
    leads.legend(frameon=False, fontsize=8)
    figure.key(*neighbours.get_legend_handles_labels(), columns=12)
    for axes in (neighbours, alike):
        axes.set_ylim(-3, 103)
    figure.headline(
        f"{result.run}: {result.label} ({mark(result)}). Attention: mean over the places of sorted sequences", size=12
    )
    return figure


def _draw_head(axes: Axes, looks: Sequence[Look], shares: Sequence[float], i: int) -> None:
    style = "-" if i < len(PALETTE) else "--"
    x, y = [look.length for look in looks], [100 * share for share in shares]
    colour, marker = PALETTE[i % len(PALETTE)], MARKERS[i % len(MARKERS)]
    axes.plot(x, y, style, color=colour, marker=marker, markersize=4, label=looks[0].head)


def _draw_lead(axes: Axes, cells: Sequence[Cell], which: int, look: int, label: str) -> None:
    x, y = [cell.length for cell in cells], [cell.margin[which] for cell in cells]
    axes.plot(x, y, color=PALETTE[look], marker=MARKERS[look], markersize=4, label=label)


def _frame(axes: Axes, trained: tuple[int, int]) -> None:
    axes.axvspan(*trained, color=GREY, alpha=0.15, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("length (numbers)")
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.grid(alpha=0.25)


def stretch_tables(result: Stretch) -> list[Table]:
    """Accuracy by length and kind; both classes apart; the share of the answers; what small gaps cost."""
    kinds = list(dict.fromkeys(cell.negative for cell in result.cells))
    title = f"{result.run}: {result.label} ({mark(result)}), trained on {result.trained[0]}-{result.trained[1]}"
    accuracy = Table("length", "n", *kinds, title=f"{title}\nright, by kind of negative", title_justify="left")
    title = "right (%), each class apart"
    recalls = Table("length", "sorted", *kinds, title=title, title_justify="left", padding=(0, 1, 0, 0))
    title = "answers “sorted” (%), right or wrong"
    answers = Table("length", *kinds, title=title, title_justify="left", padding=(0, 1, 0, 0))
    for length in dict.fromkeys(cell.length for cell in result.cells):
        row = [cell for cell in result.cells if cell.length == length]
        accuracy.add_row(str(length), f"{row[0].n:,}", *map(accuracy_text, row))
        classes = row[0].recall[1], *(cell.recall[0] for cell in row)
        recalls.add_row(str(length), *(_share(share).replace(" %", "") for share in classes))
        answers.add_row(str(length), *(_share(cell.answers[1]).replace(" %", "") for cell in row))
    return [accuracy, recalls, answers, *([_gap_table(result, kinds)] if result.same_gaps else [])]


def _share(share: Share | Cell) -> str:
    rate = share.accuracy if hasattr(share, "accuracy") else share.rate
    return f"{100 * rate:.1f} % [{100 * share.low:.1f}, {100 * share.high:.1f}]"


def reach_table(stretches: Mapping[str, Stretch], kind: str) -> Table:
    """Several models on one kind of negative, one column each."""
    names = [f"{name}\n({mark(each)})" for name, each in stretches.items()]
    table = Table("length", *names, title=f"right by length, negatives: {kind}", title_justify="left")
    cells = {
        (name, cell.length): _short(cell)
        for name, each in stretches.items()
        for cell in each.cells
        if cell.negative == kind
    }
    for length in sorted({length for _, length in cells}):
        table.add_row(str(length), *(cells.get((name, length), "refused") for name in stretches))
    return table


def _short(cell: Cell) -> str:
    return f"all {cell.says}" if cell.constant else f"{100 * cell.accuracy:.1f} %"


def _gap_table(result: Stretch, kinds: Sequence[str]) -> Table:
    """What the small steps of long sequences cost by themselves."""
    table = Table(
        "gaps of length",
        *kinds,
        title=f"gap shift alone: the same examples cut to {result.trained[1]} numbers around their broken pair",
        title_justify="left",
    )
    for length in dict.fromkeys(cell.length for cell in result.same_gaps):
        table.add_row(str(length), *(accuracy_text(cell) for cell in result.same_gaps if cell.length == length))
    return table


def accuracy_text(cell: Cell) -> str:
    """`99.8 % [99.3, 99.9]`, or the one answer that everything gets."""
    if cell.constant:
        return f"says “{cell.says}” to all"
    return _share(cell)
