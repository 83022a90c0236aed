"""What ablating each head costs: a ranking with intervals, a map of layers and heads, and curves over lengths."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.table import Table

from headcount.bands import BANDS, FEW, ranked_by
from headcount.figures.style import GREY, LINE, PALETTE, SEQUENTIAL, Page, plain, width_of, wrapped
from headcount.heads import HeadId

if TYPE_CHECKING:
    from headcount.analysis.ablation import Ablation, AblationCondition, Effect


MARKERS = "osD^"
MOST_ROWS = 48
"""Heads in one ranking; of more, the first ones are shown."""
BROADEST = 11.5
"""Inches of panels side by side: more could not be read on a page."""
BORDERS = (1, 10)
ACTIONS = {
    "zero": ("removing {}", "costs"),
    "resample": ("swapping {}'s output with another example's", "misleads"),
    "mean": ("replacing {}'s output by its mean", "costs"),
}
"""What each replacement does to a head, and the verb for what follows."""


def action(replacement: str, head: str = "a head") -> str:
    """Say what a replacement does to a head.

    >>> action("zero"), action("resample", "E0H1"), action("noise", "E0H1")
    ('removing a head', "swapping E0H1's output with another example's", "replacing E0H1's output (noise)")
    """
    return ACTIONS.get(replacement, (f"replacing {{}}'s output ({replacement})", ""))[0].format(head)


def draw_ranking(result: Ablation, condition: AblationCondition) -> Figure:
    """One row per head, the costliest first; one mark per replacement, with its 95 % interval."""
    ranked = ranking(result, condition.length)
    shown, n = ranked[:MOST_ROWS], len(result.replacements)
    figure = Page(8.5, 0.1 * (n + 1) * len(shown) + 1.3)
    axes = figure.subplots()
    for i, replacement in enumerate(result.replacements):
        effects = {effect.head: effect for effect in _effects(result, replacement, condition.length)}
        drops, doubt = _drops(result, [effects[head] for head in shown])
        y = np.arange(len(shown)) + 0.24 * (i - (n - 1) / 2)
        mark, colour = MARKERS[i % len(MARKERS)], PALETTE[i % len(MARKERS)]
        axes.barh(y, drops, height=0.2, color=colour, alpha=0.3, linewidth=0)
        axes.errorbar(
            drops, y, xerr=doubt, fmt=mark, color=colour, markersize=4, capsize=2, linewidth=1, label=replacement
        )
    mine = [effect for effect in result.heads if effect.length == condition.length]
    again = {effect.head for effect in mine if effect.n != condition.n}
    names = [f"{head}  ({effects[head].short}){' †' if head in again else ''}" for head in shown]
    axes.set_yticks(range(len(shown)), names, fontsize=8)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    _mark_borders(axes, result, min(_scale(result) * effect.low for effect in mine))
    axes.set_xlabel(f"{_what(result)}, with the 95 % interval of each head by itself")
    axes.grid(axis="x", alpha=0.25)
    more = f"; the first {len(shown)} of {len(ranked)} heads" if len(ranked) > len(shown) else ""
    about = f"the costliest by {ranked_by(result.replacements)} first; {_about(result, condition, again=True)}{more}"
    figure.headline(f"{result.name or 'model'}: {result.metric} without each head", about, size=12)
    figure.key(*axes.get_legend_handles_labels(), title="ablated by", size=10)
    return figure


def _mark_borders(axes: Axes, result: Ablation, lowest: float) -> None:
    if result.unit != "points":
        return
    axes.set_xscale("symlog", linthresh=1, linscale=0.6)
    ticks = [tick for tick in (-50, -20, -10, -5, -2, -1) if tick >= lowest] + [0, 1, 2, 5, 10, 20, 50, 100]
    axes.set_xticks(ticks, list(map(str, ticks)))
    axes.minorticks_off()
    axes.set_xlim(min(-0.3, 1.2 * lowest), 105)
    banded = any(effect.band for effect in result.heads)
    for border, name in zip(BORDERS, ("important", "critical"), strict=True) if banded else ():
        axes.axvline(border, color=GREY, linewidth=0.9, linestyle="--")
        axes.text(border, -0.62, f" {name} →", fontsize=8, color=GREY, va="bottom")
    axes.axvline(0, color="black", linewidth=0.6)


def draw_map(result: Ablation, condition: AblationCondition) -> Figure:
    """Sites down, heads across: what ablation costs with each replacement, and the gradient beside it."""
    panels = []
    for replacement in result.replacements:
        mine = _effects(result, replacement, condition.length)
        again = {effect.head for effect in mine if effect.n != condition.n}
        costs = {effect.head: _scale(result) * effect.drop for effect in mine}
        panels.append((f"{replacement}: {_what(result)}", costs, again))
    if condition.importances:
        gradients = {each.head: each.importance for each in condition.importances}
        panels.append(("gradient: mean |dL/dg|", gradients, set()))
    heads = [HeadId.parse(effect.head) for effect in result.heads]
    sites, n_heads = list(dict.fromkeys(head.site for head in heads)), max(head.index for head in heads) + 1
    names = [[str(site.head(i)) for i in range(n_heads)] for site in sites]
    width = max(2.2, 0.56 * n_heads + 0.2)
    across = max(1, min(len(panels), int(BROADEST / width)))
    down = -(-len(panels) // across)
    figure = Page(width * across + 1.7, 0)
    titles = [wrapped(title, (figure.room - 1.6) / across, 9) for title, *_ in panels]
    lines = 1 + max(title.count("\n") for title in titles)
    figure.set_figheight((0.48 * len(sites) + 0.3 + 0.16 * lines) * down + 0.3)
    grid = list(figure.subplots(down, across, squeeze=False).flat)
    for axes in grid[len(panels) :]:
        axes.remove()
    for axes, title, (_, values, again) in zip(grid, titles, panels, strict=False):
        _heat(axes, names, values, again)
        axes.set_title(title, fontsize=9)
        axes.set_xticks(range(n_heads), [f"H{i}" for i in range(n_heads)], fontsize=8)
        axes.set_yticks(range(len(sites)), [f"{site} ({site.short})" for site in sites], fontsize=8)
        axes.label_outer()
    about = _about(result, condition, again=True)
    figure.headline(f"{result.name or 'model'}: {about}; shade: share of a panel's largest; white: no worse", size=10)
    return figure


def _heat(axes: Axes, names: Sequence[Sequence[str]], numbers: Mapping[str, float], again: Collection[str]) -> None:
    """Each panel has its own range; the numbers are written into it, with a dagger if they were measured again."""
    values = np.array([[numbers.get(name, np.nan) for name in row] for row in names])
    largest = max(float(np.nanmax(values)), 1e-12)
    axes.imshow(values.clip(min=0) / largest, vmin=0, vmax=1, cmap=SEQUENTIAL, aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        if not np.isnan(value):
            text = f"{value:z.1f}" if largest >= 1 else f"{value:.1e}".replace("e-0", "e-")
            text += "†" * (names[row][column] in again)
            colour = "white" if value > 0.5 * largest else "black"
            axes.text(column, row, text, ha="center", va="center", fontsize=9, color=colour)


def draw_lengths(result: Ablation) -> Figure:
    """The drop of every head against the length, one panel per replacement."""
    lengths = [condition.length for condition in result.conditions if condition.length is not None]
    heads = list(dict.fromkeys(effect.head for effect in result.heads))
    banded = {effect.length for effect in result.heads if effect.band}
    void = set(lengths) - banded if result.is_accuracy else set()  # there a drop of 0 would look harmless
    figure = Page(4.4 * len(result.replacements) + 0.6, 4.0)
    panels = figure.subplots(1, len(result.replacements), sharey=True, squeeze=False)[0]
    for axes, replacement in zip(panels, result.replacements, strict=True):
        for i, head in enumerate(heads):
            mine = [effect for effect in result.heads if (effect.head, effect.replacement) == (head, replacement)]
            shown = [effect for effect in mine if effect.length not in void]
            if not shown:
                continue
            x = [1.25 ** ((i - (len(heads) - 1) / 2) / len(heads)) * (effect.length or 1) for effect in shown]
            drops, doubt = _drops(result, shown)
            look = {"color": PALETTE[i % len(PALETTE)], "markersize": 4, "capsize": 2, "linewidth": 1.2}
            marks = MARKERS[i % len(MARKERS)] + ("-" if i < len(PALETTE) else "--")
            axes.errorbar(x, drops, yerr=doubt, fmt=marks, label=shown[0].short, **look)
        axes.set_xscale("log", base=2)
        axes.set_xlim(min(lengths) / 1.25, max(lengths) * 1.25)
        _name_lengths(axes, lengths, void)
        axes.set(title=plain(f"ablated by {replacement}"), xlabel="length (numbers)")
        axes.grid(alpha=0.25)
    panels[0].set_ylabel(f"{_what(result)}, with 95 % interval")
    figure.key(*panels[0].get_legend_handles_labels(), columns=12)
    clean = "; ".join(f"{each.length}: {_clean(result, each)} (n = {each.n:,})" for each in result.conditions)
    figure.headline(
        f"{result.name or 'model'}: each head ablated alone, by length", f"clean {result.metric} at {clean}", size=10
    )
    return figure


def _name_lengths(axes: Axes, lengths: Sequence[int], void: Collection[int]) -> None:
    """Upright where they would run into each other; where even so they would, not all are named."""
    labels = {n: f"{n}\n(nothing to lose)" if n in void else str(n) for n in sorted(lengths)}
    inches = 3.6 / math.log(1.25**2 * max(lengths) / min(lengths))
    widest = max(width_of(line, 8) for label in labels.values() for line in label.splitlines())
    turned = any(inches * math.log(b / a) < widest for a, b in pairwise(labels))
    last = 0.0
    for n in labels:
        if turned and last and inches * math.log(n / last) < (2 if n in void else 1) * LINE * 8:
            labels[n] = ""
        else:
            last = n
    axes.set_xticks(list(labels), list(labels.values()), fontsize=8, rotation=90 if turned else 0)
    axes.minorticks_off()


def ranking(result: Ablation, length: int | None) -> list[str]:
    """Return the heads, the costliest to remove first; the other replacements break ties."""
    heads = list(dict.fromkeys(effect.head for effect in result.heads))
    drops = {(e.head, e.replacement): e.drop for e in result.heads if e.length == length}
    by = [
        ranked_by(result.replacements),
        *(each for each in result.replacements if each != ranked_by(result.replacements)),
    ]
    return sorted(heads, key=lambda head: [-drops[head, replacement] for replacement in by])


@dataclass(frozen=True)
class Costliest:
    """The head that costs most with one replacement, and the heads that may cost as much."""

    replacement: str
    top: Effect
    rivals: tuple[Effect, ...]
    """Heads whose 95 % intervals allow them the first rank as well."""

    @property
    def is_shown(self) -> bool:
        """Whether the head is shown to cost anything."""
        return self.top.low > 0

    @property
    def is_decided(self) -> bool:
        """Whether one head costs most, by the intervals."""
        return self.is_shown and not self.rivals


def costliest(result: Ablation, condition: AblationCondition, replacement: str) -> Costliest:
    """Find the head that costs most with one replacement."""
    top, *others = sorted(_effects(result, replacement, condition.length), key=lambda each: -each.drop)
    return Costliest(replacement, top, tuple(each for each in others if each.rank_low == 1))


def costliest_sentence(result: Ablation, found: Costliest, model: str = "") -> str:
    """Say which head costs most with one replacement, and how sure that is.

    `Removing E1H2 costs most (33.0 points; 95 % interval 32.5 to 33.5; n = 40,000).`
    """
    top, of = found.top, f" in {model}" if model else ""
    scale, digits, unit = (100, 1, "points") if result.unit == "points" else (1, 3, result.unit)
    drop, low, high = (f"{scale * each:z.{digits}f}" for each in (top.drop, top.low, top.high))
    cost = f"({f'{drop} {unit}'.rstrip()}; 95 % interval {low} to {high}; n = {top.n:,})"
    if not found.is_shown:
        what = action(found.replacement, "any head")
        return f"Whether {what} costs anything{of} is undecided: {top.short} comes first {cost}."
    verb = ACTIONS.get(found.replacement, ("", "costs"))[1]
    most = f"{action(found.replacement, top.short)} {verb} most{of}"
    if found.rivals:
        names = _some([each.short for each in found.rivals], 4)
        return f"Whether {most} is undecided {cost}: {names} may {verb.removesuffix('s')} as much."
    return f"{most[:1].upper()}{most[1:]} {cost}."


def ablation_table(result: Ablation, condition: AblationCondition) -> Table:
    """The ranking as text."""
    head, rows = ablation_rows(result, condition)
    table = Table(*head, title=ablation_title(result, condition), title_justify="left")
    for row in rows:
        table.add_row(*row)
    return table


def ablation_title(result: Ablation, condition: AblationCondition) -> str:
    """What a ranking is about."""
    return f"{result.name or 'model'}: {_what(result)}; {_about(result, condition)}"


def ablation_rows(result: Ablation, condition: AblationCondition) -> tuple[list[str], list[list[str]]]:
    """Return the names of the columns, and one row per head, the costliest to remove first.

    A cell is `16.60*[14.99, 18.30] critical`: a star where p, corrected over heads, is under 0.05; and n, if it is
    another one.
    """
    rows = []
    effects = {(e.head, e.replacement): e for e in result.heads if e.length == condition.length}
    gradients = {each.head: f"{each.importance:.1e}" for each in condition.importances}
    for head in ranking(result, condition.length):
        mine = [effects[head, replacement] for replacement in result.replacements]
        cells = []
        for effect in mine:
            drop, low, high = drop_texts(result.unit, effect.drop, effect.low, effect.high)
            text = f"{drop}{'*' if effect.p < 0.05 else ' '}[{low}, {high}] {effect.band or ''}".rstrip()
            cells.append(text if effect.n == condition.n else f"{text} (n={effect.n:,})")
        first = effects[head, ranked_by(result.replacements)]
        place = "-".join(map(str, dict.fromkeys((first.rank_low, first.rank_high))))
        rows.append([first.short, place, *cells, gradients.get(head, "")])
    return ["head", f"rank ({ranked_by(result.replacements)})", *result.replacements, "gradient"], rows


def drop_texts(unit: str, *drops: float) -> list[str]:
    """In points to two digits, or in the metric's own unit to four."""
    return [f"{100 * drop:z.2f}" if unit == "points" else f"{drop:z.4f}" for drop in drops]


