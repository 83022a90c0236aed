"""What may a head be called? Nothing, unless a stated threshold holds that models which learned nothing do not pass.

How much attention to a target is more than chance? As much as such controls, of the model's own shape, hardly ever
show. They are measured on some of the same examples:

    untrained   fresh weights, as training begins with
    shuffled    the model's own weights, the entries of each matrix in random order: as large as what was learned, so
                that heads are as sharp, but without its structure

A cell is a target, overall or in one column, at one kind of site. Chance is wide in some cells (in the first columns of
the decoder two keys are visible) and narrow in others, so values x, which end at 1, are taken as -log(1 - x) and
standardised by the controls' own mean and deviation in each cell, each control by those of the others. The largest of
a control, over all its heads and cells, is what it would take to label none of its heads; the bar is the `RANK`-th
largest of `N_CONTROLS` (Westfall and Young 1993, "Resampling-based multiple testing"). A further control passes it, in
any head and cell, with a chance of RANK / (N_CONTROLS + 1) = 5 %: columns, targets and heads are all in that one rate.
It is an average over calibrations: with 59 controls, that of a single one is mostly between 1 and 10 %
(`python -m benchmarks labels`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from headcount.analysis.head_measures import ENTROPY_SHARE, EvalInputs, measure
from headcount.experiments.task_attention import TaskAttention
from headcount.results import Count, Positive, Share, Size
from headcount.seeds import integer

ALL, DIFFERENCE = "all", "difference"
"""Every column or example; and what stands for the one condition less the other."""
SPREADS = "spreads evenly"
N_CONTROLS, RANK = 59, 3
"""Of each kind; and which of their largest values, from above, is the bar."""
LEAST_DEVIATION, LEAST_REST = 1e-6, 1e-9
"""Where controls do not differ at all, rounding would; and what is left of 1 at least."""

NOT_DRAWN = (
    "no untrained ones, for build() of the adapter gives the same weights each time: let it leave them as they are "
    "drawn, and put the trained ones in by load()"
)
"""What is told where one kind of control is missing."""

Bars = Mapping[tuple[str, str], float]
"""By measure and column: what controls show by chance."""
NO_BARS: Bars = {}
Cell = tuple[str, str, str, str]
"""The stack and kind of a site, a measure, and a column or `all`."""
Values = Mapping[Cell, NDArray[np.float64]]
"""Of one model: a value for each head."""
Numbers = NDArray[np.float64]
"""[control, cell]."""
M = TypeVar("M", bound=TaskAttention)
T = TypeVar("T", float, NDArray[np.float64])


@dataclass(frozen=True)
class Measure:
    """The mean of one measure of one head."""

    measure: str
    """A target of the task, or entropy (in nats), entropy share, sparsity."""
    column: str
    """What the queries are about, or `all`."""
    condition: str
    """Which examples: `all`, those with or without it, or the `difference` between these two."""
    mean: float
    se: Size
    """Over examples."""
    n: Positive
    """Examples."""
    even: float | None = None
    """What a target would get if attention were even over the visible keys; None for other measures."""

    def half(self, confidence: float = 0.95) -> float:
        """Half of the interval around the mean (Student's t)."""
        return float(stdtrit(self.n - 1, 0.5 + confidence / 2)) * self.se

    @property
    def grade(self) -> float:
        """Of a target: the mass above even attention."""
        assert self.even is not None, "it is a target"
        return above_even(self.mean, self.even)


@dataclass(frozen=True)
class Thresholds:
    """When a head gets a label, if controls do not. Bounds are those of the mean's interval of this `confidence`."""

    confidence: float = 0.95
    partly: float = 0.25
    """The lower bound of the mass above even attention is at least this: the head attends partly to the target, ..."""
    mostly: float = 0.5
    """... or mostly, from this mass on."""
    entropy_share: float = 0.95
    """The lower bound of the entropy share is at least this: the head spreads evenly."""
    difference: float = 0.2
    """The mass on a labelled target differs by at least this between conditions, anywhere in its interval."""

    @property
    def words(self) -> str:
        """The same, for people."""
        return (
            f"label: mass above even attention, (mass - even) / (1 - even), in brackets; its lower "
            f"{100 * self.confidence:g} % bound is at least {self.partly:g} and more than controls show, “mostly” from "
            f"{self.mostly:g}; over all columns or, where those have no such target, in the columns named; “more/less "
            f"when”: by at least {self.difference:g} (in these columns); “{SPREADS}”: entropy at least "
            f"{100 * self.entropy_share:g} % of its maximum, and more than controls show"
        )


THRESHOLDS = Thresholds()


def above_even(mass: T, even: float) -> T:
    """0 if attention is even, 1 if all of it is on the target.

    >>> above_even(0.75, 0.5)
    0.5
    """
    return (mass - even) / (1 - even)


def label(measures: Sequence[Measure], when: str, bars: Bars = NO_BARS, thresholds: Thresholds = THRESHOLDS) -> str:
    """What a head attends to, most first, and whether more `when` a condition holds; or nothing.

    A column that has none of these targets, as the highest digit of a sum has no aligned column, is judged by itself.

    >>> by_carry = [Measure("operator", column, "difference", 0.4, 0.01, 900, 0.0) for column in ("10s", "100s")]
    >>> label([Measure("operator", "all", "all", 0.8, 0.01, 900, 0.2), *by_carry], "a carry comes in")
    'mostly operator (0.75), more when a carry comes in (10s, 100s)'
    >>> label([Measure("operator", "all", "all", 0.52, 0.01, 900, 0.2)], "a carry comes in")
    'partly operator (0.40)'
    >>> label([Measure("operator", "all", "all", 0.52, 0.01, 900, 0.2)], "a carry comes in", {("operator", "all"): 0.4})
    ''
    """
    overall = {m.measure: m for m in measures if (m.column, m.condition) == (ALL, ALL)}
    targets = [m for m in overall.values() if m.even is not None and _reaches(m, thresholds.partly, bars, thresholds)]
    targets.sort(key=lambda m: m.grade, reverse=True)
    words = [
        f"{_word(m, thresholds)} {m.measure} ({m.grade:.2f}){_changes(measures, m.measure, when, thresholds)}"
        for m in targets
    ]
    words += _elsewhere(measures, [m.measure for m in targets], bars, thresholds)
    share = overall.get(ENTROPY_SHARE)
    if not words and share and _reaches(share, thresholds.entropy_share, bars, thresholds):
        return SPREADS
    return "; ".join(words)


def _reaches(m: Measure, least: float, bars: Bars, t: Thresholds) -> bool:
    """Whether the lower bound, of a target above even attention, is at least this and as much as controls show."""
    low = m.mean - m.half(t.confidence)
    return (low if m.even is None else above_even(low, m.even)) >= max(least, bars.get((m.measure, m.column), 0.0))


def _word(m: Measure, t: Thresholds) -> str:
    return "mostly" if m.grade >= t.mostly else "partly"


def _changes(measures: Sequence[Measure], target: str, when: str, t: Thresholds) -> str:
    """`, more when a carry comes in`, if over all columns; else with the columns where it is so."""
    told = ""
    for word, sign in (("more", 1), ("less", -1)):
        columns = [
            m.column
            for m in measures
            if (m.measure, m.condition) == (target, DIFFERENCE) and sign * m.mean - m.half(t.confidence) >= t.difference
        ]
        if columns:
            told += f", {word} when {when}" + ("" if ALL in columns else f" ({', '.join(columns)})")
    return told


def _elsewhere(measures: Sequence[Measure], named: Sequence[str], bars: Bars, t: Thresholds) -> list[str]:
    """What it attends to in columns that have none of the named targets: `mostly carry column in 1000s (0.76)`."""
    places: dict[tuple[str, str], list[Measure]] = {}
    in_columns = [m for m in measures if m.column != ALL and m.condition == ALL]
    for column in dict.fromkeys(m.column for m in in_columns):
        here = [m for m in in_columns if m.column == column]
        found = [m for m in here if m.even is not None and _reaches(m, t.partly, bars, t)]
        if found and not any(m.measure in named for m in here):
            most = max(found, key=lambda m: m.grade)
            places.setdefault((_word(most, t), most.measure), []).append(most)
    return [
        f"{word} {target} in {', '.join(m.column for m in found)} ({', '.join(f'{m.grade:.2f}' for m in found)})"
        for (word, target), found in places.items()
    ]


# --- calibration ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bar:
    """What a head has to reach in one cell: mass above even attention, or a share of the largest entropy."""

    stack: str
    kind: str
    measure: str
    column: str
    least: float


@dataclass(frozen=True)
class Calibration:
    """The bars, and what they come from."""

    controls: tuple[str, ...]
    """Kinds of models that learned nothing; the bar is the higher one."""
    n_models: Count
    """Of each kind."""
    n_examples: Count
    error_rate: Share
    """The share of such models that would get any label at all, on average over calibrations."""
    bars: tuple[Bar, ...]

    def at(self, stack: str, kind: str) -> dict[tuple[str, str], float]:
        """By measure and column."""
        return {(bar.measure, bar.column): bar.least for bar in self.bars if (bar.stack, bar.kind) == (stack, kind)}

    @property
    def words(self) -> str:
        """For people."""
        kinds = " and ".join(self.controls) + " models" + " each" * (len(self.controls) > 1)
        missing = "" if "untrained" in self.controls else f"; {NOT_DRAWN}"
        return (
            f"calibrated on {self.n_models} {kinds}, of this shape, on {self.n_examples:,} examples: on "
            f"average at most {100 * self.error_rate:.2g} % of such models get any label{missing}"
        )


def calibrate(
    model: TaskAttention,
    inputs_seen: EvalInputs,
    n_models: int = N_CONTROLS,
    rank: int = RANK,
    *,
    norm_weighted: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Calibration:
    """The bars for this model on these examples."""
    bars: dict[Cell, float] = {}
    for done, make in enumerate(CONTROLS[kind] for kind in model.controls):
        found = list[Values]()
        with model.workers() as compute:
            # Models are made one after the other, for their weights come from PyTorch's one stream.
            made = (make(model, i) for i in range(n_models))
            for each in compute(lambda control: values_of(control, inputs_seen, norm_weighted=norm_weighted), made):
                found.append(each)
                if progress:
                    progress(done * n_models + len(found), len(model.controls) * n_models)
        for cell, least in bars_of(found, rank).items():
            bars[cell] = max(least, bars.get(cell, -np.inf))
    told = tuple(Bar(*cell, float(f"{least:.6g}")) for cell, least in bars.items())
    return Calibration(model.controls, n_models, len(inputs_seen), rank / (n_models + 1), told)


def values_of(model: TaskAttention, inputs_seen: EvalInputs, *, norm_weighted: bool = False) -> Values:
    """What can become a label, in every cell: of each head, its mean over the examples."""
    found: dict[Cell, list[float]] = {}
    for site, measures in measure(model, inputs_seen, norm_weighted=norm_weighted).items():
        columns = model.task.attention_targets(site.stack, site.kind, inputs_seen.examples[:1]).columns
        for name, each in measures.items():
            if each.even is None and name != ENTROPY_SHARE:
                continue
            sums, counts, parts = each.sums.sum(axis=0), each.counts.sum(axis=0), {ALL: slice(None)}
            if each.even is not None:
                parts |= {column: slice(i, i + 1) for i, column in enumerate(columns)}
            for column, part in parts.items():
                if n := counts[part].sum():
                    means = sums[:, part].sum(axis=1) / n
                    if each.even is not None:
                        means = above_even(means, each.even[:, part].sum() / n)
                    found.setdefault((site.stack, site.kind, name, column), []).extend(means.tolist())
    return {cell: np.array(values) for cell, values in found.items()}


def bars_of(found: Sequence[Values], rank: int = RANK) -> dict[Cell, float]:
    """What all but a few of these models stay below in every cell.

    Each control is standardised by the others: by itself, too, its largest values would look smaller.
    """
    cells = list(found[0])
    found = [{cell: -np.log(np.maximum(1 - x, LEAST_REST)) for cell, x in each.items()} for each in found]
    n_heads = np.array([len(found[0][cell]) for cell in cells])
    most, sums, squares = (
        np.array([[how(each[cell]) for cell in cells] for each in found])
        for how in (np.max, np.sum, lambda values: np.square(values).sum())
    )
    means, deviations = _moments(sums.sum(axis=0) - sums, squares.sum(axis=0) - squares, n_heads * (len(found) - 1))
    largest = np.sort(((most - means) / deviations).max(axis=1))
    mean, deviation = _moments(sums.sum(axis=0), squares.sum(axis=0), n_heads * len(found))
    return dict(zip(cells, (1 - np.exp(-mean - largest[-rank] * deviation)).tolist(), strict=True))


def _moments(sums: Numbers, squares: Numbers, n: NDArray[np.int64]) -> tuple[Numbers, Numbers]:
    mean = sums / n
    return mean, np.sqrt(np.maximum(squares / n - mean**2, LEAST_DEVIATION**2))


def untrained(model: M, i: int) -> M:
    """The i-th fresh model of this shape, on the same task."""
    return model.untrained(integer(integer(0, "untrained control", i), "weights"))


def shuffled(model: M, i: int) -> M:
    """The i-th order of this model's own weights."""
    return model.shuffled(integer(0, "shuffled control", i))


CONTROLS = {"untrained": untrained, "shuffled": shuffled}
