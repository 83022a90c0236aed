"""What each head is for, and which heads of two runs attend alike, write alike and do the same job.

Of the first, a page of all heads, pages with and without a condition by column, and a table; of the second, heat maps
with pairs marked, and a table.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions
from rich.table import Table
from scipy.special import stdtrit

from headcount.figures.attention import KINDS, write_cells
from headcount.figures.style import BLUE, GREY, ORANGE, PALETTE, SEQUENTIAL, Page
from headcount.heads import HeadId

if TYPE_CHECKING:
    from headcount.analysis.contrasts import ContrastShift
    from headcount.analysis.labels import MeasureMean
    from headcount.analysis.likeness import KindMatch, Likeness, Pair
    from headcount.analysis.matching import Matching
    from headcount.analysis.specialisation import HeadStats, Specialisation

SPREAD = ("entropy share", "sparsity")
HALF = "half of the 95 % interval"
"""What stands behind every ±, in figures and tables alike."""
LOOKS = ((ORANGE, "s", ORANGE), (BLUE, "o", "white"))
"""Colour, marker and filling where a condition holds, and where it does not."""
CELL = 0.52
"""Inches of a cell."""
NOTE = (
    "by chance: what 95 of 100 best pairings with untrained or relabelled models stay below; of what is restored, the "
    "most with untrained ones. By others: the most with another head of the other run"
)
COLOURS = {"o": BLUE, "s": ORANGE, "^": PALETTE[2]}
"""By marker: attention, outputs, and what was restored."""


def draw_stats(result: Specialisation) -> Figure:
    """Heads in rows, measures in columns, labels at the right; one panel per kind of site."""
    kinds, contrast = _kinds(result), _contrast(result)
    rows = [len(heads) for heads in kinds.values()]
    widest = max(len(_targets(heads)) for heads in kinds.values()) + len(SPREAD) + 1 + len(contrast)
    labels = {head.head: "\n".join(textwrap.wrap(head.label, 38)) or "–" for head in result.heads}
    words = max(len(line) for label in labels.values() for line in label.splitlines())
    figure = Page(1.02 * widest + 0.075 * words + 2.0, 0.44 * sum(rows) + 1.05 * len(rows) + 0.3)
    grid = figure.subplots(len(rows), 1, squeeze=False, height_ratios=[n + 1 for n in rows])[:, 0]
    for axes, (kind, heads) in zip(grid, kinds.items(), strict=True):
        targets = _targets(heads)
        shown = [*targets, *SPREAD, "entropy", *contrast]
        found = [{name: _find(result, head, name) for name in shown} for head in heads]
        # The darker, the more; nats have no maximum, so their share of it gives the shade.
        shades = [[row["entropy share" if name == "entropy" else name] for name in shown] for row in found]
        values = [[np.nan if each is None else each.mean for each in row] for row in shades]
        axes.imshow(values, vmin=0, vmax=1, cmap=SEQUENTIAL, aspect="auto")
        write_cells(axes, values, [[_cell(each) for each in row.values()] for row in found], size=9)
        axes.set_xticks(range(len(shown)), [_heading(name, heads[0].find(name)) for name in shown], fontsize=8.5)
        axes.set_yticks(range(len(heads)), [head.short for head in heads], fontsize=9)
        beside = axes.secondary_yaxis("right")
        beside.set_yticks(range(len(heads)), [labels[head.head] for head in heads], fontsize=9)
        axes.tick_params(length=0)
        beside.tick_params(length=0)
        axes.axvline(len(targets) - 0.5, color=GREY, linewidth=1.5)
        axes.set_title(KINDS[kind].capitalize(), fontsize=11, loc="left")
    figure.colorbar(grid[0].images[0], ax=grid, label="mean", shrink=0.6, pad=0.02)
    what = f"{result.weighting}, mean ± {HALF} over {result.n:,} examples ({result.data})"
    figure.headline(f"{result.name}: {what}", size=12)
    figure.caption(caption(result))
    return figure


def caption(result: Specialisation) -> str:
    """When a head gets a label, and what the contrast is."""
    if not result.contrast:
        return result.words
    n = sorted({shift.n for head in result.heads if (shift := head.sensitivity())})
    over = f" (n = {n[0]:,}{f' to {n[-1]:,}' if len(n) > 1 else ''} contrasts)" if n else ""
    return f"{result.words}; {result.contrast.name}{over}: {result.contrast.words}"


def _cell(measure: MeasureMean | ContrastShift | None) -> str:
    if measure is None:
        return ""
    half = measure.half()
    return f"{measure.mean:z.2f} ± " + (f"{half:.3f}" if half >= 0.0005 else "<.001")


def _heading(name: str, measure: MeasureMean | None) -> str:
    """What a column of the page is, and what even attention would give there."""
    if name == "entropy":
        return "entropy\n(nats)"
    return f"{name}\n(even: {measure.even:.2f})" if measure and measure.even is not None else name.replace(" ", "\n")


def draw_conditions(result: Specialisation) -> dict[str, Figure]:
    """One page per kind of site: each head with and without the condition, by column if there are columns."""
    return {"-".join(kind): _draw_kind(result, KINDS[kind], heads) for kind, heads in _kinds(result).items()}


def _draw_kind(result: Specialisation, kind: str, heads: Sequence[HeadStats]) -> Figure:
    shown = [*_targets(heads), "entropy share"]
    # The columns in which something shown was measured, as they are written; without columns, `all`.
    written = dict.fromkeys(m.column for m in heads[0].measures if m.measure == "entropy" and m.column != "all")
    measured = {m.column for head in heads for m in head.measures if m.measure in shown}
    columns = [column for column in written if column in measured] or ["all"]
    figure = Page(max(1.9 * len(shown) + 1.0, 8.5), 1.25 * len(heads) + 0.9)
    grid = figure.subplots(len(heads), len(shown), sharex=True, sharey=True, squeeze=False)
    for row, head in zip(grid, heads, strict=True):
        for axes, name in zip(row, shown, strict=True):
            _draw_panel(axes, head, name, columns)
        row[0].set_ylabel(f"{head.short}\nshare", fontsize=9)
    what = "output column" if heads[0].stack == "decoder" else "column of the query"
    for top, bottom, name in zip(grid[0], grid[-1], shown, strict=True):
        top.set_title(name, fontsize=10)
        bottom.set(xlim=(-0.5, len(columns) - 0.5), ylim=(-0.06, 1.06), yticks=(0, 0.5, 1))
        bottom.set_xticks(range(len(columns)), columns if len(columns) > 1 else ["all queries"], fontsize=8)
        bottom.set_xlabel(what if len(columns) > 1 else "", fontsize=8)
    figure.key(*grid[0][0].get_legend_handles_labels(), size=10)
    figure.headline(f"{result.name}: {kind}, {result.weighting}, mean with 95 % interval (n = {result.n:,})")
    return figure


def _draw_panel(axes: Axes, head: HeadStats, name: str, columns: Sequence[str]) -> None:
    """One measure of one head; what even attention would give is a dash."""
    conditions = dict.fromkeys(m.condition for m in head.measures if m.condition not in ("all", "difference"))
    for i, (condition, (colour, marker, filling)) in enumerate(zip(conditions, LOOKS, strict=False)):
        found = [(x, m) for x, column in enumerate(columns) if (m := head.find(name, column, condition))]
        axes.errorbar(
            [x + 0.24 * i - 0.12 for x, _ in found],
            [m.mean for _, m in found],
            [m.half() for _, m in found],
            fmt=marker,
            color=colour,
            markerfacecolor=filling,
            markersize=5,
            capsize=2,
            label=condition,
        )
    even = [(x, m.even) for x, column in enumerate(columns) if (m := head.find(name, column)) and m.even is not None]
    axes.plot(*np.array(even).reshape(-1, 2).T, "_", color=GREY, markersize=16, label="if attention were even")
    axes.grid(axis="y", alpha=0.25)


Column = tuple[str, Sequence[str]]
"""A name, and a cell for each row."""
TEXT = 25
"""Characters of a column of text, at least."""


@dataclass(frozen=True)
class FittedTable:
    """A table with a row per head that becomes several where a line has no room for all columns.

    A number is never cut: columns of text wrap, and columns of numbers move to a further table, with the head's name.
    """

    title: str
    keys: Sequence[Column]
    """What stands in front of each row, in every table."""
    text: Column
    numbers: Sequence[Column]
    caption: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        """Lay the columns out for the width of the terminal."""
        yield from self.tables(options.max_width)

    def tables(self, width: int) -> list[Table]:
        """Return one table, or one of the text and as many of the numbers as it takes."""
        first = 1 + sum(map(_room, self.keys))
        if first + TEXT + 2 + sum(map(_room, self.numbers)) <= width:
            return [self._part(self.title, [self.text, *self.numbers], self.caption)]
        parts, left = [list[Column]()], width - first
        for column in self.numbers:
            if parts[-1] and _room(column) > left:
                parts.append([])
                left = width - first
            parts[-1].append(column)
            left -= _room(column)
        last = [self.caption if part is parts[-1] else "" for part in parts]
        numbers = [self._part("", part, caption) for part, caption in zip(parts, last, strict=True)]
        return [self._part(self.title, [self.text], ""), *numbers]

    def _part(self, title: str, columns: Sequence[Column], caption: str) -> Table:
        table = Table(
            title=title,
            title_justify="left",
            caption=caption,
            caption_justify="left",
            box=SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
        )
        for column in (*self.keys, *columns):
            if column is self.text:
                table.add_column(column[0], min_width=TEXT)
            else:
                width = _room(column) - 2
                justify: Literal["left", "right"] = "left" if column in self.keys else "right"
                table.add_column(column[0], justify=justify, min_width=width, max_width=width)
        for row in zip(*(cells for _, cells in (*self.keys, *columns)), strict=True):
            table.add_row(*row)
        return table


def _room(column: Column) -> int:
    """How many characters of a line a column takes: its widest cell or word of its name, and two between columns."""
    name, cells = column
    return 2 + max(map(len, (*cells, *name.split())))


def stats_table(result: Specialisation) -> FittedTable:
    """Tabulate labels and measures in percent, mean ± half of the 95 % interval; sparsity 100 is one key."""
    targets = dict.fromkeys(name for heads in _kinds(result).values() for name in _targets(heads))
    names = (*targets, *SPREAD, *_contrast(result))
    return FittedTable(
        f"{result.name}: {result.weighting} in %, mean ± {HALF} over {result.n:,} examples ({result.data})",
        [("head", [head.short for head in result.heads])],
        ("label", [head.label for head in result.heads]),
        [(name, _percentages(result, name)) for name in names],
    )


def _percentages(result: Specialisation, name: str) -> list[str]:
    """Write one measure of every head in percent; empty for heads that lack it."""
    found = (_find(result, head, name) for head in result.heads)
    return ["" if each is None else f"{100 * each.mean:z.1f} ± {100 * each.half():.1f}" for each in found]


def _contrast(result: Specialisation) -> list[str]:
    """The name of what the contrast measures, if there is one."""
    return [result.contrast.name] if result.contrast else []


def _find(result: Specialisation, head: HeadStats, name: str) -> MeasureMean | ContrastShift | None:
    """One measure over all columns, or what the contrast does."""
    return head.sensitivity() if name in _contrast(result) else head.find(name)


def _kinds(result: Specialisation) -> dict[tuple[str, str], list[HeadStats]]:
    found: dict[tuple[str, str], list[HeadStats]] = {}
    for head in result.heads:
        found.setdefault((head.stack, head.kind), []).append(head)
    return found


def _targets(heads: Sequence[HeadStats]) -> list[str]:
    return list(dict.fromkeys(m.measure for head in heads for m in head.measures if m.even is not None))


# --- what the contrast of a task does ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sensitivity:
    """How far a head's attention moves across a border that matters, beyond a step beside it."""

    short: str
    shift: ContrastShift
    low: float
    high: float
    """95 % interval that holds for all heads at once (Bonferroni)."""