def ablation_notes(result: Ablation, condition: AblationCondition) -> list[str]:
    """What to know about the table: bands, who is undecided, whether gradients agree, and the proof."""
    mine = [effect for effect in result.heads if effect.length == condition.length]
    banded, n_heads = any(effect.band for effect in mine), len({effect.head for effect in mine})
    test = "swaps: either score could be the other" if result.unit == "points" else "bootstrap-t: the mean drop is zero"
    if result.is_accuracy:
        test = "exact McNemar: as many get worse as get better"
    notes = [*_costliest_notes(result, condition)]
    notes.append(
        f"* p < 0.05, {test}; p is corrected over the {n_heads} heads of each replacement (Holm), the 95 % intervals "
        "are not: each is for one head by itself"
    )
    baseline = _score(result, condition.majority_baseline)
    if result.unit == "points" and not banded:
        notes.append(
            f"NO BANDS: with all heads {_clean(result, condition)} is reached, and one answer to everything gets "
            f"{baseline}. A head that costs nothing here proves nothing."
        )
    if result.unit == "nats" and condition.clean <= condition.majority_baseline:
        notes.append(
            f"NO BETTER THAN GUESSING: with all heads the loss is {_score(result, condition.clean)} nats, and even "
            f"odds over {math.exp(-condition.majority_baseline):,.0f} tokens or classes have {baseline}. "
            "A head that costs nothing here proves nothing."
        )
    if banded:
        notes += _band_notes(result, condition)
    if few := [e for e in mine if result.unit != "points" and e.carried > 0.5 and e.n > 2 * FEW]:
        names = ", ".join(f"{e.short} ({e.replacement})" for e in few[:8]) + (", ..." if len(few) > 8 else "")
        notes.append(
            f"FEW EXAMPLES CARRY IT: ten of {condition.n:,} make up over half of all differences in {names}; "
            "more examples may well tell another figure"
        )
    if condition.is_plain:
        notes.append("plain passes: modules of this model keep state, so each ablation was a whole pass (slower)")
    for each in condition.agreements:
        divided = " (divided by its site's norm)" if each.normalised else ""
        found, text = each.found, "all drops are equal"
        if found is not None:
            text = f"rank correlation {found.rho:.2f} [{found.low:.2f}, {found.high:.2f}], p = {found.p:.4f}"
            text += f", {found.tied} of {each.n_heads} drops tied" if found.tied else ""
        notes.append(f"gradient importance{divided} against {each.replacement}: {text}")
    return [*notes, *_method_notes(result, condition)]


