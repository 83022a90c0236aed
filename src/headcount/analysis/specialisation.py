"""What is each head for? Its attention to what the task calls by name, over many examples, each mean with its error.

The task names the targets (operator, aligned column, left neighbour, ...), the column that each query is about and a
condition (a carry comes in, the sequence is sorted). Every measure is told overall, by column, and apart for examples
where the condition holds and where it does not; a contrast, if the task has one, tells what a single token does
(contrasts.py). Over all columns the two are compared within columns, each counting alike, and only over columns that
meet both: no carry ever comes into the 1s, which must not pass for an effect of carries.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from headcount.analysis.contrasts import MOVED, Shift, contrast_of, shifts
from headcount.analysis.head_measures import Measured, control_inputs, eval_inputs, measure, rounded
from headcount.analysis.labels import (
    ALL,
    DIFFERENCE,
    N_CONTROLS,
    RANK,
    THRESHOLDS,
    Calibration,
    Measure,
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
    """One head."""

    head: HeadName
    short: str
    stack: str
    layer: int
    kind: str
    label: str
    """What it attends to, where a threshold holds; else nothing."""
    measures: tuple[Measure, ...]
    shifts: tuple[Shift, ...] = ()
    """What the task's contrast does to it; nothing if the task has none."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Compare the head's names, and the measures with each other."""
        yield from misnamed(self)
        keys = [(each.measure, each.column, each.condition) for each in self.measures]
        if len(set(keys)) != len(keys):
            yield "measures", "different measures"

    def find(self, measure: str, column: str = ALL, condition: str = ALL) -> Measure | None:
        """One number, if it was measured."""
        wanted = measure, column, condition
        return next((m for m in self.measures if (m.measure, m.column, m.condition) == wanted), None)

    def sensitivity(self, column: str = ALL) -> Shift | None:
        """How far the task's contrast moves its attention, if it was measured."""
        return next((each for each in self.shifts if (each.measure, each.column) == (MOVED, column)), None)


@dataclass(frozen=True)
class Named:
    """The name of a measure, and what it is."""

    name: str
    words: str


@dataclass(frozen=True)
class Specialisation(Result):
    """Every head of a model."""

    ROWS: ClassVar[tuple[str, ...]] = ("heads",)
    SCHEMA: ClassVar[int] = 3
    name: str
    weights_sha256: str
    n: Positive
    """Examples."""
    data: str
    """Which examples."""
    weighting: str
    """Whether a key counts by its attention weight or by its share of norms."""
    thresholds: Thresholds
    calibration: Calibration
    heads: tuple[HeadStats, ...]
    contrast: Named | None = None
    """What `sensitivity` is in this task."""

    def contradictions(self) -> Iterator[Contradiction]:
        """Compare the heads with each other and with the number of examples."""
        names = [each.head for each in self.heads]
        if len(set(names)) != len(names):
            yield "heads", "different heads"
        if any(each.n > self.n for head in self.heads for each in head.measures):
            yield "heads", f"measures over at most n = {self.n:,} examples"
        if any(bool(head.shifts) and self.contrast is None for head in self.heads):
            yield "contrast", "a contrast, as heads have shifts"

    @property
    def words(self) -> str:
        """When a head gets a label, for people."""
        return f"{self.thresholds.words}; {self.calibration.words}"


def specialise(
    model: TaskAttention,
    length: int | None = None,
    *,
    norm_weighted: bool = False,
    controls: tuple[int, int] = (N_CONTROLS, RANK),
    progress: Callable[[int, int], None] | None = None,
) -> Specialisation:
    """Measure every head: on the test set or, of a classifier, on fresh sequences of this length.

    Labels are calibrated on that many `controls` of each kind; the second number is the rank of the bar among them.
    `progress(done, total)` counts examples and controls.
    """
    if not model.sites:
        raise InputError(f"{model.name} has no heads to measure", "choose one that was not stripped of all of them")
    inputs_seen, contrast, heads = eval_inputs(model, length), contrast_of(model), list[HeadStats]()
    whole = len(inputs_seen) + len(model.controls) * controls[0]

    def told(before: int) -> Callable[[int, int], None] | None:
        return None if progress is None else lambda done, _: progress(before + done, whole)

    measured = measure(model, inputs_seen, told(0), norm_weighted=norm_weighted)
    calibration = calibrate(
        model, control_inputs(model, length), *controls, norm_weighted=norm_weighted, progress=told(len(inputs_seen))
    )
    moved = {} if contrast is None else shifts(model, contrast, norm_weighted=norm_weighted)
    for site in (site for site in model.sites if site in measured):
        targets = model.task.attention_targets(site.stack, site.kind, inputs_seen.examples)
        bars = calibration.at(site.stack, site.kind)
        for i, head in enumerate(model.heads_at(site)):
            found = tuple(m for name, each in measured[site].items() for m in _means(name, each, i, targets))
            named, names = label(found, targets.condition.when, bars), (str(head), head.short)
            shifted = moved[site][i] if moved else ()
            heads.append(HeadStats(*names, site.stack, site.layer, site.kind, named, found, shifted))
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


def _means(name: str, measured: Measured, i: int, targets: AttentionTargets) -> Iterator[Measure]:
    """One measure of head `i` in every case that two examples or more belong to."""
    found: dict[tuple[str, str], tuple[Estimate, Estimate | None]] = {}
    condition = targets.condition

    def record(column: str, which: str, got: Estimate, even: Estimate | None) -> Measure:
        expected = None if even is None else round(even.mean, 6)
        return Measure(name, column, which, rounded(got.mean), rounded(got.se), got.n, expected)

    for column, which, strata in _cases(targets, measured.counts):
        got = estimate(measured.sums[:, i], measured.counts, strata)
        if got.n < 2:
            continue
        even = None if measured.even is None else estimate(measured.even, measured.counts, strata)
        found[column, which] = got, even
        yield record(column, which, got, even)
        if which == condition.no and (column, condition.yes) in found:
            yes, even_yes = found[column, condition.yes]
            yield record(column, DIFFERENCE, yes - got, None if even is None or even_yes is None else even_yes - even)


def _cases(targets: AttentionTargets, counts: Sums) -> Iterator[tuple[str, str, list[Stratum]]]:
    """Overall and by column, each with and without the condition: a column, a condition, and what is pooled."""
    holds, whole = targets.condition.holds, np.ones(counts.shape, dtype=bool)
    # A query that is about no column belongs to no side of a condition that is about columns.
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
