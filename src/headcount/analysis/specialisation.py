"""Measure what each head attends to: its mean attention to kinds of keys that the task names, over many examples.

The task names the targets (kinds of keys, such as the operator), the column of each query (such as the 10s), and a
condition that holds in some examples (such as an incoming carry). Every measure is reported overall and by column, for
all examples, for those where the condition holds and for those where it does not. If the task has a contrast (examples
in which one fact changes), its effect on attention is measured too (attention_contrasts.py).

Over all columns, examples with and without the condition are compared within each column, with equal weights for all
columns. Columns where the condition always or never holds are left out: otherwise a difference between columns would
count as an effect of the condition.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from headcount.analysis.attention_contrasts import MOVED, ContrastShift, contrast_of, shifts
from headcount.analysis.attention_measures import MeasureSums, control_inputs, eval_inputs, measure, rounded
from headcount.analysis.head_labels import (
    ALL,
    DIFFERENCE,
    N_CONTROLS,
    RANK,
    THRESHOLDS,
    Calibration,
    MeasureMean,
    Thresholds,
    calibrate,
    label,
)
from headcount.errors import InputError
from headcount.experiments.task_attention import TaskAttention
from headcount.models.reading import WEIGHTINGS
from headcount.results import Contradiction, HeadName, Positive, Result, misnamed
from headcount.stats import Estimate, Stratum, Sums, estimate
from headcount.tasks.base import AttentionTargets


@dataclass(frozen=True)
class HeadStats:
    """The attention measures and label of one head, and how its attention reacts to a fact such as a carry."""

    head: HeadName
    short: str
    stack: str
    layer: int
    kind: str
    label: str
    """The kinds of keys that the head attends to, as text such as `mostly operator (0.75)`; empty if there are none."""
    measures: tuple[MeasureMean, ...]
    shifts: tuple[ContrastShift, ...] = ()
    """How attention changes when one fact, such as a carry, changes; empty if the task has no such examples."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if the head's name is wrong or a measure is repeated."""
        yield from misnamed(self)
        keys = [(m.measure, m.column, m.condition) for m in self.measures]
        if len(set(keys)) != len(keys):
            yield "measures", "measures that differ from each other"

    def find(self, measure: str, column: str = ALL, condition: str = ALL) -> MeasureMean | None:
        """Return one attention measure of the head, in a column (10s) and under a condition (carry), or None."""
        wanted = measure, column, condition
        return next((m for m in self.measures if (m.measure, m.column, m.condition) == wanted), None)

    def sensitivity(self, column: str = ALL) -> ContrastShift | None:
        """Return how far a change of one fact (a carry) moves the head's attention in a column (10s), or None."""
        return next((shift for shift in self.shifts if (shift.measure, shift.column) == (MOVED, column)), None)


@dataclass(frozen=True)
class Named:
    """Name and description of the task's contrast: examples in which one fact changes (see attention_contrasts.py)."""

    name: str
    words: str


@dataclass(frozen=True)
class Specialisation(Result):
    """What every head of a model attends to: its attention to kinds of keys that the task names, with labels."""

    ROWS: ClassVar[tuple[str, ...]] = ("heads",)
    SCHEMA: ClassVar[int] = 3
    name: str
    weights_sha256: str
    n: Positive
    """Number of examples on which attention was measured."""
    data: str
    """Description in words of the examples on which attention was measured."""
    weighting: str
    """What is measured as attention: attention weights, or these times the norms of the value vectors."""
    thresholds: Thresholds
    calibration: Calibration
    heads: tuple[HeadStats, ...]
    contrast: Named | None = None
    """The examples in which one fact changes, on which `HeadStats.shifts` is measured; None if the task has none."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield a contradiction if a head is repeated, a measure has too many examples, or shifts have no contrast."""
        names = [head.head for head in self.heads]
        if len(set(names)) != len(names):
            yield "heads", "heads that differ from each other"
        if any(m.n > self.n for head in self.heads for m in head.measures):
            yield "heads", f"measures over at most {self.n:,} examples, the value of n"
        if any(bool(head.shifts) and self.contrast is None for head in self.heads):
            yield "contrast", "a name and a description, as heads have shifts"

    @property
    def words(self) -> str:
        """Return sentences that explain under which conditions a head gets a label, for the caption of a table."""
        return f"{self.thresholds.words}. {self.calibration.words}"