def _band_notes(result: Ablation, condition: AblationCondition) -> list[str]:
    """How many heads are in each band, who is undecided, and who is redundant whatever replaces it."""
    notes = []
    for replacement in sorted(
        result.replacements, key=lambda replacement: replacement != ranked_by(result.replacements)
    ):
        mine = _effects(result, replacement, condition.length)
        counts = ", ".join(f"{sum(e.band == band for e in mine)} {band}" for band in BANDS)
        undecided = [f"{e.short} ({_needs(e)})" for e in mine if e.band == "undecided"]
        note = f"{action(replacement)} ({replacement}): {counts}"
        notes.append(f"{note}: {_some(undecided)}" if undecided else note)
    if len(result.replacements) > 1:
        harmless = result.harmless(condition.length)
        names = ", ".join(HeadId.parse(head).short for head in harmless)
        note = f"redundant in all {len(result.replacements)} ways: {len(harmless)}"
        notes.append(f"{note}: {names}" if names else note)
    return notes


def _costliest_notes(result: Ablation, condition: AblationCondition) -> list[str]:
    """Say which head costs most to remove, then whose swapped output misleads most."""
    shown = dict.fromkeys(
        (ranked_by(result.replacements), *(each for each in ("resample",) if each in result.replacements))
    )
    return [costliest_sentence(result, costliest(result, condition, each)) for each in shown]


