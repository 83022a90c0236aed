"""How far models reach: accuracy against length, what explains it, and what is lost to gaps and to ids alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table
from scipy.special import stdtrit

from headcount.figures.style import GREY, PALETTE, Page, plot_band, table_of

if TYPE_CHECKING:
    from headcount.analysis.length_generalisation import LengthResult, Stretch
    from headcount.analysis.poolings import PooledModel
    from headcount.stats import Proportion

MARKERS = "osD^vP*Xhd"
NAMES = ("encoding", "pooling")
STILL = 1e-3
"""Logits: what rounding may change, and no answer is decided by."""


def mark(result: Stretch) -> str:
    """Whether the model was given structure: never rank one that was against one that was not, unmarked."""
    if not result.encoding:
        return "encoding not known"
    return f"given: {', '.join(result.hard_codes)}" if result.hard_codes else "generic"


def draw_stretch(results: Sequence[Stretch]) -> Figure:
    """One panel per kind of negative, one line per configuration, a band over its seeds."""
    cells, groups = [cell for result in results for cell in result.cells], _groups(results)
    kinds = list(dict.fromkeys(cell.negative for cell in cells))
    across = len(kinds) if len(kinds) < 4 else 2  # more side by side could not be read on a page
    down = -(-len(kinds) // across)
    figure = Page((4.8 if down > 1 else 3.4) * across + 0.6, 3.6 * down + 0.6)
    panels = list(figure.subplots(down, across, sharey=True, sharex=down > 1, squeeze=False).flat)
    for axes in panels[len(kinds) :]:
        axes.remove()
    for kind, axes in zip(kinds, panels, strict=False):
        for i, (name, group) in enumerate(groups):
            beside = 1.04 ** (i - (len(groups) - 1) / 2)  # equal lines side by side, not on top of each other
            _draw_line(axes, name, group, kind, i, beside)
        for trained in {result.trained for result in results}:
            _frame(axes, trained)
        axes.set(title=f"negatives: {kind}", ylim=(-3, 103))
        axes.axhline(50, color=GREY, linewidth=0.8, linestyle=":")
        axes.set_ylabel("right (%), half sorted")
        axes.label_outer(remove_inner_ticks=False)
    figure.key(*panels[0].get_legend_handles_labels(), columns=1 if len(groups) < 5 else 2, size=10)
    n = _span(cell.n for cell in cells)
    figure.headline(
        f"How far it reaches (n = {n} per point; shaded: trained lengths; ×: one answer to everything)", size=12
    )
    return figure


def draw_poolings(models: Sequence[PooledModel | Stretch], kind: str) -> Figure:
    """Draw one panel per encoding and one line per pooling; dashed lines are poolings that give structure away."""
    encodings, poolings = (list(dict.fromkeys(getattr(each, name) for each in models)) for name in NAMES)
    figure = Page(3.6 * len(encodings) + 0.6, 4.0)
    panels = dict(zip(encodings, figure.subplots(1, len(encodings), sharey=True, squeeze=False).flat, strict=True))
    for model in models:
        axes, i = panels[model.encoding], poolings.index(model.pooling)
        beside = 1.05 ** (i - (len(poolings) - 1) / 2)  # equal lines side by side, not on top of each other
        cells = [cell for cell in model.cells if cell.negative == kind]
        x = [beside * cell.length for cell in cells]
        y, low, high = (100 * np.array([getattr(cell, end) for cell in cells]) for end in ("accuracy", "low", "high"))
        line = "--" if model.hard_codes else "-"
        plot_band(
            axes, x, y, low, high, line, linewidth=1.3, label=f"{model.pooling} ({given_away(model)})", **_look(i)
        )
        _cross(axes, list(zip(x, cells, strict=True)), i)
    for encoding, axes in panels.items():
        for trained in {model.trained for model in models if model.encoding == encoding}:
            _frame(axes, trained)
        axes.set(title=f"encoding: {encoding}", ylim=(-3, 103), ylabel="right (%), half sorted")
        axes.axhline(50, color=GREY, linewidth=0.8, linestyle=":")
        axes.label_outer(remove_inner_ticks=False)
    shown = {
        label: line for axes in panels.values() for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.key(list(shown.values()), list(shown), columns=2, size=10)
    n = _span(cell.n for model in models for cell in model.cells if cell.negative == kind)
    figure.headline(
        f"Poolings on the same encodings; unsorted sequences: {kind} (n = {n} per point, 95 % interval; shaded: "
        "trained lengths; ×: one answer to everything)",
        size=12,
    )
    return figure


def given_away(model: PooledModel | Stretch) -> str:
    """`generic`, or the structure that the model's encoding and pooling give away."""
    return f"gives away: {', '.join(model.hard_codes)}" if model.hard_codes else "generic"


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