def specialise(
    model: TaskAttention,
    length: int | None = None,
    *,
    norm_weighted: bool = False,
    controls: tuple[int, int] = (N_CONTROLS, RANK),
    progress: Callable[[int, int], None] | None = None,
) -> Specialisation:
    """Measure the attention of every head on the test set or, for a classifier, on new sequences of one length.

    `controls` are the number of control models (which learned nothing) of each kind, and the rank of the value among
    them that becomes the threshold of a label. `progress(done, total)` counts examples and controls.
    """
    if not model.sites:
        raise InputError(f"{model.name} has no heads to measure", "choose a model that still has heads")
    inputs_seen, contrast, heads = eval_inputs(model, length), contrast_of(model), list[HeadStats]()
    total = len(inputs_seen) + len(model.controls) * controls[0]

    def report(before: int) -> Callable[[int, int], None] | None:
        return None if progress is None else lambda done, _: progress(before + done, total)

    sums = measure(model, inputs_seen, report(0), norm_weighted=norm_weighted)
    calibration = calibrate(
        model, control_inputs(model, length), *controls, norm_weighted=norm_weighted, progress=report(len(inputs_seen))
    )
    site_shifts = {} if contrast is None else shifts(model, contrast, norm_weighted=norm_weighted)
    for site in (site for site in model.sites if site in sums):
        targets = model.task.attention_targets(site.stack, site.kind, inputs_seen.examples)
        bars = calibration.at(site.stack, site.kind)
        for i, head in enumerate(model.heads_at(site)):
            measures = tuple(m for name, of_name in sums[site].items() for m in _means(name, of_name, i, targets))
            text, names = label(measures, targets.condition.when, bars), (str(head), head.short)
            head_shifts = site_shifts[site][i] if site_shifts else ()
            heads.append(HeadStats(*names, site.stack, site.layer, site.kind, text, measures, head_shifts))
    return Specialisation(
        name=model.name,
        weights_sha256=model.weights_sha256,
        n=len(inputs_seen),
        data=inputs_seen.data,
        weighting=WEIGHTINGS[norm_weighted],
        thresholds=THRESHOLDS,
        calibration=calibration,
        heads=tuple(heads),
        contrast=None if contrast is None else Named(contrast.name, contrast.words),
    )


def _means(name: str, sums: MeasureSums, i: int, targets: AttentionTargets) -> Iterator[MeasureMean]:
    """Yield the mean of one attention measure of head `i`, for every column (10s) and condition (a carry comes in).

    Means over fewer than two examples are left out.
    """
    estimates: dict[tuple[str, str], tuple[Estimate, Estimate | None]] = {}
    condition = targets.condition

    def record(column: str, which: str, mean: Estimate, even: Estimate | None) -> MeasureMean:
        expected = None if even is None else round(even.mean, 6)
        return MeasureMean(name, column, which, rounded(mean.mean), rounded(mean.se), mean.n, expected)

    for column, which, strata in _cases(targets, sums.counts):
        mean = estimate(sums.sums[:, i], sums.counts, strata)
        if mean.n < 2:
            continue
        even = None if sums.even is None else estimate(sums.even, sums.counts, strata)
        estimates[column, which] = mean, even
        yield record(column, which, mean, even)
        if which == condition.no and (column, condition.yes) in estimates:
            yes, even_yes = estimates[column, condition.yes]
            yield record(column, DIFFERENCE, yes - mean, None if even is None or even_yes is None else even_yes - even)


def _cases(targets: AttentionTargets, counts: Sums) -> Iterator[tuple[str, str, list[Stratum]]]:
    """Yield the means to compute, as (column such as `10s`, condition such as `carry`, strata).

    A stratum is a group of queries; all strata of a mean have equal weight.
    """
    holds, whole = targets.condition.holds, np.ones(counts.shape, dtype=bool)
    # Queries that belong to no column belong to neither side of a condition.
    named = len(targets.columns) or 1
    yes, no = (np.pad(side, ((0, 0), (0, counts.shape[1] - named))) for side in (holds, ~holds))
    sides = {targets.condition.yes: yes, targets.condition.no: no}
    columns = [whole & (np.arange(counts.shape[1]) == i) for i in range(named)]
    met = [column for column in columns if all(counts[column & side].any() for side in sides.values())]
    yield ALL, ALL, [whole]
    if met:
        yield from ((ALL, name, [column & side for column in met]) for name, side in sides.items())
    for name, column in zip(targets.columns, columns, strict=False):
        yield name, ALL, [column]
        yield from ((name, which, [column & side]) for which, side in sides.items())
