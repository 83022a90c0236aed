"""What is left of a model as its heads go: all ways of choosing them in one figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from headcount.figures.ablation import drop_texts
from headcount.figures.style import GREY, PALETTE, Page, wrapped
from headcount.heads import HeadId

if TYPE_CHECKING:
    from headcount.analysis.cost import Cost
    from headcount.analysis.pruning import Point, PrunableShare, Pruning

LOOKS = {
    "alone": ("each head's own drop, added up (a promise, not a measurement)", PALETTE[3], "--", ""),
    "together": ("removed together, in the order of their own drops by zero", PALETTE[1], "-", "s"),
    "every way": ("removed together, in the order of the worst that any way of ablation did", PALETTE[6], "-", "D"),
    "greedy": ("greedy, measured again after every removal, with its 95 % interval", PALETTE[0], "-", "o"),
    "gradient": ("in the order of gradient importance", PALETTE[2], "-", "^"),
}


def draw_pruning(result: Pruning) -> Figure:
    """Score against the number of heads removed."""
    figure = Page(9.5, 4.6)
    axes = figure.subplots()
    sizes = [each.n_removed for each in result.chance]
    label = f"random orders ({result.n_orders}): median, and 10th to 90th percentile (n = {result.n_chance:,} each)"
    low, median, high = (
        [_shown(result, getattr(each, end)) for each in result.chance] for end in ("low", "median", "high")
    )
    axes.fill_between(sizes, low, high, color=GREY, alpha=0.2, linewidth=0)
    axes.plot(sizes, median, color=GREY, linestyle=":", label=label)
    for curve in result.curves:
        label, colour, style, marker = LOOKS[curve.name]
        x = [point.n_removed for point in curve.points]
        y, low, high = (
            [_shown(result, getattr(point, end)) for point in curve.points] for end in ("score", "low", "high")
        )
        axes.plot(x, y, linestyle=style, marker=marker, markersize=4, color=colour, label=label, linewidth=1.4)
        if curve.name == "greedy":  # four bands on top of each other hide each other; the table has them all
            axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
    _point_out(axes, result)
    if result.not_measured:
        axes.plot([], [], " ", label=f"not measured within {result.budget:g} s: {'; '.join(result.not_measured)}")
    axes.set_xlabel(f"heads removed (of {result.n_heads})")
    axes.set_ylabel(wrapped(_named(result), 4.0, 10))
    axes.set(xlim=(-0.5, result.n_heads + 0.5))
    if result.is_accuracy:
        axes.set(ylim=(-3, 106))
    axes.ticklabel_format(axis="y", useOffset=False)
    axes.grid(alpha=0.25)
    figure.key(*axes.get_legend_handles_labels(), columns=1)
    told = f"chosen on {result.chosen_on}, measured on {result.measured_on} (n = {result.n:,})"
    figure.headline(f"{result.name}: {_left(result, result.curves[0].points[0])} with all heads", told, size=10)
    return figure


def _point_out(axes: Axes, result: Pruning) -> None:
    """The figures to remember: sets of heads as upright lines, and what luck would have found as a cross."""
    for heads, point, colour, what in (
        (result.chosen, result.kept, PALETTE[0], f"greedy, {_asked(result)}"),
        (result.harmless, result.harmless_left, PALETTE[6], "all that are harmless in every way"),
        (result.by_zero, result.by_zero_left, PALETTE[1], "all that are harmless by zero, one at a time"),
    ):
        if heads:
            label = f"{point.n_removed}: {what} ({_left(result, point)} is left)"
            axes.axvline(point.n_removed, color=colour, linestyle="-.", linewidth=1, label=label)
    luck = result.best_random
    if result.n_tried and luck.n_removed:
        x, y = [luck.n_removed], [_shown(result, luck.score)]
        axes.plot(x, y, "X", color=PALETTE[4], markeredgecolor="black", markersize=9, label=_luck(result))


def pruning_table(result: Pruning) -> Table:
    """The curves as text."""
    measured = [curve for curve in result.curves if curve.name != "alone"]
    title = f"{result.name}: {_named(result)} as heads go, [95 % interval]; on {result.measured_on}, n = {result.n:,}"
    names = [name for curve in measured for name in (curve.name, "")]
    table = Table("removed", *names, "random: median [10 %, 90 %]", title=title, title_justify="left")
    chance = {each.n_removed: each for each in result.chance}
    for k in range(result.n_heads + 1):
        cells = [str(k)]
        for curve in measured:  # which ends early, if time was up
            point = next((each for each in curve.points if each.n_removed == k), None)
            cells.append(_with_interval(result, point.score, (point.low, point.high), 1, "") if point else "")
            cells.append(f"-{HeadId.parse(point.head).short}" if point and point.head else "")
        luck = chance.get(k)
        table.add_row(*cells, _with_interval(result, luck.median, (luck.low, luck.high), 1, "") if luck else "")
    return table


def pruning_notes(result: Pruning) -> list[str]:
    """What can go, in words: first what holds, then what only seems to."""
    kept, luck = result.kept, result.best_random
    is_beyond = result.share is None and result.clean - kept.score > result.loss
    beyond = ", more than asked for, as other examples tell" if is_beyond else ""
    notes = [f"no time:   {each} (not measured within {result.budget:g} s)" for each in result.not_measured]
    notes += [f"prunable:  {_prunable(result, each)}" for each in result.prunable]
    if len(result.replacements) > 1:
        means = f" ({_left(result, result.harmless_means)} with their means in place)" if result.harmless else ""
        alike = f"by {', '.join(result.replacements[:-1])} and {result.replacements[-1]} alike"
        notes += [
            f"harmless:  {_removed(result, result.harmless, result.harmless_left, alike)}{means}",
            "           " + (", ".join(HeadId.parse(head).short for head in result.harmless) or "none"),
        ]
    # A smaller set leaves more, whatever is in it: so much does the same number of heads leave by zero's order.
    as_many = next((curve.points for curve in result.curves if curve.name == "together"), ())
    if len(result.replacements) > 1 and 0 < len(result.harmless) < len(as_many):
        left = _left(result, as_many[len(result.harmless)])
        notes.append(f"           as many heads in the order of their own drops by zero: {left} is left")
    notes += [
        f"by zero:   {_removed(result, result.by_zero, result.by_zero_left, 'by zero alone')}"
        f" ({result.n_under_1_point} by the point estimate)",
        f"greedy:    takes {len(result.chosen)} head{'s' * (len(result.chosen) != 1)} {_asked(result)} on "
        f"{result.chosen_on}; {_left(result, kept)} is left on {result.measured_on}{_lost(result, kept)}{beyond}",
        "           " + (", ".join(HeadId.parse(head).short for head in result.chosen) or "none"),
    ]
    if result.n_tried and luck.n_removed:
        notes.append(f"luck:      the {_luck(result)}, leaves {_left(result, luck)}")
    ends = [curve.points[-1] for curve in result.curves if curve.name != "alone"]  # a sum of drops is no measurement
    if last := next((point for point in ends if point.n_removed == result.n_heads), None):
        notes.append(f"no heads:  {_left(result, last)} is what the rest of the model reaches alone")
    return notes


def _prunable(result: Pruning, share: PrunableShare) -> str:
    """Say how many heads can be removed for at most one loss, each alone and together."""
    alone, together = (head_share(n, result.n_heads) for n in (share.n_alone, share.n_together))
    text = f"for at most {_amount(result, share.loss)}, {alone} each alone, {together} together"
    return f"{text}: {_left(result, share.left)} is left on {result.measured_on}" if share.n_together else text


def head_share(n: int, n_heads: int) -> str:
    """Write how many heads of all, and the percentage.

    >>> head_share(11, 24)
    '11 of 24 heads (45.8 %)'
    """
    return f"{n} of {n_heads} heads ({100 * n / n_heads:.1f} %)"


def _asked(result: Pruning) -> str:
    """Say what ended the removal."""
    if result.share is not None:
        return f"until {100 * result.share:g} % of the {result.n_heads} heads are gone"
    return f"for at most {_amount(result, result.loss)}"


def _luck(result: Pruning) -> str:
    many = "as many as greedy tried" if result.n_random == result.n_tried else f"greedy tried {result.n_tried:,}"
    return f"best of {result.n_random:,} random sets of {result.best_random.n_removed}, {many}"


def _removed(result: Pruning, heads: Sequence[str], left: Point, how: str) -> str:
    """`15 of 24 heads cost under 1 point each alone on ..., by zero alone; without all of those 98 % is left`."""
    cost = f"cost under {_amount(result, 0.01)} each alone on {result.alone_on or result.chosen_on}"
    text = f"{len(heads)} of {result.n_heads} heads {cost}, {how}"
    return f"{text}; without all of those {_left(result, left)} is left{_lost(result, left)}" if heads else text


def _named(result: Pruning) -> str:
    unit = "%" if result.is_accuracy else "nats" if result.unit == "nats" else ""
    return f"{result.metric} ({unit})" if unit else result.metric


def _amount(result: Pruning, lost: float) -> str:
    """A loss in points of a share or of a correlation, or in the metric's unit."""
    if result.unit == "points":
        points = f"{100 * lost:.2f}".rstrip("0").rstrip(".")
        return "1 point" if points == "1" else f"{points} points"
    return f"{lost:.4g} {result.unit}".rstrip()