def _draw_line(axes: Axes, name: str, group: Sequence[Stretch], kind: str, i: int, beside: float) -> None:
    """The mean over seeds with the range; a single run with its Wilson intervals."""
    cells = [[cell for cell in result.cells if cell.negative == kind] for result in group]
    lengths = [beside * cell.length for cell in cells[0]]
    rates = np.array([[100 * cell.accuracy for cell in row] for row in cells])
    if len(group) > 1:
        low, high = rates.min(axis=0), rates.max(axis=0)
        over = f"{len(group)} seeds: mean and range"
    else:
        low, high = (np.array([100 * getattr(cell, end) for cell in cells[0]]) for end in ("low", "high"))
        over = "95 % interval"
    label = f"{name}  ({mark(group[0])}, {over})"
    plot_band(axes, lengths, rates.mean(axis=0), low, high, linewidth=1.3, label=label, **_look(i))
    _cross(axes, [(beside * cell.length, cell) for row in cells for cell in row], i)


def _look(i: int) -> dict[str, Any]:
    """Of the i-th line."""
    return {"color": PALETTE[i % len(PALETTE)], "marker": MARKERS[i % len(MARKERS)], "markersize": 4}


def _cross(axes: Axes, points: Sequence[tuple[float, LengthResult]], i: int) -> None:
    """Where everything gets one answer."""
    constant = [(x, 100 * cell.accuracy) for x, cell in points if cell.constant]
    colour = PALETTE[i % len(PALETTE)]
    axes.plot(*np.array(constant).reshape(-1, 2).T, "x", color=colour, markersize=9, markeredgewidth=1.6)


