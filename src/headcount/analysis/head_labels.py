"""Label heads by what they attend to, such as "mostly operator", if they exceed models that learned nothing.

Attention to a target (a kind of key that the task names) is above chance if models that learned nothing ("controls")
rarely show as much. Controls have the model's shape and are measured on some of the same examples:

    untrained   new random weights, as at the start of training
    shuffled    the model's weights with the entries of each matrix permuted: as large as the trained weights, so that
                attention is as sharp, but without their structure

A cell is one target, in one column or overall, at one kind of attention block. Chance varies more in some cells (where
only two keys are visible) than in others. Values x have a maximum of 1, so they are transformed to -log(1 - x), then
standardised by the mean and deviation of the other controls in the same cell. The largest standardised value of a
control, over all its heads and cells, is the threshold that would leave all its heads unlabelled. The threshold in use
is the `RANK`-th largest of these over `N_CONTROLS` controls (Westfall and Young 1993, "Resampling-based multiple
testing"). A new control exceeds it in any head and cell with probability RANK / (N_CONTROLS + 1) = 5 %, so this error
rate covers all columns, targets and heads. The rate is an average over calibrations: with 59 controls, that of one
calibration is mostly between 1 and 10 % (`python -m benchmarks labels`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from headcount.analysis.attention_measures import ENTROPY_SHARE, EvalInputs, measure, rounded
from headcount.experiments.task_attention import TaskAttention
from headcount.results import Count, Positive, Share, Size
from headcount.seeds import integer

ALL, DIFFERENCE = "all", "difference"
"""Names in results: `all` columns or examples; `difference` of the means with and without a condition (a carry)."""
SPREADS = "spreads evenly"
N_CONTROLS, RANK = 59, 3
"""Number of control models (which learned nothing) of each kind; and which of their largest values is the threshold."""
LEAST_DEVIATION, LEAST_REST = 1e-6, 1e-9
"""Lower bounds of a standard deviation and of 1 - x, which avoid division by zero and log(0)."""

NOT_DRAWN = (
    "there are no untrained control models, as build() in the adapter returns the same weights each time: let build() "
    "return random weights, and let load() put in the trained ones"
)
"""Remark for models from which no untrained control models (of the same shape, with random weights) can be made."""

Bars = Mapping[tuple[str, str], float]
"""Thresholds from control models, which learned nothing, by (name of the measure, column of the task such as `10s`)."""
NO_BARS: Bars = {}
LabelCell = tuple[str, str, str, str]
"""What one threshold applies to: stack and kind of an attention block, a measure, and a column (`10s`) or `all`."""
Values = Mapping[LabelCell, NDArray[np.float64]]
"""The attention measures of one model: one value per head, for each kind of block, measure and column (`10s`)."""
Numbers = NDArray[np.float64]
"""An array [control, cell]: values of control models, which learned nothing, for each block, measure and column."""
M = TypeVar("M", bound=TaskAttention)
T = TypeVar("T", float, NDArray[np.float64])


@dataclass(frozen=True)
class MeasureMean:
    """The mean over examples of one attention measure of one head, such as attention to the operator."""

    measure: str
    """Name of the measure: a target of the task such as `operator`, entropy (in nats), entropy share or sparsity."""
    column: str
    """Column of the task that the queries belong to, such as `10s`, or `all`."""
    condition: str
    """Which examples: `all`, those where a condition (a carry comes in) holds, the others, or the `difference`."""
    mean: float
    se: Size
    """Standard error of the mean over examples."""
    n: Positive
    """Number of examples that the mean is taken over."""
    even: float | None = None
    """Value that uniform attention over the visible keys would give, from 0 to 1; None for entropy and sparsity."""

    def half(self, confidence: float = 0.95) -> float:
        """Return half the width of the confidence interval of the mean (Student's t)."""
        return float(stdtrit(self.n - 1, 0.5 + confidence / 2)) * self.se

    @property
    def grade(self) -> float:
        """Return the attention to the measured kind of key, rescaled to 0 for uniform and 1 for all attention."""
        assert self.even is not None, "only a target has a grade"
        return above_even(self.mean, self.even)


@dataclass(frozen=True)
class Thresholds:
    """Thresholds that a head must reach to get a label, besides the thresholds from models that learned nothing."""

    confidence: float = 0.95
    """Confidence level of the intervals of attention measures that are compared with the thresholds."""
    partly: float = 0.25
    """For the label "partly": smallest lower bound of attention to a kind of key, from 0 (uniform) to 1."""
    mostly: float = 0.5
    """For the label "mostly" instead of "partly": smallest mean attention to a kind of key, rescaled from 0 to 1."""
    entropy_share: float = 0.95
    """For the label "spreads evenly": smallest lower bound of the entropy, as a fraction of its maximum."""
    difference: float = 0.2
    """For "more when" or "less when" in a label: smallest distance of the whole interval of a difference from 0."""

    @property
    def words(self) -> str:
        """Return sentences that explain the thresholds for labels, for the caption of a table."""
        return (
            f"a label names a target (kind of key) that a head prefers. In brackets: the attention to the target above "
            f"uniform attention, (weight - uniform) / (1 - uniform). Its {100 * self.confidence:g} % lower bound is at "
            f"least {self.partly:g} and above that of control models; “mostly” means at least {self.mostly:g}. A label "
            f"holds for all columns; a column without any of these targets has a label of its own. “More/less when” "
            f"needs a difference of at least {self.difference:g}. “{SPREADS}” needs an entropy of at least "
            f"{100 * self.entropy_share:g} % of its maximum, and above that of control models"
        )


THRESHOLDS = Thresholds()


def above_even(mass: T, even: float) -> T:
    """Rescale an attention weight to 0 for uniform attention (`even`) and 1 for all attention.

    >>> above_even(0.75, 0.5)
    0.5
    """
    return (mass - even) / (1 - even)


def label(measures: Sequence[MeasureMean], when: str, bars: Bars = NO_BARS, thresholds: Thresholds = THRESHOLDS) -> str:
    """Return the label of a head, which names the targets that it attends to; empty if it meets no threshold.

    A target is a kind of key that the task names, such as the operator; the strongest target comes first. The label
    also says whether attention to a target is higher or lower `when` the task's condition holds. A column without any
    of the labelled targets gets a label of its own.

    >>> by_carry = [MeasureMean("operator", column, "difference", 0.4, 0.01, 900, 0.0) for column in ("10s", "100s")]
    >>> label([MeasureMean("operator", "all", "all", 0.8, 0.01, 900, 0.2), *by_carry], "a carry comes in")
    'mostly operator (0.75), more when a carry comes in (10s, 100s)'
    >>> partly = MeasureMean("operator", "all", "all", 0.52, 0.01, 900, 0.2)
    >>> label([partly], "a carry comes in")
    'partly operator (0.40)'
    >>> label([partly], "a carry comes in", {("operator", "all"): 0.4})
    ''
    """
    overall = {m.measure: m for m in measures if (m.column, m.condition) == (ALL, ALL)}
    targets = [m for m in overall.values() if m.even is not None and _meets(m, thresholds.partly, bars, thresholds)]
    targets.sort(key=lambda m: m.grade, reverse=True)
    labels = [
        f"{_degree(m, thresholds)} {m.measure} ({m.grade:.2f}){_changes(measures, m.measure, when, thresholds)}"
        for m in targets
    ]
    labels += _column_labels(measures, [m.measure for m in targets], bars, thresholds)
    share = overall.get(ENTROPY_SHARE)
    if not labels and share and _meets(share, thresholds.entropy_share, bars, thresholds):
        return SPREADS
    return "; ".join(labels)


def _meets(m: MeasureMean, least: float, bars: Bars, t: Thresholds) -> bool:
    """Return whether the lower bound of a measure is at least `least`, and the threshold from untrained models."""
    low = m.mean - m.half(t.confidence)
    return (low if m.even is None else above_even(low, m.even)) >= max(least, bars.get((m.measure, m.column), 0.0))


def _degree(m: MeasureMean, t: Thresholds) -> str:
    return "mostly" if m.grade >= t.mostly else "partly"


def _changes(measures: Sequence[MeasureMean], target: str, when: str, t: Thresholds) -> str:
    """Return how attention to a kind of key depends on a condition, such as `, more when a carry comes in (10s)`.

    The columns (10s) are left out if the difference holds over all of them. The text is empty if there is no
    dependence.
    """
    clauses = ""
    for word, sign in (("more", 1), ("less", -1)):
        columns = [
            m.column
            for m in measures
            if (m.measure, m.condition) == (target, DIFFERENCE) and sign * m.mean - m.half(t.confidence) >= t.difference
        ]
        if columns:
            clauses += f", {word} when {when}" + ("" if ALL in columns else f" ({', '.join(columns)})")
    return clauses


def _column_labels(measures: Sequence[MeasureMean], named: Sequence[str], bars: Bars, t: Thresholds) -> list[str]:
    """Return labels for columns in which a head attends elsewhere, such as `mostly carry column in 1000s (0.76)`.

    `named` are the kinds of keys in the head's label for all columns.
    """
    groups: dict[tuple[str, str], list[MeasureMean]] = {}
    in_columns = [m for m in measures if m.column != ALL and m.condition == ALL]
    for column in dict.fromkeys(m.column for m in in_columns):
        here = [m for m in in_columns if m.column == column]
        targets = [m for m in here if m.even is not None and _meets(m, t.partly, bars, t)]
        if targets and not any(m.measure in named for m in here):
            most = max(targets, key=lambda m: m.grade)
            groups.setdefault((_degree(most, t), most.measure), []).append(most)
    return [
        f"{degree} {target} in {', '.join(m.column for m in group)} ({', '.join(f'{m.grade:.2f}' for m in group)})"
        for (degree, target), group in groups.items()
    ]


# --- calibration ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bar:
    """A threshold from control models (which learned nothing) for one measure at one kind of attention block."""

    stack: str
    kind: str
    measure: str
    column: str
    least: float


@dataclass(frozen=True)
class Calibration:
    """The thresholds that control models give, which are models that learned nothing, and how they were computed."""

    controls: tuple[str, ...]
    """Kinds of control models, `untrained` or `shuffled`; each threshold is the largest value over all kinds."""
    n_models: Count
    """Number of control models (which learned nothing) of each kind."""
    n_examples: Count
    error_rate: Share
    """Expected fraction of models that learned nothing in which any head gets a label, for example 0.05."""
    bars: tuple[Bar, ...]

    def at(self, stack: str, kind: str) -> dict[tuple[str, str], float]:
        """Return the thresholds for one kind of attention block, by (name of the measure, column such as `10s`)."""
        return {(bar.measure, bar.column): bar.least for bar in self.bars if (bar.stack, bar.kind) == (stack, kind)}

    @property
    def words(self) -> str:
        """Return sentences that explain the thresholds from models that learned nothing, for the caption of a table."""
        kinds = " and ".join(self.controls) + " models" + " each" * (len(self.controls) > 1)
        missing = "" if "untrained" in self.controls else f"; {NOT_DRAWN}"
        return (
            f"The control models learned nothing: {self.n_models} {kinds}, of the same shape, on {self.n_examples:,} "
            f"examples. On average, at most {100 * self.error_rate:.2g} % of them have a head with any label{missing}"
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
    """Measure control models, which learned nothing, and return the thresholds that a head of `model` must exceed."""
    highest: dict[LabelCell, float] = {}
    for done, make in enumerate(CONTROLS[kind] for kind in model.controls):
        values = list[Values]()
        with model.workers() as compute:
            # Controls are created one at a time: their weights come from PyTorch's single random stream.
            controls = (make(model, i) for i in range(n_models))
            for one in compute(lambda control: values_of(control, inputs_seen, norm_weighted=norm_weighted), controls):
                values.append(one)
                if progress:
                    progress(done * n_models + len(values), len(model.controls) * n_models)
        for cell, least in bars_of(values, rank).items():
            highest[cell] = max(least, highest.get(cell, -np.inf))
    bars = tuple(Bar(*cell, rounded(least)) for cell, least in highest.items())
    return Calibration(model.controls, n_models, len(inputs_seen), rank / (n_models + 1), bars)


def values_of(model: TaskAttention, inputs_seen: EvalInputs, *, norm_weighted: bool = False) -> Values:
    """Return the mean attention measures of every head, for each kind of block, measure and column (the 10s)."""
    values: dict[LabelCell, list[float]] = {}
    for site, measures in measure(model, inputs_seen, norm_weighted=norm_weighted).items():
        columns = model.task.attention_targets(site.stack, site.kind, inputs_seen.examples[:1]).columns
        for name, sums_of in measures.items():
            if sums_of.even is None and name != ENTROPY_SHARE:
                continue
            sums, counts, parts = sums_of.sums.sum(axis=0), sums_of.counts.sum(axis=0), {ALL: slice(None)}
            if sums_of.even is not None:
                parts |= {column: slice(i, i + 1) for i, column in enumerate(columns)}
            for column, part in parts.items():
                if n := counts[part].sum():
                    means = sums[:, part].sum(axis=1) / n
                    if sums_of.even is not None:
                        means = above_even(means, sums_of.even[:, part].sum() / n)
                    values.setdefault((site.stack, site.kind, name, column), []).extend(means.tolist())
    return {cell: np.array(means) for cell, means in values.items()}


def bars_of(controls: Sequence[Values], rank: int = RANK) -> dict[LabelCell, float]:
    """Return the threshold of each cell (kind of block, measure, column), so that few control models exceed any.

    `controls` are the values of models that learned nothing. All but `rank` - 1 of them stay below every threshold.
    Each control is standardised by the mean and deviation of the other controls. If a control were included in its own
    mean, its largest values would look smaller.
    """
    cells = list(controls[0])
    logs = [{cell: -np.log(np.maximum(1 - x, LEAST_REST)) for cell, x in values.items()} for values in controls]
    n_heads = np.array([len(logs[0][cell]) for cell in cells])
    most, sums, squares = (
        np.array([[statistic(values[cell]) for cell in cells] for values in logs])
        for statistic in (np.max, np.sum, lambda values: np.square(values).sum())
    )
    means, deviations = _moments(sums.sum(axis=0) - sums, squares.sum(axis=0) - squares, n_heads * (len(logs) - 1))
    largest = np.sort(((most - means) / deviations).max(axis=1))
    mean, deviation = _moments(sums.sum(axis=0), squares.sum(axis=0), n_heads * len(logs))
    return dict(zip(cells, (1 - np.exp(-mean - largest[-rank] * deviation)).tolist(), strict=True))


def _moments(sums: Numbers, squares: Numbers, n: NDArray[np.int64]) -> tuple[Numbers, Numbers]:
    mean = sums / n
    return mean, np.sqrt(np.maximum(squares / n - mean**2, LEAST_DEVIATION**2))


def untrained(model: M, i: int) -> M:
    """Return the i-th untrained control: a model of the same shape with new random weights, which learned nothing."""
    return model.untrained(integer(integer(0, "untrained control", i), "weights"))


def shuffled(model: M, i: int) -> M:
    """Return the i-th shuffled control: the model with the entries of each weight matrix permuted at random."""
    return model.shuffled(integer(0, "shuffled control", i))


CONTROLS = {"untrained": untrained, "shuffled": shuffled}