def _lost(result: Pruning, point: Point) -> str:
    """What is paired has an interval of its own."""
    if point.drop is None or not point.n_removed:
        return ""
    low, high = drop_texts(result.unit, point.drop.low, point.drop.high)
    return f", a {'rise' if result.unit == 'nats' else 'drop'} of {_amount(result, point.drop.mean)} [{low}, {high}]"


def _left(result: Pruning, point: Point) -> str:
    return _with_interval(result, point.score, (point.low, point.high), 2, " %")


def _shown(result: Pruning | Cost, score: float) -> float:
    """A score as people read it: per cent, a loss, or as it is."""
    if result.is_accuracy:
        return 100 * score
    return -score if result.unit == "nats" else score


def _with_interval(result: Pruning | Cost, score: float, ends: tuple[float, float], digits: int, per_cent: str) -> str:
    """`98.12 % [97.55, 98.60]`; what is no share has two more digits."""
    digits, unit = (digits, per_cent) if result.is_accuracy else (digits + 2, "")
    low, high = sorted(_shown(result, end) for end in ends)
    return f"{_shown(result, score):.{digits}f}{unit} [{low:.{digits}f}, {high:.{digits}f}]"


def cost_table(cost: Cost) -> Table:
    """Before and after the cut."""
    names = ", ".join(HeadId.parse(head).short for head in cost.heads)
    table = Table("", "before", "after", "", title=f"{cost.name}: {cost.parent} without {names}", title_justify="left")
    table.add_row("heads", *map(str, cost.n_heads), f"lost as a whole: {', '.join(cost.lost_blocks) or 'no block'}")
    for name, pair in (("parameters", cost.parameters), ("bytes", cost.n_bytes)):
        table.add_row(name, *(f"{number:,}" for number in pair), f"{1 - pair[1] / pair[0]:.1%} less")
    table.add_row("µs per example", *(f"{t:.1f}" for t in cost.microseconds), f"{cost.faster:.2f} times as fast")
    drop, low, high = drop_texts(cost.unit, cost.drop.mean, cost.drop.low, cost.drop.high)
    lost = f"{'rise' if cost.unit == 'nats' else 'drop'} {drop} {cost.unit} [{low}, {high}]"
    both = zip(cost.score, cost.score_intervals, strict=True)
    scores = [_with_interval(cost, score, ends, 2, "%") for score, ends in both]
    table.add_row("right" if cost.is_accuracy else cost.metric, *scores, f"{lost}, {cost.data}")
    tuned = f"; then fine-tuned for {cost.fine_tuned:,} steps" if cost.fine_tuned else ""
    against, folded = "against ablation", ""
    if cost.folded_over:
        against, folded = "against their means", f"; folded over {cost.folded_over:,} unlabelled examples"
    told = f"largest difference, of the largest logit{folded}{tuned}"
    table.add_row(against, "", f"{cost.difference:.1e}", told)
    return table