def _frame(axes: Axes, trained: tuple[int, int] | None) -> None:
    if trained:
        axes.axvspan(*trained, color=GREY, alpha=0.15, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("length (numbers)")
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.grid(alpha=0.25)


def _span(sizes: Iterable[int]) -> str:
    """`200 to 1,000`, or the one size that there is."""
    found = sorted(set(sizes))
    return " to ".join(f"{size:,}" for size in dict.fromkeys((found[0], found[-1]))) if found else "no"


def draw_dispersion(result: Stretch) -> Figure:
    """Where attention still goes, the lead of the right class, and what is lost to what, against length.

    Of a model of others, the lead alone.
    """
    if not result.attention_shares:
        figure = Page(7, 4.2)
        _draw_leads(figure.subplots(), result)
        figure.headline(f"{result.label} ({mark(result)})", size=12)
        return figure
    figure = Page(11.5, 8) if result.ids else Page(15, 4.2)
    neighbours, alike, leads, *apart = figure.subplots(*((2, 2) if result.ids else (1, 3))).flat
    for i, head in enumerate(dict.fromkeys(each.head for each in result.attention_shares)):
        shares = [each for each in result.attention_shares if each.head == head]
        for axes, what in ((neighbours, "neighbours"), (alike, "alike")):
            # A t-interval: there may be eight sequences.
            doubt = np.array([100 * stdtrit(s.n - 1, 0.975) * getattr(s, f"{what}_se") for s in shares])
            x, y = [each.length for each in shares], np.array([100 * getattr(each, what) for each in shares])
            line = "-" if i < len(PALETTE) else "--"
            plot_band(axes, x, y, y - doubt, y + doubt, line, alpha=0.2, label=head, **_look(i))
    neighbours.set(ylabel="attention (%)", title="on the two neighbours")
    alike.set(ylabel="attention (%)", title="on equal numbers: the largest so far, and itself")
    _draw_leads(leads, result)
    for axes in apart:
        _draw_apart(axes, result)
    for axes in (neighbours, alike, *apart):
        _frame(axes, result.trained)
    figure.key(*neighbours.get_legend_handles_labels(), columns=12)
    for axes in (neighbours, alike):
        axes.set_ylim(-3, 103)
    n = _span(each.n for each in result.attention_shares)
    figure.headline(
        f"{result.name}: {result.label} ({mark(result)}). Attention: mean over the places of {n} sorted sequences per "
        "length, 95 % interval",
        size=12,
    )
    return figure


def _draw_leads(axes: Axes, result: Stretch) -> None:
    kinds = list(dict.fromkeys(cell.negative for cell in result.cells))
    classes = [(f"unsorted: {kind}", kind, 0, i) for i, kind in enumerate(kinds, start=1)]
    for label, kind, which, i in [*classes, ("sorted", kinds[0], 1, 0)]:
        points = [(cell.length, cell.margin[which]) for cell in result.cells if cell.negative == kind]
        axes.plot(*zip(*points, strict=True), label=label, **_look(i))
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.set(ylabel="mean lead of the right class (logits)", title="How sure is it? (below 0: mostly wrong)")
    _frame(axes, result.trained)
    axes.legend(framealpha=0.85, edgecolor="none", fontsize=8)


def _draw_apart(axes: Axes, result: Stretch) -> None:
    """Accuracy on adjacent swaps at each length, and with its gaps or its ids alone."""
    longest = result.trained[1] if result.trained else 0
    whole = [(cell.length, cell) for cell in result.cells if cell.negative == result.ids[0].cell.negative]
    parts = {
        "at that length": whole,
        f"its gaps alone, {longest} numbers": [(cell.length, cell) for cell in result.cropped_results],
        f"its last ids alone, {longest} numbers": [(each.first + longest, each.cell) for each in result.ids],
    }
    for i, (label, points) in enumerate(parts.items()):
        ends = ("accuracy", "low", "high")
        y, low, high = (100 * np.array([getattr(cell, end) for _, cell in points]) for end in ends)
        plot_band(axes, [x for x, _ in points], y, low, high, ("-", "--", ":")[i], label=label, **_look(i))
        _cross(axes, points, i)
    axes.axhline(50, color=GREY, linewidth=0.8, linestyle=":")
    axes.set(ylabel="right (%)", ylim=(-3, 103), title="Lost to what? (adjacent swaps; ×: one answer to all)")
    axes.legend(framealpha=0.85, edgecolor="none", fontsize=8, loc="lower left")


def stretch_tables(result: Stretch) -> list[Table]:
    """Accuracy by length and kind; both classes apart; the share of the answers; what gaps and ids cost alone."""
    kinds, longest = list(dict.fromkeys(cell.negative for cell in result.cells)), (result.trained or (0, 0))[1]
    rows = [
        (str(length), [cell for cell in result.cells if cell.length == length])
        for length in dict.fromkeys(cell.length for cell in result.cells)
    ]
    trained = f"trained on {result.trained[0]}-{longest}" if result.trained else "trained lengths not known"
    name = result.name if result.label in result.name else f"{result.name}: {result.label}"
    title = f"{name} ({mark(result)}), {trained}"
    tables = [
        table_of(
            f"{title}, draw {result.draw}\nright, by kind of negative",
            ("length", "n", *kinds),
            [(length, f"{row[0].n:,}", *map(accuracy_text, row)) for length, row in rows],
        ),
        table_of(
            "right (%), each class apart",
            ("length", "sorted", *kinds),
            [(length, *map(_share, (row[0].recall[1], *(cell.recall[0] for cell in row)))) for length, row in rows],
            padding=(0, 1, 0, 0),
        ),
        table_of(
            "answers “sorted” (%), right or wrong",
            ("length", *kinds),
            [(length, *(_share(cell.answers[1]) for cell in row)) for length, row in rows],
            padding=(0, 1, 0, 0),
        ),
    ]
    if result.cropped_results:
        # What the small steps of long sequences and the ids of their last positions cost by themselves.
        kind = result.cropped_results[0].negative
        ids = {each.first + longest: each.cell for each in result.ids}
        whole = {cell.length: cell for cell in result.cells if cell.negative == kind}
        apart = {
            "gaps alone": {cell.length: cell for cell in result.cropped_results},
            **({"ids alone": ids} if ids else {}),
            "that length": whole,
        }
        last = ", with its last ids" if ids else ""
        title = f"lost to what? {kind}: {longest} numbers with the gaps of a length{last}, and that length"
        lost = [
            (str(length), *(accuracy_text(cells[length]) if length in cells else "refused" for cells in apart.values()))
            for length in apart["gaps alone"]
        ]
        tables.append(table_of(title, ("length", *apart), lost))
    if _ids_matter(result):
        # The same sequences at other ids, both classes apart.
        title = f"ids alone: the same sequences of {longest} numbers, right (%)"
        moved = [
            (f"{each.first}-{each.first + longest - 1}", *map(_share, each.cell.recall[::-1]), f"{each.moved:.2g}")
            for each in result.ids
        ]
        columns = ("ids", "sorted", result.ids[0].cell.negative, "a logit moves by up to")
        tables.append(table_of(title, columns, moved))
    return tables


def reach_table(stretches: Mapping[str, Stretch], kind: str) -> Table:
    """Several models on one kind of negative, one column each."""
    cells = {
        (name, cell.length): cell for name, each in stretches.items() for cell in each.cells if cell.negative == kind
    }
    shown = {key: f"only “{cell.constant_class}”" if cell.constant else _share(cell) for key, cell in cells.items()}
    draws = ", ".join(str(draw) for draw in sorted({each.draw for each in stretches.values()}))
    over = f"n = {_span(cell.n for cell in cells.values())} per field (draw {draws})"
    return table_of(
        f"right (%) by length, with 95 % intervals; negatives: {kind}; {over}",
        ("length", *(f"{name}\n({mark(each)})" for name, each in stretches.items())),
        [
            (str(length), *(shown.get((name, length), "refused") for name in stretches))
            for length in sorted({length for _, length in shown})
        ],
    )


def _ids_matter(result: Stretch) -> bool:
    return any(each.moved > STILL for each in result.ids)


def ids_note(result: Stretch) -> str:
    """A note on ids besides a table: that they change nothing, or which ones are refused."""
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
    return _share(cell, " %")


def _share(share: Proportion | LengthResult, unit: str = "") -> str:
    rate = share.accuracy if hasattr(share, "accuracy") else share.rate
    return f"{100 * rate:.1f}{unit} [{100 * share.low:.1f}, {100 * share.high:.1f}]"