def _some(told: Sequence[str], most: int = 5) -> str:
    """The first ones, and how many there are besides.

    >>> _some(["E0H0", "E0H1", "E0H2"], most=2)
    'E0H0, E0H1 and 1 more'
    """
    more = f" and {len(told) - most} more" if len(told) > most else ""
    return ", ".join(told[:most]) + more


def _needs(effect: Effect) -> str:
    """`3,000 to 12,000 examples would decide`."""
    if effect.examples_needed is None:
        return "it lies on a border"
    if effect.examples_needed_most is None:
        return f"{_roughly(effect.examples_needed)} examples or more would decide; it may lie on the border"
    return f"{_roughly(effect.examples_needed)} to {_roughly(effect.examples_needed_most)} examples would decide"


def _roughly(n: int) -> str:
    """To two digits: more would say more than is known."""
    return f"{int(float(f'{n:.1e}')):,}"


def _method_notes(result: Ablation, condition: AblationCondition) -> list[str]:
    """List what replaced heads, which heads were measured again, and what was verified."""
    notes = []
    if condition.n_mean:
        noise = "what is left of its noise is in the intervals, and p is for this mean"
        notes.append(f"mean: over {condition.n_mean:,} inputs; {noise}")
    if condition.donors:
        several = f"{condition.donors} others in turn" if condition.donors > 1 else "one other"
        notes.append(
            f"resample: each example with {several}; a head's output is real, its company is not, so this counts "
            "misleading others as well as being missed"
        )
    if condition.decided_on:
        notes.append(f"measured again, where any answer changed: on {condition.decided_on} alone (marked n)")
    if condition.decoded:
        every = set(condition.decoded_replacements) >= set(result.replacements)
        which = "" if every else f" {' and '.join(condition.decoded_replacements)}"
        notes.append(f"{condition.decoded:,} answers of{which} ablations decoded for real gave the same results")
    return [*notes, _proof_sentence(result)]