def sensitivities(result: Specialisation) -> list[Sensitivity]:
    """Of every head that was measured, the most sensitive first."""
    found = [(head.short, shift) for head in result.heads if (shift := head.sensitivity())]
    halves = [float(stdtrit(shift.n - 1, 1 - 0.025 / len(found))) * shift.se for _, shift in found]
    told = [
        Sensitivity(*each, each[1].mean - half, each[1].mean + half) for each, half in zip(found, halves, strict=True)
    ]
    return sorted(told, key=lambda each: -each.shift.mean)


def draw_sensitivity(result: Specialisation) -> Figure:
    """A row for each head: how far either step moves its attention, and the difference with its interval."""
    found = sensitivities(result)
    figure = Page(8, 0.2 * len(found) + 1.0)
    axes, y = figure.subplots(), np.arange(len(found))
    contrast = result.contrast
    name, words = ("sensitivity", "") if contrast is None else (contrast.name, contrast.words)
    changed, more = "one token changed", name.removesuffix("sensitivity").strip()
    both = f"{changed}, and a {more} with it"
    axes.plot([each.shift.beside for each in found], y, "|", color=GREY, markersize=8, label=changed)
    axes.plot([each.shift.across for each in found], y, "d", color=PALETTE[2], markersize=4, label=both)
    means, lows, highs = np.array([(each.shift.mean, each.low, each.high) for each in found]).T
    doubt = [means - lows, highs - means]
    look: dict[str, Any] = {"color": BLUE, "markersize": 5, "capsize": 2, "linewidth": 1}
    axes.errorbar(means, y, xerr=doubt, fmt="o", label="the difference, 95 % interval for all heads at once", **look)
    axes.axvline(0, color="black", linewidth=0.6)
    axes.set_yticks(y, [each.short for each in found], fontsize=8)
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.set_xlabel("share of attention that moves")
    axes.grid(axis="x", alpha=0.25)
    figure.headline(f"{result.name}: {name} of each head", words, size=10)
    figure.key(*axes.get_legend_handles_labels(), columns=3)
    return figure


