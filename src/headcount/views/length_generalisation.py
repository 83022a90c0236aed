"""How far models reach: accuracy against length, what explains it, and what is lost to gaps and to ids alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table
from scipy.special import stdtrit

from headcount.views.style import GREY, PALETTE, Page

if TYPE_CHECKING:
    from headcount.analysis.length_generalisation import AttentionShare, LengthResult, Stretch
    from headcount.stats import Proportion

MARKERS = "osD^vP*Xhd"
STILL = 1e-3
"""Logits: what rounding may change, and no answer is decided by."""


def mark(result: Stretch) -> str:
    """Whether the model was given structure: never rank one that was against one that was not, unmarked."""
    return f"given: {', '.join(result.hard_codes)}" if result.hard_codes else "generic"


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
        groups.setdefault((result.label, result.hard_codes, result.recipe), []).append(result)
    labels = [label for label, *_ in groups]
    return [
        (group[0].label if labels.count(group[0].label) == 1 else f"{group[0].name}: {group[0].label}", group)
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
    """Where attention still goes, the lead of the right class, and what is lost to what, against length."""
    figure = Page(11.5, 8) if result.ids else Page(15, 4.2)
    neighbours, alike, leads, *apart = figure.subplots(*((2, 2) if result.ids else (1, 3))).flat
    for i, head in enumerate(dict.fromkeys(attention_share.head for attention_share in result.attention_shares)):
        attention_shares = [
            attention_share for attention_share in result.attention_shares if attention_share.head == head
        ]
        _draw_head(neighbours, attention_shares, "neighbours", i)
        _draw_head(alike, attention_shares, "alike", i)
    neighbours.set(ylabel="attention (%)", title="on the two neighbours")
    alike.set(ylabel="attention (%)", title="on equal numbers: the largest so far, and itself")
    for i, kind in enumerate(dict.fromkeys(cell.negative for cell in result.cells)):
        _draw_lead(leads, [cell for cell in result.cells if cell.negative == kind], 0, i + 1, f"unsorted: {kind}")
    one_kind = [cell for cell in result.cells if cell.negative == result.cells[0].negative]
    _draw_lead(leads, one_kind, 1, 0, "sorted")
    leads.axhline(0, color=GREY, linewidth=0.8)
    leads.set(ylabel="mean lead of the right class (logits)", title="How sure is it? (below 0: mostly wrong)")
    for axes in apart:
        _draw_apart(axes, result)
    for axes in (neighbours, alike, leads, *apart):
        _frame(axes, result.trained)
    leads.legend(frameon=False, fontsize=8)
    figure.key(*neighbours.get_legend_handles_labels(), columns=12)
    for axes in (neighbours, alike):
        axes.set_ylim(-3, 103)
    sizes = [attention_share.n for attention_share in result.attention_shares]
    n = " to ".join(f"{size:,}" for size in dict.fromkeys((min(sizes), max(sizes)))) if sizes else "no"
    figure.headline(
        f"{result.name}: {result.label} ({mark(result)}). Attention: mean over the places of {n} sorted sequences per "
        "length, 95 % interval",
        size=12,
    )
    return figure


def _draw_head(axes: Axes, attention_shares: Sequence[AttentionShare], what: str, i: int) -> None:
    """The mean over sequences, with a t-interval: there may be eight of them."""
    style = "-" if i < len(PALETTE) else "--"
    x, y = (
        [attention_share.length for attention_share in attention_shares],
        np.array([100 * getattr(attention_share, what) for attention_share in attention_shares]),
    )
    doubt = [
        100 * stdtrit(attention_share.n - 1, 0.975) * getattr(attention_share, f"{what}_se")
        for attention_share in attention_shares
    ]
    colour, marker = PALETTE[i % len(PALETTE)], MARKERS[i % len(MARKERS)]
    axes.fill_between(x, y - doubt, y + doubt, color=colour, alpha=0.2, linewidth=0)
    axes.plot(x, y, style, color=colour, marker=marker, markersize=4, label=attention_shares[0].head)


def _draw_apart(axes: Axes, result: Stretch) -> None:
    """Accuracy on adjacent swaps at each length, and with its gaps or its ids alone."""
    longest = result.trained[1]
    whole = [(cell.length, cell) for cell in result.cells if cell.negative == result.ids[0].cell.negative]
    parts = {
        "at that length": whole,
        f"its gaps alone, {longest} numbers": [(cell.length, cell) for cell in result.cropped_results],
        f"its last ids alone, {longest} numbers": [(each.first + longest, each.cell) for each in result.ids],
    }
    for i, (label, points) in enumerate(parts.items()):
        x, cells = [length for length, _ in points], [cell for _, cell in points]
        y, low, high = (100 * np.array([getattr(c, end) for c in cells]) for end in ("accuracy", "low", "high"))
        axes.fill_between(x, low, high, color=PALETTE[i], alpha=0.15, linewidth=0)
        axes.plot(x, y, ("-", "--", ":")[i], color=PALETTE[i], marker=MARKERS[i], markersize=4, label=label)
        constant = [(length, 100 * cell.accuracy) for length, cell in points if cell.constant]
        axes.plot(*np.array(constant).reshape(-1, 2).T, "x", color=PALETTE[i], markersize=9, markeredgewidth=1.6)
    axes.axhline(50, color=GREY, linewidth=0.8, linestyle=":")
    axes.set(ylabel="right (%)", ylim=(-3, 103), title="Lost to what? (adjacent swaps; ×: one answer to all)")
    axes.legend(frameon=False, fontsize=8, loc="lower left")


def _draw_lead(axes: Axes, cells: Sequence[LengthResult], which: int, attention_share: int, label: str) -> None:
    x, y = [cell.length for cell in cells], [cell.margin[which] for cell in cells]
    axes.plot(x, y, color=PALETTE[attention_share], marker=MARKERS[attention_share], markersize=4, label=label)


def _frame(axes: Axes, trained: tuple[int, int]) -> None:
    axes.axvspan(*trained, color=GREY, alpha=0.15, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("length (numbers)")
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.grid(alpha=0.25)


def stretch_tables(result: Stretch) -> list[Table]:
    """Accuracy by length and kind; both classes apart; the share of the answers; what gaps and ids cost alone."""
    kinds = list(dict.fromkeys(cell.negative for cell in result.cells))
    title = f"{result.name}: {result.label} ({mark(result)}), trained on {result.trained[0]}-{result.trained[1]}"
    title += f", draw {result.draw}"
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
    gaps = [_apart_table(result)] if result.cropped_results else []
    return [accuracy, recalls, answers, *gaps, *([_ids_table(result)] if _ids_matter(result) else [])]


def _share(share: Proportion | LengthResult) -> str:
    rate = share.accuracy if hasattr(share, "accuracy") else share.rate
    return f"{100 * rate:.1f} % [{100 * share.low:.1f}, {100 * share.high:.1f}]"


def reach_table(stretches: Mapping[str, Stretch], kind: str) -> Table:
    """Several models on one kind of negative, one column each."""
    names = [f"{name}\n({mark(each)})" for name, each in stretches.items()]
    n = sorted({cell.n for each in stretches.values() for cell in each.cells if cell.negative == kind})
    draws = ", ".join(str(draw) for draw in sorted({each.draw for each in stretches.values()}))
    over = f"n = {n[0]:,}{f' to {n[-1]:,}' if len(n) > 1 else ''} per field (draw {draws})"
    title = f"right (%) by length, with 95 % intervals; negatives: {kind}; {over}"
    table = Table("length", *names, title=title, title_justify="left")
    cells = {
        (name, cell.length): _short(cell)
        for name, each in stretches.items()
        for cell in each.cells
        if cell.negative == kind
    }
    for length in sorted({length for _, length in cells}):
        table.add_row(str(length), *(cells.get((name, length), "refused") for name in stretches))
    return table


def _short(cell: LengthResult) -> str:
    return f"only “{cell.constant_class}”" if cell.constant else _share(cell).replace(" %", "")


def _apart_table(result: Stretch) -> Table:
    """What the small steps of long sequences and the ids of their last positions cost by themselves."""
    longest, kind = result.trained[1], result.cropped_results[0].negative
    title = f"lost to what? {kind}: {longest} numbers with the gaps of a length, with its last ids, and that length"
    table = Table("length", "gaps alone", "ids alone", "that length", title=title, title_justify="left")
    whole = {cell.length: cell for cell in result.cells if cell.negative == kind}
    ids = {each.first + longest: each.cell for each in result.ids}
    for cell in result.cropped_results:
        length = cell.length
        table.add_row(
            str(length), *(accuracy_text(c) if c else "refused" for c in (cell, ids.get(length), whole[length]))
        )
    return table


def _ids_table(result: Stretch) -> Table:
    """The same sequences at other ids, both classes apart."""
    longest, kind = result.trained[1], result.ids[0].cell.negative
    title = f"ids alone: the same sequences of {longest} numbers, right (%)"
    table = Table("ids", "sorted", kind, "a logit moves by up to", title=title, title_justify="left")
    for each in result.ids:
        wrong, right = (_share(share).replace(" %", "") for share in each.cell.recall)
        table.add_row(f"{each.first}-{each.first + longest - 1}", right, wrong, f"{each.moved:.2g}")
    return table


def _ids_matter(result: Stretch) -> bool:
    return any(each.moved > STILL for each in result.ids)


def ids_note(result: Stretch) -> str:
    """What there is to say of ids besides a table: that they change nothing, or which ones are refused."""
    if result.refused_first_ids:
        return f"{result.name} refuses ids from {', '.join(map(str, result.refused_first_ids))} on"
    if not result.ids or _ids_matter(result):
        return ""
    most, last = max(each.moved for each in result.ids), result.ids[-1].first
    return f"where ids begin, from 0 to {last:,}, does not matter to {result.name}: a logit moves by up to {most:.1g}"


def accuracy_text(cell: LengthResult) -> str:
    """`99.8 % [99.3, 99.9]`, or the one answer that everything gets."""
    if cell.constant:
        is_all = cell.n in [share.correct for share in cell.answers]
        return f"says “{cell.constant_class}” to {'all' if is_all else 'nearly all'}"
    return _share(cell)