def _proof_sentence(result: Ablation) -> str:
    """Say what was verified at the attention blocks before heads were ablated."""
    n, n_followed = len(result.proof), sum(each.follows_attention for each in result.proof)
    parts = [
        f"head contributions + bias = block output (max error {max(each.sum_error for each in result.proof):.0e})",
        "with all heads off, only the bias remains",
    ]
    own_pattern = "each head's slice of z follows its own attention pattern"
    unchecked = "" if n_followed == n else f" Not checked at {n - n_followed} of them: whether {own_pattern}."
    verified = "; ".join(parts if unchecked else [*parts, own_pattern])
    return f"Verified at {n} attention block{'s' if n > 1 else ''}: {verified}.{unchecked}"


def failure_tables(result: Ablation, condition: AblationCondition, replacement: str) -> list[Table]:
    """Say what broke without each head that broke something, the head that broke most first."""
    tables = []
    for each in sorted(condition.failures, key=lambda each: -each.n_broken):
        if each.replacement != replacement or not each.n_broken:
            continue
        is_one_of = replacement == "resample" and condition.donors > 1
        first = f", the first of {condition.donors} donors" if is_one_of else ""
        title = f"without {each.head} ({replacement}{first}): {each.n_broken:,} of {condition.n:,} broke"
        table = Table("what", "broke", title=title, title_justify="left")
        for group in (*each.digits, *each.faults[:6], *each.groups):
            if group.broken:
                table.add_row(f"{group.facet}: {group.group}", f"{group.broken:,} of {group.n:,}")
        for wrong in each.examples:
            table.add_row(f"{wrong.example}: predicted {wrong.predicted}, should be {wrong.right}", wrong.explanation)
        tables.append(table)
    return tables