# --- two runs, head by head -------------------------------------------------------------------------------------------


def draw_matching(result: Matching) -> Figure:
    """A row for each kind of site: overlaps with the pairs framed; beside it, each pair's measures and chance's."""
    widths = max(max(CELL * len(kind.others) for kind in result.kinds), 2.9), 3.4
    heights = [max(CELL * len(kind.heads), 1.6) for kind in result.kinds]
    figure = Page(sum(widths) + 2.2, sum(heights) + 0.9 * len(heights) + 0.4)
    panels = figure.subplots(len(heights), 2, squeeze=False, width_ratios=widths, height_ratios=heights)
    for (overlaps, measures), kind in zip(panels, result.kinds, strict=True):
        _draw_overlaps(overlaps, kind)
        _draw_measures(measures, kind, result.error_rate)
    panels[-1][0].set_xlabel("head of the other run")
    panels[-1][1].set_xlabel("overlap, CKA, share restored")
    figure.headline(
        "Which heads attend alike? Frames: the best pairing, broken where chance pairs heads as well",
        f"down: {result.name}; across: {result.other} (n = {result.n:,}: {result.data})",
        result.words,
        size=10,
    )
    key = {
        "attention: overlap": Line2D([], [], marker="o", color=COLOURS["o"], linestyle=""),
        "outputs: CKA": Line2D([], [], marker="s", color=COLOURS["s"], linestyle=""),
        "effect restored by the partner, 95 % interval": Line2D([], [], marker="^", color=COLOURS["^"]),
        "up to here by chance": Line2D([], [], color=GREY, linewidth=4, alpha=0.3),
        "hollow: not beyond chance": Line2D([], [], marker="o", color=BLUE, markerfacecolor="white", linestyle=""),
    }
    figure.key([*key.values()], [*key], columns=3)
    return figure


def _draw_overlaps(axes: Axes, kind: KindMatch) -> None:
    axes.imshow(kind.overlaps, vmin=0, vmax=1, cmap=SEQUENTIAL, aspect="auto")
    write_cells(axes, kind.overlaps)
    for y, pair in enumerate(kind.pairs):
        if pair.partner is not None:
            corner, style = (kind.others.index(pair.partner) - 0.47, y - 0.47), "-" if pair.is_alike else ":"
            axes.add_patch(Rectangle(corner, 0.94, 0.94, fill=False, edgecolor=ORANGE, linewidth=2.5, linestyle=style))
    axes.set_xticks(range(len(kind.others)), map(_short, kind.others), fontsize=8, rotation=60)
    axes.set_yticks(range(len(kind.heads)), map(_short, kind.heads), fontsize=8)
    axes.set_title(f"{KINDS[kind.stack, kind.kind].capitalize()}: attention shared", fontsize=9)


def _draw_measures(axes: Axes, kind: KindMatch, error_rate: float) -> None:
    """Beside the rows of the heat map, in three lanes."""

    def draw(marker: str, y: float, value: float, chance: float, p: float, *interval: float) -> None:
        colour = COLOURS[marker]
        axes.plot([0, max(chance, 0)], [y, y], color=GREY, linewidth=4, alpha=0.3, solid_capstyle="butt")
        if interval:
            axes.plot(interval, [y, y], color=colour)
        axes.plot(value, y, marker, color=colour, markersize=5, markerfacecolor=colour if p <= error_rate else "white")

    for y, pair in enumerate(kind.pairs):
        for marker, lane, found in (("o", y - 0.27, pair.attention), ("s", y, pair.outputs)):
            if found is not None:
                draw(marker, lane, found.value, max(found.untrained, found.relabelled), found.p)
        if pair.transplant and (restored := pair.transplant.restored):
            draw("^", y + 0.27, restored.share, restored.untrained, restored.p, restored.low, restored.high)
    axes.set_xlim(-0.06, 1.06)  # a partner that restores less than nothing is beyond the edge, and in the table
    axes.set_ylim(len(kind.heads) - 0.5, -0.5)
    axes.set_yticks(range(len(kind.pairs)), [_short(pair.partner) for pair in kind.pairs], fontsize=8)
    axes.yaxis.tick_right()
    axes.grid(axis="x", alpha=0.3)
    axes.set_title("each head with its partner", fontsize=9)