def _effects(result: Ablation, replacement: str, length: int | None) -> list[Effect]:
    return [effect for effect in result.heads if (effect.length, effect.replacement) == (length, replacement)]


def _scale(result: Ablation) -> float:
    """From a drop to what is printed: points for hits, else the metric's own unit."""
    return 100.0 if result.unit == "points" else 1.0


def _drops(result: Ablation, effects: Sequence[Effect]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What they cost, and how far their intervals reach to either side."""
    times = _scale(result)
    doubt = np.array([[times * (e.drop - e.low), times * (e.high - e.drop)] for e in effects]).T.clip(min=0)
    return np.array([times * effect.drop for effect in effects]), doubt


def _what(result: Ablation) -> str:
    name = "rise of the loss" if result.unit == "nats" else "drop"
    is_share = result.is_accuracy or result.metric.startswith("own")  # an author's metric() gives 0 to 1
    hundredths = "hundredths of rho" if result.unit == "points" and not is_share else result.unit
    return f"{name} ({hundredths})" if result.unit else name


def _about(result: Ablation, condition: AblationCondition, *, again: bool = False) -> str:
    """The score with all heads and the examples; and those that heads were measured `again` on."""
    about = f"{_clean(result, condition)} with all heads, n = {condition.n:,} ({condition.data})"
    return f"{about}; †: {condition.decided_on}" if again and condition.decided_on else about


def _clean(result: Ablation, condition: AblationCondition) -> str:
    """The score with all heads, with the interval of that score."""
    ends = condition.clean_interval[:: -1 if result.unit == "nats" else 1]
    low, high = (_score(result, end).removesuffix(" %") for end in ends)
    return f"{_score(result, condition.clean)} [{low}, {high}]"


def _score(result: Ablation, score: float) -> str:
    return f"{100 * score:.2f} %" if result.is_accuracy else f"{-score if result.unit == 'nats' else score:.4g}"


# --- export -----------------------------------------------------------------------------------------------------------
# Tables for other programs: Markdown for a page, CSV for a spreadsheet.


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells that hold what Markdown reads as its own are escaped."""
    lines = [list(map(_escaped, head)), ["---"] * len(head), *(list(map(_escaped, row)) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def ablation_markdown(result: Ablation) -> str:
    """The ranking as it is printed, with its notes below; one table per length."""
    parts = []
    for condition in result.conditions:
        notes = "\n".join(f"- {_escaped(note)}" for note in ablation_notes(result, condition))
        table = markdown_table(*ablation_rows(result, condition))
        parts += [_escaped(ablation_title(result, condition)), table, notes]
    return "\n\n".join(parts) + "\n"


def ablation_csv(result: Ablation) -> str:
    """One row per length, replacement and head in full precision; what is not known is empty."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    if result.heads:
        writer.writerow(field.name for field in fields(result.heads[0]))
    writer.writerows(map(_without_formula, astuple(effect)) for effect in result.heads)
    return out.getvalue()


def _without_formula(value: object) -> object:
    """A text that a spreadsheet would take for a formula begins with an apostrophe."""
    return f"'{value}" if isinstance(value, str) and value.startswith(tuple("=+-@\t\r")) else value


def _escaped(text: str) -> str:
    for char in "\\|*`":
        text = text.replace(char, f"\\{char}")
    return " ".join(text.split())