def match_table(result: Matching) -> FittedTable:
    """Tabulate each head with its partner: attention, outputs, transplant, each with its p, and what they come to."""
    pairs = [pair for kind in result.kinds for pair in kind.pairs]
    moved = next((pair.transplant for pair in pairs if pair.transplant), None)
    on = f". Restored: on {moved.n:,} examples, about means over {moved.n_mean:,} inputs" if moved else ""
    names = ("overlap", "by chance", "p", "CKA", "by chance", "p", "restored", "by chance", "by others")
    rows = [
        (*_likeness(pair.attention, result.n), *_likeness(pair.outputs, result.n), *_restored(pair)) for pair in pairs
    ]
    return FittedTable(
        f"{result.name} beside {result.other}: overlap ± {HALF} over {result.n:,} examples; "
        "p is corrected over heads, intervals are not",
        [("head", [_short(pair.head) for pair in pairs]), ("partner", [_short(pair.partner) for pair in pairs])],
        ("verdict", [pair.verdict for pair in pairs]),
        [(name, [row[i] for row in rows]) for i, name in enumerate(names)],
        f"{result.words}\n{NOTE}{on}",
    )


def _likeness(found: Likeness | None, n: int) -> tuple[str, str, str]:
    """Write a likeness with half of its 95 % interval over n examples, what chance gives, and its p."""
    if found is None:
        return "", "", ""
    half = "" if found.se is None else f" ± {float(stdtrit(n - 1, 0.975)) * found.se:.3f}"
    return f"{found.value:.3f}{half}", f"≤ {max(found.untrained, found.relabelled):.3f}", f"{found.p:.2g}"


def _restored(pair: Pair) -> tuple[str, str, str]:
    """By the partner, by the best of the untrained models, and by the best other head of the other run."""
    if pair.transplant is None:
        return "", "", ""
    if (found := pair.transplant.restored) is None:
        return "nothing to restore", "", ""
    others = "" if found.others is None else f"≤ {found.others:.2f}"
    return f"{found.share:.2f} [{found.low:.2f}, {found.high:.2f}]", f"≤ {found.untrained:.2f}", others


def _short(head: str | None) -> str:
    return "none" if head is None else HeadId.parse(head).short
